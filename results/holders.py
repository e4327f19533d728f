"""The processes that hold leases, as seen from this one."""

from __future__ import annotations

import os
import socket
from itertools import pairwise
from pathlib import Path

import psutil

PID_NAMESPACE = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the namespace that a machine starts with (PROC_PID_INIT_INO of Linux)."""


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


def runs(pid: int) -> bool:
    """Whether a process of this host runs; one that ended but was not waited for yet does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return _is_hidden(pid)


def has_open(pid: int, file: Path) -> bool:
    """Whether a process is seen to have a file open; those of other users do not show it."""
    try:
        return str(file.resolve()) in {opened.path for opened in psutil.Process(pid).open_files()}
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
