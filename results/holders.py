"""The processes that hold leases, as seen from this one.

A process id is one machine's number, and is given again to others. What names a process for certain is the machine it
runs on, by the number of that machine's start, and when it began since then. Neither is moved by a clock that is set.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from pathlib import Path

import psutil

PID_NAMESPACE = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the namespace that a machine starts with (PROC_PID_INIT_INO of Linux)."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDED_STATES = frozenset("ZXx")
"""A process in one of these has ended, and was not waited for yet."""


@dataclass(frozen=True, kw_only=True)
class Birth:
    """What no other process has: the machine's start under which it runs, and when it began, in ticks since then."""

    boot_id: str
    started_ticks: int


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """What proc(5) tells of a process: its state, one letter, and when it began, in clock ticks since the boot."""

    state: str
    started_ticks: int


class Sight(Enum):
    """What this process can tell of the holder of a lease."""

    GONE = auto()  # it does not run any more
    UNKNOWN = auto()  # it is elsewhere, or does not show itself
    RUNS = auto()  # a process of this host with its id runs: the holder itself, where its birth is known


def this_host() -> str:
    """The name under which process ids of this one mean something: the host's, and in a container the container's.

    Processes that share a host's name but not its ids are in another pid namespace, whose number is appended.
    """
    try:
        inode = PID_NAMESPACE.stat().st_ino
    except OSError:  # not Linux, or no /proc
        inode = FIRST_PID_NAMESPACE
    name = socket.gethostname()
    return name if inode == FIRST_PID_NAMESPACE else f"{name}#{inode}"


def boot_id() -> str | None:
    """The number of this start of the machine; None where it has none, or /proc tells of other processes than ours."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() if proc_is_ours() else None
    except OSError:
        return None


def proc_is_ours() -> bool:
    """Whether /proc has this process by its number; in a container it may have the numbers of the host."""
    try:
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False


def process_stat(pid: int) -> ProcessStat:
    """Raises `OSError` where /proc shows no such process."""
    after_the_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return ProcessStat(state=after_the_name[0], started_ticks=int(after_the_name[19]))  # fields 3 and 22 of proc(5)


def birth(host: str, pid: int) -> Birth | None:
    """That of a process of this host; None for others, and where it cannot be known."""
    boot = boot_id()
    if host != this_host() or boot is None:
        return None
    try:
        return Birth(boot_id=boot, started_ticks=process_stat(pid).started_ticks)
    except OSError:
        return None


def is_here(host: str, born: Birth | None) -> bool:
    """Whether a holder's process id is one of this host: by the names, and the boot ids where both are known."""
    return host == this_host() and (born is None or boot_id() in (None, born.boot_id))


def sight(host: str, pid: int, born: Birth | None, *, is_one_machine: bool) -> Sight:
    """What can be told of a holder by its host's name and process id, and by its birth where that is known.

    `is_one_machine` says that no other machine uses the store. A holder under another boot id has then run before this
    start of the machine, so one whose process id is not there is gone. Else it may be on a machine of the same name.
    """
    if host != this_host():
        return Sight.UNKNOWN
    if born is None or (boot := boot_id()) is None:
        return Sight.RUNS if runs(pid) else Sight.GONE
    if boot != born.boot_id:
        return Sight.GONE if is_one_machine and not runs(pid) else Sight.UNKNOWN
    try:
        now = process_stat(pid)
    except OSError:
        return Sight.UNKNOWN if _is_hidden(pid) else Sight.GONE
    has_ended = now.state in ENDED_STATES or now.started_ticks != born.started_ticks
    return Sight.GONE if has_ended else Sight.RUNS


def runs(pid: int) -> bool:
    """Whether a process of this host runs; one that ended but was not waited for yet does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return _is_hidden(pid)


def has_open(pid: int, file: Path, *, if_hidden: bool) -> bool:
    """Whether a process has a file open; `if_hidden` where it does not show it, as those of other users."""
    try:
        return str(file.resolve()) in {opened.path for opened in psutil.Process(pid).open_files()}
    except psutil.AccessDenied:
        return if_hidden
    except psutil.Error:
        return False


def is_service(pid: int) -> bool:
    """Whether a process is `frontrunner serve`, which has a store open and drives no campaign."""
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    programs = ("frontrunner", "frontrunner.cli")
    return any(Path(word).name in programs and following == "serve" for word, following in pairwise(command))


def _is_hidden(pid: int) -> bool:
    """Whether a process runs that /proc does not show, as other users' where it is mounted with hidepid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False  # it is this user's, so it would be shown: it has just begun, or is a thread
