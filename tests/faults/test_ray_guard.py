"""Guards of agents on Ray nodes: what they end and remove, without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.nodes.child_processes import driver_tags
from frontrunner.evaluators.nodes.ray_guard import PREFIX, PROGRAM, start_guard
from support.campaigns import is_alive, wait_until_none

FOREVER_S = 1e6


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of an agent."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with sleeping() as process:
        yield process
        process.kill()


def sleeping(**environment: str) -> subprocess.Popen[bytes]:
    program = "import signal; signal.pause()"
    return subprocess.Popen([sys.executable, "-I", "-c", program], env=os.environ | environment)


def guards_of(agent: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if PROGRAM in words and str(agent) in words and is_alive(process):
            found.append(process)
    return found


def test_a_guard_is_no_child_of_the_agent_which_ray_would_end_with_it(
    agent: subprocess.Popen[bytes],
) -> None:
    lifeline, _ = start_guard(agent.pid, FOREVER_S)
    (guard,) = guards_of(agent.pid)
    assert guard.ppid() != os.getpid()
    assert os.getsid(guard.pid) != os.getsid(0)
    lifeline.close()
    wait_until_none(lambda: guards_of(agent.pid))


def test_an_agent_is_ended_and_its_folder_removed_once_it_is_closed(
    agent: subprocess.Popen[bytes],
) -> None:
    lifeline, folder = start_guard(agent.pid, FOREVER_S)
    (folder / "data").mkdir()
    (folder / "data" / "text.bin").write_bytes(b"text")
    assert folder.name.startswith(f"{PREFIX}{agent.pid}-")
    lifeline.write(b".")
    assert agent.poll() is None
    lifeline.close()
    assert agent.wait(60) == -signal.SIGKILL
    wait_until_none(folder.exists)
    wait_until_none(lambda: guards_of(agent.pid))


def test_an_agent_is_ended_once_it_hears_nothing_of_its_holder(
    agent: subprocess.Popen[bytes],
) -> None:
    lifeline, folder = start_guard(agent.pid, 0.1)
    with lifeline:
        assert agent.wait(60) == -signal.SIGKILL
        wait_until_none(folder.exists)


def test_a_stopped_fork_server_of_a_killed_agent_is_ended_before_its_folder_is_removed(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    lifeline, folder = start_guard(agent.pid, FOREVER_S)
    tags = driver_tags(folder) | {"FRONTRUNNER_DRIVER": str(agent.pid)}
    with sleeping(**tags) as server:
        server.send_signal(signal.SIGSTOP)
        agent.kill()
        agent.wait()
        lifeline.close()
        wait_until_none(folder.exists)
        assert server.poll() == -signal.SIGKILL
