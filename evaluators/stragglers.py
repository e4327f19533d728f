"""What drivers of this host that are gone have left running: found by its mark, ended, and named where it cannot be.

Ranks die with their fork server, and it with its driver. That fails where the server was stopped when its driver was
killed, or where a rank waits in the kernel, as for a device or a disk that does not answer: such a rank goes on
holding its device, and whatever is measured beside it is wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from frontrunner.evaluators.fork_client import FOLDER_PREFIX, MARKER, pid_namespace
from frontrunner.evaluators.protocol import NodesUnavailable

GRACE_S = 5.0
"""How long what a driver left may take to end by itself: a fork server clears up first."""
END_S = 20.0
"""How long it may take to end once it was killed."""


class Orphans:
    """The processes of drivers that are gone, of any campaign; `have_ended` is to be called again and again."""

    def __init__(self) -> None:
        self._left = list(_orphans())
        self._began_s = time.monotonic()
        self._are_killed = False

    def have_ended(self) -> bool:
        """Whether all have; kills them after `GRACE_S`, and raises `NodesUnavailable` where that does not end them."""
        self._left = still_running(self._left)
        waited_s = time.monotonic() - self._began_s
        if self._left and waited_s > GRACE_S and not self._are_killed:
            self._are_killed = True
            for process in self._left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self._left and waited_s > GRACE_S + END_S:
            raise cannot_be_ended(self._left)
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


def _orphans() -> Iterator[psutil.Process]:
    """Processes of this user that carry the mark of a driver that is gone.

    Those of other process namespaces are left alone: their drivers have numbers that mean somebody else here.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(MARKER, "")
            is_ours = process.uids().real == os.getuid() and pid_namespace(process.pid) == pid_namespace()
            if mark.isdecimal() and is_ours and process.pid != os.getpid() and _is_gone(int(mark), before=process):
                yield process


def _is_gone(driver: int, *, before: psutil.Process) -> bool:
    """Whether a driver has ended; a process that began after the one it would have started has but its number."""
    try:
        found = psutil.Process(driver)
        return not _runs(found) or found.create_time() > before.create_time()
    except psutil.NoSuchProcess:
        return True


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
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}{pid_namespace()}-*"):
        driver = folder.name.removeprefix(FOLDER_PREFIX).split("-")[1]
        with contextlib.suppress(OSError):
            if driver.isdecimal() and folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(driver)):
                shutil.rmtree(folder)
