"""Which processes and folders count as left behind: those of drivers of this host that are gone,
and no others.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.nodes import child_processes as processes
from frontrunner.evaluators.nodes.base import Start
from frontrunner.evaluators.nodes.child_processes import Fenced, Orphans, find_orphans
from frontrunner.evaluators.nodes.fork_server import ProcessKind, ServerSettings
from frontrunner.evaluators.nodes.local import ThisMachine
from frontrunner.evaluators.nodes.supervisor import RUN_TAG
from frontrunner.evaluators.programs.command import Command, request_of
from frontrunner.evaluators.programs.command_program import write_run
from frontrunner.results.process_identity import machine_id
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.search.attempts import fenced_here
from support.campaigns import (
    is_alive,
    marked,
    order,
    processes_of,
    ranks_of,
    setup_of,
    steps_written,
    tiny,
    wait_for,
    write_toml,
)
from support.campaigns import started as started_command
from support.drivers import Campaigns

pytestmark = pytest.mark.alone

RANK = (sys.executable, "-S", "-c", "import time; time.sleep(60)")
LAUNCHER = (
    *RANK[:3],
    (
        "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], start_new_session=True);"
        " time.sleep(60)"
    ),
)


@contextmanager
def started(environment: Mapping[str, str]) -> Iterator[int]:
    process = subprocess.Popen(RANK, env={**os.environ, **environment})
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def gone() -> str:
    """The number of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return str(process.pid)


@pytest.fixture
def driver() -> Iterator[psutil.Popen]:
    """Stands for a driver that runs."""
    process = psutil.Popen(RANK)
    yield process
    process.kill()
    process.wait()


def found(fenced: Fenced | None = None) -> set[int]:
    return {process.pid for process in find_orphans(fenced)}


def test_a_rank_of_a_command_is_found_and_ends_when_its_supervisor_is_killed(
    tmp_path: Path,
) -> None:
    """A launcher gives its ranks sessions of their own, and a supervisor that is killed ends
    none.
    """
    one, me = order(setup_of(tmp_path)), Fenced(pid=os.getpid(), folder=tmp_path)
    command = Command(
        arguments=(*LAUNCHER, *RANK), log_patterns=(r"(?P<step>\d+) (?P<step_time_s>\d+)",)
    )
    setup = setup_of(tmp_path)
    write_run(request_of(setup, one.recipe, one.run_folder), command, setup.command)
    machine = ThisMachine(tmp_path, ServerSettings())
    run = machine.start(one, Start(kind=ProcessKind.COMMAND))
    try:
        wait_for(lambda: len(marked(RUN_TAG, str(one.run_folder))) == 2)
        family = marked(RUN_TAG, str(one.run_folder))
        assert not {process.pid for process in family} & found(), "their driver runs"
        (supervisor,) = (
            child
            for child in psutil.Process().children(recursive=True)
            if child.pid == family[0].ppid()
        )
        assert {process.pid for process in (supervisor, *family)} <= found(me)
        supervisor.kill()
        wait_for(lambda: not any(map(is_alive, family)))
    finally:
        machine.close([run])


def test_what_began_after_the_first_look_is_found_too(gone: str) -> None:
    environment = {processes.DRIVER_TAG: gone, processes.HOST_TAG: machine_id()}
    orphans = Orphans()
    with started(environment) as first:
        assert not orphans.have_ended()
        assert first in {process.pid for process in orphans._left}
    with started(environment) as second:
        assert not orphans.have_ended()
        while second not in {
            process.pid for process in orphans._left
        }:  # another program's are waited for first
            assert not orphans.have_ended()


def test_a_rank_of_a_driver_on_another_host_is_left_alone(gone: str) -> None:
    """Launchers pass the environment on to other nodes."""
    with started({processes.DRIVER_TAG: gone, processes.HOST_TAG: "another"}) as rank:
        assert rank not in found()


def test_a_clock_that_is_set_forward_makes_no_orphans(
    driver: psutil.Popen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psutil reckons a process's begin from the machine's, which moves with the clock, and
    remembers it.
    """
    with started({processes.DRIVER_TAG: str(driver.pid), processes.HOST_TAG: machine_id()}) as rank:
        assert rank not in found()
        began_s = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: began_s + 3600)
        assert rank not in found()


def test_a_driver_that_lost_its_campaign_is_as_good_as_gone_for_that_one(
    driver: psutil.Popen, tmp_path: Path
) -> None:
    """One that stands still cannot end its ranks, which hold the devices of whoever took its
    place.
    """
    driver.suspend()
    environment = {processes.DRIVER_TAG: str(driver.pid), processes.HOST_TAG: machine_id()}
    with started({**environment, processes.FOLDER_TAG: str(tmp_path / "lost")}) as rank:
        assert rank not in found()
        assert rank not in found(Fenced(pid=driver.pid, folder=tmp_path / "another"))
        assert rank in found(Fenced(pid=driver.pid, folder=tmp_path / "lost"))


def test_taking_over_from_a_driver_that_stands_still_ends_its_ranks_first(tmp_path: Path) -> None:
    write_toml(tmp_path / "tiny.toml", tiny(probe={"measured_steps": 100_000}))
    with started_command("launch", "tiny.toml", cwd=tmp_path) as first:
        wait_for(
            lambda: [
                run for run in tmp_path.glob("frontrunner-runs/tiny/*.1") if steps_written(run)
            ]
        )
        first.send_signal(signal.SIGSTOP)
        family = processes_of(first.pid)
        assert len(family) == 3
        with started_command("resume", "tiny", "--take-over", cwd=tmp_path) as second:
            wait_for(lambda: ranks_of(second.pid))
            assert not any(map(is_alive, family))


def test_only_another_process_of_this_host_is_fenced(tmp_path: Path) -> None:
    here = socket.gethostname()
    assert fenced_here(f"{here}:1", tmp_path) == Fenced(pid=1, folder=tmp_path)
    assert fenced_here(f"{here}:{os.getpid()}", tmp_path) is None
    assert fenced_here("elsewhere:1", tmp_path) is None
    assert fenced_here(None, tmp_path) is None


def test_processes_under_other_numbers_are_left_alone(gone: str) -> None:
    """In a namespace of its own, with the /proc of another, a process reads numbers that mean
    others to it.
    """
    inside = ["unshare", "--pid", "--fork"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no process namespaces may be made here")
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        processes.DRIVER_TAG: gone,
        processes.HOST_TAG: machine_id(),
    }
    count = (
        "from frontrunner.evaluators.nodes.child_processes import find_orphans;"
        " print(len(list(find_orphans())))"
    )
    done = subprocess.run(
        [*inside, sys.executable, "-P", "-c", count],
        env={**os.environ, **environment},  # it has the mark itself
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr


def test_a_campaign_that_runs_nothing_waits_for_nobody(tmp_path: Path, gone: str) -> None:
    mark = {processes.DRIVER_TAG: gone, processes.HOST_TAG: machine_id()}
    with open_store(str(tmp_path / "store.db")) as store, started(mark) as rank:
        campaigns = Campaigns(store, tmp_path / "runs")
        record, spec = campaigns.create(budget={"probes": 1})
        assert campaigns.driver(record, spec).run().state is CampaignState.FINISHED
        assert is_alive(psutil.Process(rank))
