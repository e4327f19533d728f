"""The fork server: what its children print, and what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.nodes import fork_server
from frontrunner.evaluators.nodes.control_group import ControlGroup
from frontrunner.evaluators.nodes.fork_server import RAISED, ForkRequest, ForkServer, Output
from frontrunner.evaluators.programs.command_log import LEFT_OUT, LIMITS
from support.campaigns import is_alive, wait_for

LINE = b"x" * 1023 + b"\n"


def print_to(output: Output, text: bytes) -> None:
    os.write(output.writer, text)
    output.read()


def test_a_flood_leaves_the_beginning_and_the_end_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    output = Output(log)
    print_to(output, b"first\n")
    for _ in range(160):
        print_to(output, 64 * LINE)
    print_to(output, b"last\n")
    os.close(output.writer)
    output.close()

    lines = log.read_bytes().splitlines()
    assert (lines[0], lines[-1]) == (b"first", b"last")
    assert any(line.startswith(LEFT_OUT) for line in lines)
    assert log.stat().st_size < LIMITS.burst_bytes + 2 * LIMITS.waiting_bytes


def test_what_is_left_in_the_pipe_of_a_process_that_has_ended_is_written(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    output = Output(log)
    os.write(output.writer, 2 * LINE + b"no newline")
    os.close(output.writer)
    output.close()

    assert log.read_bytes() == 2 * LINE + b"no newline\n"


def test_output_is_dropped_where_its_log_cannot_be_written(tmp_path: Path) -> None:
    output = Output(tmp_path / "removed" / "rank-0.log")
    os.write(output.writer, LINE)
    assert output.read() == LINE
    os.close(output.writer)
    output.close()


def leave_one_behind(request: ForkRequest, rank: int) -> None:
    """A rank that starts a process in a session of its own, and ends."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    left = subprocess.Popen(sleeper, start_new_session=True)
    Path(request.folder, f"left-{rank}").write_text(str(left.pid))


def ended_ranks(folder: Path, count: int, **more: str) -> list[int]:
    """Have a server fork ranks that end by themselves, end it, and return their numbers."""
    (folder / "job.json").touch()
    here, there = Pipe()
    server = os.fork()
    if server == 0:
        here.close()
        ForkServer(there).serve()
        os._exit(0)
    there.close()
    request = ForkRequest(token="1", folder=str(folder), world_size=count, count=count, **more)
    here.send_bytes(json.dumps(asdict(request)).encode())
    told = [json.loads(here.recv_bytes()) for _ in range(2 + count)]
    here.close()
    os.waitpid(server, 0)
    return sorted(one["number"] for one in told if "exited" in one)


def test_what_ranks_leave_behind_in_sessions_of_their_own_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ControlGroup.create("probe")
    if group is None:
        pytest.skip("this process may not create control groups (cgroup v2)")
    group.remove()
    monkeypatch.setattr(fork_server, "_run_rank", leave_one_behind)
    assert ended_ranks(tmp_path, 2) == [0, 1]
    left = [int((tmp_path / f"left-{rank}").read_text()) for rank in (0, 1)]
    wait_for(lambda: not any(psutil.pid_exists(p) and is_alive(psutil.Process(p)) for p in left))


def test_a_server_removes_scratch_folders_whose_starter_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks have ended, and their starter is killed before it has removed the folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(fork_server, "_run_rank", lambda *_: None)
    assert ended_ranks(tmp_path, 1, scratch=str(scratch)) == [0]
    assert not scratch.exists()


def test_ranks_that_cannot_be_forked_fail_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    here, there = Pipe()
    monkeypatch.setattr(os, "fork", fork)
    server = ForkServer(there)
    server._start(ForkRequest(token="1", folder=str(tmp_path), world_size=2, first=1))
    server._end_ranks()

    told = [json.loads(here.recv_bytes()) for _ in ("started", "exited")]
    assert told[0] == {"started": "1", "pids": [0]}
    assert told[1] == {"exited": "1", "number": 1, "status": RAISED, "left": []}
    assert "number 1 was not forked: [Errno 11]" in capsys.readouterr().err
