"""Supervisor of one trainer's command: a small process between the driver and the command.

It starts the command, writes down its output with arrival times, and ends it when the driver requests that or is gone
(its end of the supervisor's stdin closes), or when the command has ended and left processes behind. It adopts orphans,
since launchers put ranks into sessions of their own, which no signal to a process group reaches, and kills every
descendant. The command dies with it. In the run folder:

    command.json     in: {"arguments": [...], "passed": [names], "environment": {...}, "folder": path}
    command.log      out: the lines that it printed to stdout and stderr, each after the second of its arrival
    ended.json       out: {"status": exit code or minus the signal, "seconds": s, "peak_resident_bytes": of one process}
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.files import write_json
from frontrunner.evaluators.probe.processes import adopt_orphans, end_child, kill_descendants, start_child

LOG = "command.log"
ORDER = "command.json"
ENDED = "ended.json"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Without it a Python program's lines arrive in blocks, long after the steps that they report."""

POLL_S = 0.05
GRACE_S = 5.0
"""What a command may take to end on SIGTERM: launchers pass it on to ranks on other nodes."""
DRAIN_S = 1.0
"""How long output is still read after the command has ended, from processes that it left behind."""
KILL_S = 10.0
MAX_LINE_BYTES = 2**20
NOT_STARTED = 127


class Log:
    """The log of a command; a line ends with a newline, or with the carriage return of a progress bar."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._began_s = time.monotonic()
        self._unfinished = b""

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self._began_s

    def write(self, data: bytes) -> None:
        """Write the lines that these bytes complete."""
        if len(self._unfinished) > MAX_LINE_BYTES:
            data = b"\n" + data
        *lines, self._unfinished = (self._unfinished + data).replace(b"\r", b"\n").split(b"\n")
        self._file.write(b"".join(b"%.6f %b\n" % (self.seconds, line) for line in lines))

    def close(self) -> None:
        """Write what is left."""
        if self._unfinished:
            self.write(b"\n")
        self._file.close()


def run(order: dict[str, Any], log: Log) -> int:
    """Run a command to its end, and leave no process of it; return its exit status."""
    try:
        process = start_child(
            order["arguments"],
            parent_death=signal.SIGKILL,
            cwd=order["folder"],
            env=UNBUFFERED | {name: os.environ[name] for name in order["passed"]} | order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        log.write(f"{order['arguments'][0]}: {error.strerror}\n".encode())
        return NOT_STARTED
    output: int = process.stdout.fileno()  # type: ignore[union-attr]
    request = sys.stdin.fileno()
    waiting, ended_s = [output, request], 0.0
    while output in waiting or process.poll() is None:
        ready, _, _ = select.select(waiting, [], [], POLL_S)
        if output in ready:
            data = os.read(output, 1 << 16)
            log.write(data)
            if not data:
                waiting.remove(output)
        if request in ready:  # a request to end, or the driver's end
            waiting.remove(request)
            end_child(process, grace_s=GRACE_S, group=True)
            kill_descendants(process, timeout_s=KILL_S)
        if process.poll() is not None:
            ended_s = ended_s or log.seconds
            if output not in ready or log.seconds - ended_s > DRAIN_S:
                break
    kill_descendants(process, timeout_s=KILL_S)
    return int(process.returncode)


def main() -> None:
    """Supervise the command of the run folder that is named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles interrupts
    adopt_orphans()
    folder = Path(sys.argv[1])
    log = Log(folder / LOG)
    status = run(json.loads((folder / ORDER).read_text(encoding="utf-8")), log)
    log.close()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    write_json(folder / ENDED, {"status": status, "seconds": log.seconds, "peak_resident_bytes": peak})


if __name__ == "__main__":
    main()
