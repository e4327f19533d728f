"""Orphans: processes that drivers of this host left running when they ended, found by their tags.

Ranks die with their fork server, and it with its driver. That fails where the server was stopped when its driver was
killed, or where a rank waits in the kernel, as for a device or a disk that does not respond: such a rank still holds
its device, and whatever is measured next to it is wrong.
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

from frontrunner.evaluators.probe.processes import DRIVER_TAG, FOLDER_TAG, HOST_TAG, rendezvous_prefix, running
from frontrunner.evaluators.protocol import NodesUnavailable
from frontrunner.results.process_identity import machine_id, pid_namespace, proc_is_ours, process_stat

GRACE_S = 5.0
"""How long orphans may take to end by themselves: a fork server cleans up first."""
END_S = 20.0
"""How long they may take to end after they were killed."""


@dataclass(frozen=True, kw_only=True)
class Fenced:
    """A driver of this host, by its process id, that has lost the campaign whose runs are in `folder`."""

    pid: int
    folder: Path


class Orphans:
    """The processes of drivers that are gone, of any campaign, and of one that has lost its campaign.

    Call `have_ended` until it returns True.
    """

    def __init__(self, fenced: Fenced | None = None) -> None:
        self._fenced = fenced
        self._left: list[psutil.Process] = []
        self._began_s = time.monotonic()

    def have_ended(self) -> bool:
        """Return whether all have ended; kill them after `GRACE_S`, and raise `NodesUnavailable` if that fails."""
        # Look again once none is left: one that was killed may have started others meanwhile.
        self._left = running(self._left) or list(find_orphans(self._fenced))
        waited_s = time.monotonic() - self._began_s
        if self._left and waited_s > GRACE_S + END_S:
            raise cannot_be_ended(self._left)
        if waited_s > GRACE_S:
            for process in self._left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if not self._left:
            _remove_rendezvous_folders()
        return not self._left


def find_orphans(fenced: Fenced | None = None) -> Iterator[psutil.Process]:
    """Yield processes of this user that carry the tag of a driver of this host that is gone, or is fenced.

    Leave processes of other process namespaces alone: there, their driver's id is another process's.
    """
    for pid in psutil.pids() if _sees_own_processes() else ():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            is_ours = process.uids().real == os.getuid() and pid_namespace(pid) == pid_namespace()
            if is_ours and pid != os.getpid() and _has_lost_its_driver(process, fenced):
                yield process


def cannot_be_ended(processes: Iterable[psutil.Process]) -> NodesUnavailable:
    """Return the error for processes of ours that were killed and still exist."""
    named = ", ".join(f"{process.pid} ({_state(process)})" for process in processes)
    return NodesUnavailable(
        f"killed ranks have not ended and may still hold their devices: process {named}",
        hint="the kernel ends them once what they wait for responds: a device, a disk or a file server",
    )


def _has_lost_its_driver(process: psutil.Process, fenced: Fenced | None) -> bool:
    environment = process.environ()
    driver = environment.get(DRIVER_TAG, "")
    if not driver.isdecimal() or environment.get(HOST_TAG) != machine_id():
        return False
    is_fenced = fenced is not None and int(driver) == fenced.pid
    if fenced is not None and is_fenced and environment.get(FOLDER_TAG) == str(fenced.folder.resolve()):
        return True
    return _is_gone(int(driver), before=process)


def _sees_own_processes() -> bool:
    """Return whether /proc, where there is one, numbers processes as we do."""
    return sys.platform != "linux" or proc_is_ours()


def _is_gone(driver: int, *, before: psutil.Process) -> bool:
    """Return whether a driver has ended; a process with its id that began after `before` is another one."""
    try:
        return not running([psutil.Process(driver)]) or _start_time(driver) > _start_time(before.pid)
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


def _start_time(pid: int) -> float:
    """Return when a process began: in ticks since boot on Linux, which no change of the clock moves, else in s."""
    return process_stat(pid).started_ticks if sys.platform == "linux" else psutil.Process(pid).create_time()


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return "unknown"


def _remove_rendezvous_folders() -> None:
    """Remove the rendezvous folders of drivers that are gone: a fork server that was killed leaves its own."""
    if not _sees_own_processes():
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{rendezvous_prefix()}*"):
        driver = folder.name.removeprefix(rendezvous_prefix()).split("-")[0]
        with contextlib.suppress(OSError):
            if driver.isdecimal() and folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(driver)):
                shutil.rmtree(folder)
