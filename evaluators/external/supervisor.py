"""Supervisor of one trainer's command: a small process between the driver and the command.

It starts the command, writes down its output with arrival times, and ends it when the driver requests that or is gone
(its end of the supervisor's stdin closes), or when the command has ended and left processes behind. It adopts orphans,
since launchers put ranks into sessions of their own, which no signal to a process group reaches, and kills every
descendant. The command dies with it. In the run folder:

    command.json     in: {"arguments": [...], "passed": [names], "environment": {...}, "folder": path}
    command.log      out: what the command printed, stdout and stderr together
    arrivals.txt     out: one line per part that arrived: bytes of the log so far, seconds since the start
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
from collections.abc import Callable
from pathlib import Path

from frontrunner.evaluators.probe.files import write_json
from frontrunner.evaluators.probe.processes import adopt_orphans, end_child, kill_descendants, start_child

LOG = "command.log"
ARRIVALS = "arrivals.txt"
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
NOT_STARTED = 127
"""Status of a command that could not be started, as a shell reports it."""


def follow(process: subprocess.Popen[bytes], write: Callable[[bytes], None]) -> None:
    """Read the command's output until it has ended, or end it on request."""
    output, request = process.stdout.fileno() if process.stdout else -1, sys.stdin.fileno()
    waiting, ended_s = [output, request], None
    while output in waiting or process.poll() is None:
        ready, _, _ = select.select(waiting, [], [], POLL_S)
        if output in ready:
            data = os.read(output, 1 << 16)
            write(data)
            if not data:
                waiting.remove(output)
        if request in ready:  # a request to end, or the driver's end
            waiting.remove(request)
            end_child(process, grace_s=GRACE_S, group=True)
            kill_descendants(process, timeout_s=KILL_S)
        if process.poll() is not None:
            ended_s = ended_s or time.monotonic()
            if output not in ready or time.monotonic() - ended_s > DRAIN_S:
                return


def main() -> None:
    """Supervise the command of the run folder that is named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles interrupts
    adopt_orphans()
    folder, began_s = Path(sys.argv[1]), time.monotonic()
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    with (folder / LOG).open("wb", buffering=0) as log, (folder / ARRIVALS).open("w", buffering=1) as arrivals:

        def write(data: bytes) -> None:
            log.write(data)
            arrivals.write(f"{log.tell()} {time.monotonic() - began_s:.6f}\n")

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
            write(f"{order['arguments'][0]}: {error.strerror}\n".encode())
            status = NOT_STARTED
        else:
            follow(process, write)
            kill_descendants(process, timeout_s=KILL_S)
            status = process.returncode
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    seconds = time.monotonic() - began_s
    write_json(folder / ENDED, {"status": status, "seconds": seconds, "peak_resident_bytes": peak})


if __name__ == "__main__":
    main()
