"""The keeper: a small process between the driver and a trainer's command.

It starts the command, writes down its output with the moment at which each part came, and sees to its end: when the
driver asks for it, when the driver is gone (its end of the keeper's stdin closes), or when the command has ended and
left processes behind. Launchers put ranks into sessions of their own, which no signal to a process group reaches;
therefore the keeper takes in orphans (PR_SET_CHILD_SUBREAPER) and kills every descendant. The command dies with the
keeper.

In the run folder:

    command.json     in: {"arguments": [...], "passed": [names], "environment": {...}, "folder": path}
    command.log      out: what the command printed, stdout and stderr together
    arrivals.txt     out: a line for each part that came: bytes of the log so far, seconds since the start
    ended.json       out: {"status": exit code or minus the signal, "seconds": s, "peak_resident_bytes": of one process}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import psutil

from frontrunner.evaluators.probe.files import write_json

LOG = "command.log"
ARRIVALS = "arrivals.txt"
ORDER = "command.json"
ENDED = "ended.json"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Without it a Python program's lines come in lumps, long after what they tell of."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
GRACE_S = 5.0
"""What a command may take to end when it is asked to: launchers pass the request on to ranks on other nodes."""
DRAIN_S = 1.0
"""How long output is still taken in after the command has ended, from what it left behind."""
KILL_S = 10.0
NOT_STARTED = 127
"""Status of a command that could not be started, as a shell gives it."""


class Keeper:
    """One command under way."""

    def __init__(self, folder: Path, log: BinaryIO, arrivals: TextIO) -> None:
        self._folder = folder
        self._log = log
        self._arrivals = arrivals
        self._began_s = time.monotonic()
        self._bytes = 0

    def run(self, order: dict[str, Any]) -> None:
        """Run the command to its end, and leave no process of it."""
        try:
            process = subprocess.Popen(
                order["arguments"],
                cwd=order["folder"],
                env=UNBUFFERED | {name: os.environ[name] for name in order["passed"]} | order["environment"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            self._take_in(f"{order['arguments'][0]}: {error.strerror}\n".encode())
            self._write_end(NOT_STARTED)
            return
        self._follow(process)
        _end_all(process)
        self._write_end(process.returncode)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Take in output until the command has ended, or has been asked to."""
        output = process.stdout.fileno() if process.stdout else -1
        waiting, ended_s = [output, sys.stdin.fileno()], None
        while output in waiting or process.poll() is None:
            ready, _, _ = select.select(waiting, [], [], POLL_S)
            if output in ready and not self._read(output):
                waiting.remove(output)
            if sys.stdin.fileno() in ready:  # a request to end, or the driver's end
                waiting.remove(sys.stdin.fileno())
                _ask_to_end(process)
            if process.poll() is not None:
                ended_s = ended_s or time.monotonic()
                if output not in ready or time.monotonic() - ended_s > DRAIN_S:
                    return

    def _read(self, output: int) -> bool:
        data = os.read(output, 1 << 16)
        self._take_in(data)
        return bool(data)

    def _take_in(self, data: bytes) -> None:
        self._log.write(data)
        self._bytes += len(data)
        self._arrivals.write(f"{self._bytes} {time.monotonic() - self._began_s:.6f}\n")

    def _write_end(self, status: int) -> None:
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        seconds = time.monotonic() - self._began_s
        write_json(self._folder / ENDED, {"status": status, "seconds": seconds, "peak_resident_bytes": peak})


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Ask the command's group to end, and kill whatever has not ended after `GRACE_S`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    _end_all(process)


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill every descendant, and wait for those that are ours to wait for."""
    deadline_s = time.monotonic() + KILL_S
    while (left := list(_living())) and time.monotonic() < deadline_s:
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=POLL_S)
        _reap(process)
    _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for orphans that have ended; the command itself is waited for first, since its status is wanted."""
    process.poll()
    with contextlib.suppress(ChildProcessError):
        while process.returncode is not None and os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _living() -> Iterator[psutil.Process]:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child


def _die_with_parent() -> None:
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Keep the command of the run folder that is named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
    _control(PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(sys.argv[1])
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    with (folder / LOG).open("wb", buffering=0) as log, (folder / ARRIVALS).open("w", buffering=1) as arrivals:
        Keeper(folder, log, arrivals).run(order)


if __name__ == "__main__":
    main()
