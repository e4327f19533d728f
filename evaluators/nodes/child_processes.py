"""Supervisor of child processes: starts them, tags them, ends them with everything they started,
and finds orphans.

Tags in its environment lead to what a child has left behind: launchers give ranks sessions of their
own, out of reach of a process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.nodes.control_group import ControlGroup
from frontrunner.results.process_identity import (
    machine_id,
    pid_namespace,
    proc_is_ours,
    process_stat,
)
from frontrunner.spaces.errors import NodesUnavailable

DRIVER_TAG = "FRONTRUNNER_DRIVER"
HOST_TAG = "FRONTRUNNER_DRIVER_HOST"
"""The driver's host: environments travel to other nodes, where process ids mean other processes."""
FOLDER_TAG = "FRONTRUNNER_DRIVER_FOLDER"
"""The folder of the campaign's runs: a driver process may have several campaigns."""
TAGS = (DRIVER_TAG, HOST_TAG, FOLDER_TAG)

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_S = 0.05
PEER_GRACE_S = 2.0
"""How long the other ranks may go on after one has failed, to write what they know."""
KILL_GRACE_S = 15.0
"""How long killed ranks may take to end; one that waits for its device or disk may never do so."""
GRACE_S = 5.0
"""How long orphans may take to end by themselves: a fork server cleans up first."""
END_S = 20.0


def start_child(
    command: Sequence[str],
    *,
    parent_death: signal.Signals = signal.SIGTERM,
    group: ControlGroup | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a process that gets the signal `parent_death` when this thread ends (Linux), in a
    control group; `options` are Popen's.
    """
    parent = os.getpid()

    def prepare() -> None:
        if group is not None:
            group.join()
        die_with_parent(parent, parent_death)

    return subprocess.Popen(command, preexec_fn=prepare, **options)  # noqa: PLW1509 - it makes a few system calls


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """In a new process: have the kernel send it this signal when its parent ends, however that
    ends.
    """
    _prctl(PR_SET_PDEATHSIG, number)
    if (
        sys.platform == "linux" and os.getppid() != parent
    ):  # it ended before the request took effect
        os._exit(1)


def outlive_parent() -> None:
    """Take back `die_with_parent`."""
    _prctl(PR_SET_PDEATHSIG, 0)


def end_child(process: subprocess.Popen[Any], *, grace_s: float, group: bool = False) -> None:
    """End a child by SIGTERM, and by SIGKILL after `grace_s`; with `group`, its whole process
    group.
    """
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
    """Kill one rank and whatever it has started; one that is gone is no error."""
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # one that has no group of its own yet


def kill_tagged(variable: str, value: str, *, wait_s: float) -> list[psutil.Process]:
    """Kill every process of this user whose environment has this tag, and return those that have
    not ended after `wait_s`.
    """
    killed = [
        process for process, environment in _own_processes() if environment.get(variable) == value
    ]
    for process in killed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return running(psutil.wait_procs(killed, timeout=wait_s)[1])


def name_process(name: str) -> None:
    """Have `ps` and `top` show this process by a name of up to 15 letters (Linux)."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name.encode()))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux), so that `kill_descendants`
    finds them.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(
    known: Collection[subprocess.Popen[Any]], *, timeout_s: float
) -> list[psutil.Process]:
    """Kill every descendant of this process and reap those that are its children; `known` keep
    their exit status. Return those that are left after `timeout_s`.

    All are stopped before the first is killed: one that starts its successor and ends, again and
    again, would not be there any more when it is its turn.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = _stopped_descendants(deadline_s)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=POLL_S)
        statuses = [child.poll() for child in known]
        with contextlib.suppress(ChildProcessError):
            while None not in statuses and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left or time.monotonic() > deadline_s:
            return running(left)


def _stopped_descendants(deadline_s: float) -> list[psutil.Process]:
    """Stop every descendant of this process as it is found, until a look finds no further one."""
    stopped: set[int] = set()
    while True:
        before = len(stopped)
        for pid in _descendants(os.getpid()):
            if pid not in stopped:
                stopped.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        if len(stopped) == before or time.monotonic() > deadline_s:
            break
    found = []
    for pid in stopped:
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return running(found)


def _descendants(pid: int) -> Iterator[int]:
    """Yield the ids of a process's descendants, each as soon as it is seen: they may not last."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        lists = [(task / "children").read_text(encoding="ascii").split() for task in tasks]
    except OSError:  # it has ended, or the kernel has no such lists
        if pid == os.getpid():
            yield from (child.pid for child in psutil.Process().children(recursive=True))
        return
    for child in (int(word) for words in lists for word in words):
        yield child
        yield from _descendants(child)


def running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those that run; one that ended and was not reaped holds nothing any more."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() not in (
                psutil.STATUS_ZOMBIE,
                psutil.STATUS_DEAD,
            ):
                found.append(process)
    return found


def driver_tags(folder: Path) -> dict[str, str]:
    """Return the environment variables for what this driver starts for the campaign whose runs are
    in `folder`.
    """
    return dict(zip(TAGS, (str(os.getpid()), machine_id(), str(folder.resolve())), strict=True))


def kernel_oom_kills() -> int:
    """Return how many processes the kernel's out-of-memory killer ended since boot; 0 where it is
    unknown.
    """
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


@dataclass(frozen=True, kw_only=True)
class Fenced:
    """A driver of this host, by its process id, that has lost the campaign whose runs are in
    `folder`.
    """

    pid: int
    folder: Path


class Orphans:
    """The processes of drivers that are gone, of any campaign, and of one that has lost its
    campaign.

    A stopped fork server, or a rank that waits in the kernel, outlives its driver and still holds
    its device. Call `have_ended` until it returns True.
    """

    def __init__(self, fenced: Fenced | None = None) -> None:
        self._fenced = fenced
        self._left: list[psutil.Process] = []
        self._began_s = time.monotonic()

    def have_ended(self) -> bool:
        """Return whether all have ended; kill them after `GRACE_S`, and raise `NodesUnavailable` if
        that fails.
        """
        # Look again once none is left: one that was killed may have started others meanwhile.
        self._left = running(self._left) or list(find_orphans(self._fenced))
        waited_s = time.monotonic() - self._began_s
        if self._left and waited_s > GRACE_S + END_S:
            raise cannot_be_ended(self._left)
        if waited_s > GRACE_S:
            for process in self._left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        return not self._left


def find_orphans(fenced: Fenced | None = None) -> Iterator[psutil.Process]:
    """Yield processes of this user and process namespace that carry the tag of a driver that is
    gone, or is fenced.
    """
    for process, environment in (
        _own_processes() if sys.platform != "linux" or proc_is_ours() else ()
    ):
        with contextlib.suppress(psutil.Error, OSError):
            driver = environment.get(DRIVER_TAG, "")
            is_ours = driver.isdecimal() and environment.get(HOST_TAG) == machine_id()
            if is_ours and pid_namespace(process.pid) == pid_namespace():
                lost = fenced and (str(fenced.pid), str(fenced.folder.resolve()))
                if lost == (driver, environment.get(FOLDER_TAG)) or _is_gone(
                    int(driver), before=process
                ):
                    yield process


def cannot_be_ended(processes: Sequence[psutil.Process]) -> Exception:
    """Return the error for processes of ours that were killed and still exist."""
    named = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            named.append(f"{process.pid} ({process.status()})")
    return NodesUnavailable(
        f"killed ranks have not ended and may still hold their devices: process {', '.join(named)}",
        hint=(
            "the kernel ends them once what they wait for responds: a device, a disk or a file"
            " server"
        ),
    )


def _own_processes() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone, or another user's
            if process.pid != os.getpid() and process.uids().real == os.getuid():
                yield process, process.environ()


def _is_gone(driver: int, *, before: psutil.Process) -> bool:
    try:  # a process with its id that began after `before` is another one
        return not running([psutil.Process(driver)]) or _start_time(driver) > _start_time(
            before.pid
        )
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


def _start_time(pid: int) -> float:
    """Return when a process began: in ticks since boot on Linux, which no change of the clock
    moves, else in s.
    """
    return (
        process_stat(pid).started_ticks
        if sys.platform == "linux"
        else psutil.Process(pid).create_time()
    )


def _prctl(option: int, value: Any) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
