"""However an attempt ends, its processes are gone within ten seconds, and with them their ports,
memory and files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.programs.base import Watch
from support.benches import Bench
from support.campaigns import (
    frontrunner,
    is_alive,
    processes_of,
    ranks_of,
    started,
    steps_written,
    tiny,
    wait_for,
    wait_until_none,
    write_toml,
)

pytestmark = pytest.mark.alone

ME = os.getpid()
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Holdings:
    """Processes, the ports on which they listen, and the files of theirs that would outlive
    them.
    """

    processes: tuple[psutil.Process, ...]
    ports: frozenset[int]
    files: frozenset[Path]

    @classmethod
    def of(cls, processes: list[psutil.Process]) -> Holdings:
        ports, files = set(), set()
        for process in processes:
            ports |= {
                one.laddr.port
                for one in process.net_connections("inet")
                if one.status == psutil.CONN_LISTEN
            }
            mapped = (region.path for region in process.memory_maps())
            opened = (file.path for file in process.open_files())
            files |= {
                Path(path) for path in (*mapped, *opened) if path.startswith(str(SHARED_MEMORY))
            }
        return cls(tuple(processes), frozenset(ports), frozenset(files))

    def left(self) -> list[str]:
        """What of it is still there."""
        listening = {
            one.laddr.port
            for one in psutil.net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        }
        alive = [f"process {process.pid}" for process in self.processes if is_alive(process)]
        return [
            *alive,
            *(f"port {port}" for port in self.ports & listening),
            *(str(file) for file in self.files if file.exists()),
        ]


def check_gone(held: Holdings) -> None:
    assert held.ports, "ranks on one machine meet on ports of their own"
    wait_until_none(held.left)


def by_its_deadline(probe: Watch) -> None:
    probe.setup = replace(probe.setup, probe=replace(probe.setup.probe, deadline_s=0.5))


def by_a_stopped_rank(probe: Watch) -> None:
    probe.setup = replace(probe.setup, probe=replace(probe.setup.probe, step_deadline_s=2.0))
    ranks_of(ME)[0].suspend()


def by_a_kill_of_one_rank(_: Watch) -> None:
    ranks_of(ME)[1].kill()


def by_a_kill_of_the_fork_server(_: Watch) -> None:
    psutil.Process(ranks_of(ME)[0].ppid()).kill()


@pytest.mark.parametrize(
    "end",
    [
        by_its_deadline,
        by_a_kill_of_one_rank,
        by_a_stopped_rank,
        by_a_kill_of_the_fork_server,
    ],
)
def test_an_attempt_leaves_nothing(bench: Bench, end: Callable[[Watch], None]) -> None:
    one = bench.stepping()
    held = Holdings.of(ranks_of(ME))
    assert len(held.processes) == 2
    end(bench.evaluator._running[one.token])
    bench.failure()
    check_gone(held)


@pytest.mark.parametrize("is_server_stopped", [False, True])
def test_a_killed_driver_leaves_nothing_that_the_next_one_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_server_stopped: bool
) -> None:
    """A fork server that stands still when its driver is killed does not notice, and its ranks go
    on: orphans.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    write_toml(tmp_path / "tiny.toml", tiny(budget={"probes": 2}, probe={"measured_steps": 25}))
    with started("launch", "tiny.toml", cwd=tmp_path) as driver:
        wait_for(
            lambda: [
                run for run in tmp_path.glob("frontrunner-runs/tiny/*.1") if steps_written(run)
            ],
        )
        family = processes_of(driver.pid)
        (server,) = (process for process in family if process.ppid() == driver.pid)
        if is_server_stopped:
            server.suspend()
            ranks_of(driver.pid)[0].suspend()  # so that they do not come to their end by themselves
        held = Holdings.of(family)
        driver.send_signal(signal.SIGKILL)
    if not is_server_stopped:
        check_gone(held)
        assert list(temporary.glob("frontrunner*")) == []
    else:
        assert len(processes_of(driver.pid)) == 3, "nothing ends them"
    resumed = frontrunner("resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert held.left() == []
    assert list(temporary.glob("frontrunner*")) == []
