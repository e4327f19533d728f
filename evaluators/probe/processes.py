"""Supervisor of child processes: starts them, tags them, and ends them with everything they started.

A child dies with its parent (`start_child`), is ended by SIGTERM and then SIGKILL (`end_child`), and carries tags in
its environment by which whatever it left behind is found again (`kill_tagged`, `orphans.py`). Launchers give ranks
sessions of their own, so a process group does not reach them, but tags do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from frontrunner.results.process_identity import machine_id, pid_namespace

DRIVER_TAG = "FRONTRUNNER_DRIVER"
"""Environment variable with the process id of the driver that a process works for."""
HOST_TAG = "FRONTRUNNER_DRIVER_HOST"
"""The driver's host: environments travel to other nodes, where process ids mean other processes."""
FOLDER_TAG = "FRONTRUNNER_DRIVER_FOLDER"
"""The folder of the campaign's runs: a driver process may have several campaigns."""
RENDEZVOUS_PREFIX = "frontrunner-ranks-"
"""Names of rendezvous folders go on with host, process namespace and process id of their driver."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05


def start_child(
    command: Sequence[str], *, parent_death: signal.Signals = signal.SIGTERM, **options: Any
) -> subprocess.Popen[Any]:
    """Start a process that gets the signal `parent_death` when this thread ends (Linux); `options` are Popen's."""
    dying = functools.partial(die_with_parent, os.getpid(), parent_death)
    return subprocess.Popen(command, preexec_fn=dying, **options)  # noqa: PLW1509 - it makes two system calls


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """In a new process: have the kernel send it this signal when its parent ends, however that ends."""
    if sys.platform != "linux":
        return
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the request took effect
        os._exit(1)


def end_child(process: subprocess.Popen[Any], *, grace_s: float, group: bool = False) -> None:
    """End a child by SIGTERM, and by SIGKILL after `grace_s`; with `group`, its whole process group."""
    if process.poll() is None and grace_s > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(process.pid, signal.SIGTERM)
            else:
                process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    if group:
        kill_group(process.pid)
    process.kill()
    process.wait()


def kill_group(pid: int) -> None:
    """Kill a process group; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_rank(pid: int) -> None:
    """Kill one rank and whatever it has started; a rank that is gone already is no error."""
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # one that has no group of its own yet


def kill_tagged(variable: str, value: str, *, wait_s: float = 0.0) -> None:
    """Kill every process of this user whose environment has this tag, and wait up to `wait_s` for their end."""
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or another user's
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=wait_s)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux), so that `kill_descendants` finds them."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(first: subprocess.Popen[Any], *, timeout_s: float) -> None:
    """Kill every descendant of this process and reap those that are its children; `first` keeps its exit status."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        left = running(psutil.Process().children(recursive=True))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=POLL_S)
        first.poll()
        with contextlib.suppress(ChildProcessError):
            while first.returncode is not None and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return


def running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those that run; one that ended and was not reaped holds nothing any more."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
    return found


def driver_tags(folder: Path) -> dict[str, str]:
    """Return the environment variables for what this driver starts for the campaign whose runs are in `folder`."""
    return {DRIVER_TAG: str(os.getpid()), HOST_TAG: machine_id(), FOLDER_TAG: str(folder.resolve())}


def rendezvous_prefix() -> str:
    """Return how the names of rendezvous folders of this host and process namespace begin."""
    return f"{RENDEZVOUS_PREFIX}{machine_id()}-{pid_namespace()}-"


def kernel_oom_kills() -> int:
    """Return how many processes the kernel's out-of-memory killer ended since boot; 0 where it is unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
