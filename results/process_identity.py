"""Identity and liveness of processes and machines, and who acts through this one.

A process id is valid on one machine only, and is reused. What identifies a process is the boot of
its machine and its start time since that boot, neither of which changes when a clock is set.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

import psutil

PID_NAMESPACE = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of a machine's first namespace (PROC_PID_INIT_INO of Linux)."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDED_STATES = frozenset("ZXx")
USER_VARIABLE = "FRONTRUNNER_USER"
"""Set by a service for the drivers that it starts: the user who asked for one."""
_user: ContextVar[str | None] = ContextVar("user", default=None)


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """Unique identity of a process: the boot of its machine, and its start in clock ticks since
    that boot.
    """

    boot_id: str
    started_ticks: int


class ProcessStat(NamedTuple):
    """State letter of a process and its start in clock ticks since the boot, as in proc(5)."""

    state: str
    started_ticks: int


class Liveness(Enum):
    """State of another process, as far as this one can find out."""

    DEAD = auto()
    UNKNOWN = auto()  # it runs elsewhere, or is hidden
    ALIVE = auto()  # a process with this id runs here: the same one, where its identity is known


@contextmanager
def acting_for(user: str) -> Iterator[None]:
    """Name the user of a service whose request is carried out in this context."""
    token = _user.set(user)
    try:
        yield
    finally:
        _user.reset(token)


def acting_user() -> str:
    """Return who acts: the user of a request to a service or, in its driver, of the launch; else
    the system's user.
    """
    return requesting_user() or os.environ.get(USER_VARIABLE) or system_user()


def requesting_user() -> str | None:
    """Return the user whose request this context carries out; None outside of a service."""
    return _user.get()


def system_user() -> str:
    """Return the name of the operating system's user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container that runs under any id
        return f"uid {os.getuid()}"


def this_host() -> str:
    """Return the name under which process ids of this process are valid: the host's, or the
    container's.
    """
    name, namespace = socket.gethostname(), pid_namespace()
    return name if namespace in (0, FIRST_PID_NAMESPACE) else f"{name}#{namespace}"


def machine_id() -> str:
    """Return what no other running machine has: the id of this boot on Linux, elsewhere the host's
    name.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")
    except OSError:
        return socket.gethostname()


def pid_namespace(pid: int | None = None) -> int:
    """Return a process's namespace number, 0 where the system has none; `OSError` for one that has
    ended.
    """
    file = PID_NAMESPACE if pid is None else Path(f"/proc/{pid}/ns/pid")
    return file.stat().st_ino if PID_NAMESPACE.parent.exists() else 0


def boot_id() -> str | None:
    """Return the id of this boot; None where there is none, or /proc belongs to another pid
    namespace.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() if proc_is_ours() else None
    except OSError:
        return None


def proc_is_ours() -> bool:
    """Return whether /proc lists this process under its own id; in a container it may show the
    host's ids.
    """
    try:
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False


def process_stat(pid: int) -> ProcessStat:
    """Read a process's entry in /proc; raises `OSError` where there is none."""
    after_the_name = (
        Path(f"/proc/{pid}/stat")
        .read_text(encoding="utf-8", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    return ProcessStat(after_the_name[0], int(after_the_name[19]))  # fields 3 and 22


def process_id(host: str, pid: int) -> ProcessId | None:
    """Return the identity of a process of this host; None for other hosts, and where it cannot be
    read.
    """
    boot = boot_id()
    if host != this_host() or boot is None:
        return None
    try:
        return ProcessId(boot_id=boot, started_ticks=process_stat(pid).started_ticks)
    except OSError:
        return None


def is_on_this_host(host: str, identity: ProcessId | None) -> bool:
    """Return whether a process id is one of this host, by the host's name and, where known, the
    boot id.
    """
    return host == this_host() and (identity is None or boot_id() in (None, identity.boot_id))


def liveness(host: str, pid: int, identity: ProcessId | None, *, is_one_machine: bool) -> Liveness:
    """Return whether a process runs, from its host's name, its pid and, where known, its identity.

    `is_one_machine` states that no other machine can be meant: a process of another boot is then
    dead where its pid is free. Otherwise it may run on another machine of the same name.
    """
    if host != this_host():
        return Liveness.UNKNOWN
    if identity is None or (boot := boot_id()) is None:
        return Liveness.ALIVE if is_alive(pid) else Liveness.DEAD
    if boot != identity.boot_id:
        return Liveness.DEAD if is_one_machine and not is_alive(pid) else Liveness.UNKNOWN
    try:
        now = process_stat(pid)
    except OSError:
        return Liveness.UNKNOWN if _is_hidden(pid) else Liveness.DEAD
    has_ended = now.state in ENDED_STATES or now.started_ticks != identity.started_ticks
    return Liveness.DEAD if has_ended else Liveness.ALIVE


def is_alive(pid: int) -> bool:
    """Return whether a process of this host runs; one that ended but was not waited for yet does
    not.
    """
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Return whether a process runs that /proc does not show, as other users' processes under
    hidepid.
    """
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return False  # it is this user's, so it would be shown: it has just begun, or is a thread
