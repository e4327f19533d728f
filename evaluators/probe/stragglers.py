"""What drivers of this host that are gone have left running: found by its mark, ended, and named where it cannot be.

Ranks die with their fork server, and it with its driver. That fails where the server was stopped when its driver was
killed, or where a rank waits in the kernel, as for a device or a disk that does not answer: such a rank goes on
holding its device, and whatever is measured beside it is wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from frontrunner.evaluators.probe.marks import (
    FOLDER_MARKER,
    HOST_MARKER,
    MARKER,
    meeting_prefix,
    pid_namespace,
    this_host,
)
from frontrunner.evaluators.protocol import NodesUnavailable
from frontrunner.results.process_identity import proc_is_ours, process_stat

GRACE_S = 5.0
"""How long what a driver left may take to end by itself: a fork server clears up first."""
END_S = 20.0
"""How long it may take to end once it was killed."""


@dataclass(frozen=True, kw_only=True)
class Fenced:
    """A driver of this host, by its process id, that has lost the campaign whose runs are in `folder`."""

    pid: int
    folder: Path


class Orphans:
    """The processes of drivers that are gone, of any campaign, and of one that has lost its campaign.

    `have_ended` is to be called again and again.
    """

    def __init__(self, fenced: Fenced | None = None) -> None:
        self._fenced = fenced
        self._left: list[psutil.Process] = []
        self._began_s = time.monotonic()

    def have_ended(self) -> bool:
        """Whether all have; kills them after `GRACE_S`, and raises `NodesUnavailable` where that does not end them."""
        # Where none is left they are looked for again: one that was killed may have started others meanwhile.
        self._left = still_running(self._left) or list(_orphans(self._fenced))
        waited_s = time.monotonic() - self._began_s
        if self._left and waited_s > GRACE_S + END_S:
            raise cannot_be_ended(self._left)
        if waited_s > GRACE_S:
            for process in self._left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if not self._left:
            _remove_meeting_places()
        return not self._left


def processes(pids: Iterable[int]) -> list[psutil.Process]:
    """Those that are there."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def still_running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that run; one that has ended and was not waited for yet holds nothing any more."""
    return [process for process in processes if _runs(process)]


def cannot_be_ended(processes: Iterable[psutil.Process]) -> NodesUnavailable:
    """The error for processes of ours that were killed and are still there."""
    named = ", ".join(f"{process.pid} ({_state(process)})" for process in processes)
    return NodesUnavailable(
        f"killed ranks have not ended and may still hold their devices: process {named}",
        hint="the kernel ends them once what they wait for answers: a device, a disk or a file server",
    )


def _orphans(fenced: Fenced | None = None) -> Iterator[psutil.Process]:
    """Processes of this user that carry the mark of a driver of this host that is gone, or is fenced.

    Those of other process namespaces are left alone: their drivers have numbers that mean somebody else here.
    """
    for pid in psutil.pids() if _proc_is_ours() else ():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            is_ours = process.uids().real == os.getuid() and pid_namespace(pid) == pid_namespace()
            if is_ours and pid != os.getpid() and _has_lost_its_driver(process, fenced):
                yield process


def _has_lost_its_driver(process: psutil.Process, fenced: Fenced | None) -> bool:
    environment = process.environ()
    mark = environment.get(MARKER, "")
    if not mark.isdecimal() or environment.get(HOST_MARKER) != this_host():
        return False
    if fenced is not None and int(mark) == fenced.pid:
        return environment.get(FOLDER_MARKER) == str(fenced.folder.resolve()) or _is_gone(fenced.pid, before=process)
    return _is_gone(int(mark), before=process)


def _proc_is_ours() -> bool:
    """Whether process ids mean the same to us as to /proc, where there is one."""
    return sys.platform != "linux" or proc_is_ours()


def _is_gone(driver: int, *, before: psutil.Process) -> bool:
    """Whether a driver has ended; a process that began after the one it would have started has but its number."""
    try:
        return not _runs(psutil.Process(driver)) or _began(driver) > _began(before.pid)
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


def _began(pid: int) -> float:
    """When a process began: in ticks since the machine did on Linux, which no change of the clock moves, else in s."""
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    return process_stat(pid).started_ticks


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return "unknown"


def _remove_meeting_places() -> None:
    """Remove the folders in which ranks of drivers that are gone met: a fork server that was killed leaves its own."""
    if not _proc_is_ours():
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{meeting_prefix()}*"):
        driver = folder.name.removeprefix(meeting_prefix()).split("-")[0]
        with contextlib.suppress(OSError):
            if driver.isdecimal() and folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(driver)):
                shutil.rmtree(folder)
