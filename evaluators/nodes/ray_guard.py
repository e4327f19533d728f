"""Guard of an agent on a Ray node, `python -P -m frontrunner.evaluators.nodes.ray_guard AGENT
SILENCE_S`, where `AGENT` is the agent's process id.

The guard creates the agent's folder and prints its path. The agent then writes to the guard's stdin
whenever it hears from its holder. Once nothing has come for `SILENCE_S` seconds, or stdin is
closed, the guard kills the agent, waits until all that the agent has started has ended, and removes
the folder.

It does not use Ray, which may be gone by then. Ray kills the child processes of an actor whose
driver ends, so the guard makes itself a child of none.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import psutil

from frontrunner.evaluators.nodes.child_processes import DRIVER_TAG, END_S, find_orphans

PROGRAM = "frontrunner.evaluators.nodes.ray_guard"
PREFIX = "frontrunner-ray-"
"""Beginning of the name of an agent's folder; the agent's process id follows."""
POLL_S = 0.1
GRACE_S = 2.0
"""How long what the agent has started may take to end by itself."""


def start_guard(agent: int, silence_s: float) -> tuple[IO[bytes], Path]:
    """Start the guard of an agent, by its process id; return the guard's stdin, and the folder that
    it has made for the agent.
    """
    command = [sys.executable, "-P", "-m", PROGRAM, str(agent), str(silence_s)]
    starter: Any = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    with starter.stdout as output:
        folder = output.readline().decode().rstrip("\n")
    if starter.wait() != 0 or not folder:
        raise RuntimeError("the agent's guard could not be started")
    return starter.stdin, Path(folder)


def main() -> None:
    """Guard the agent until it has ended or lost its holder, then clean up after it."""
    agent, silence_s = int(sys.argv[1]), float(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{agent}-")
    sys.stdout.write(f"{folder}\n")
    sys.stdout.close()
    stdin = sys.stdin.fileno()
    while select.select([stdin], [], [], silence_s)[0] and os.read(stdin, 4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGKILL)
    _end_orphans(agent)
    shutil.rmtree(folder, ignore_errors=True)


def _end_orphans(agent: int) -> None:
    """Wait until all that the agent has started has ended, and kill what is left after `GRACE_S`.

    The next agent on this node reports processes that cannot be killed.
    """
    began_s = time.monotonic()
    while left := [process for process in find_orphans() if _driver_of(process) == str(agent)]:
        waited_s = time.monotonic() - began_s
        if waited_s > GRACE_S:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if waited_s > GRACE_S + END_S:
            return
        time.sleep(POLL_S)


def _driver_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(DRIVER_TAG)
    except psutil.Error:
        return None


if __name__ == "__main__":
    main()
