"""What campaigns may leave behind on a machine that other people use as well: processes, ports,
files, shared memory.

Whatever a driver starts is ours, however it hides: this process becomes the parent of those whose
own parent has ended (`PR_SET_CHILD_SUBREAPER`). Their temporary files go to a folder of their own.
Sockets and shared memory are ours if one of our processes was seen to hold them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from frontrunner.evaluators.nodes.child_processes import DRIVER_TAG

PR_SET_CHILD_SUBREAPER = 36
SHARED_MEMORY = Path("/dev/shm")
SOCKET_TABLES = ("tcp", "tcp6", "udp", "udp6")
WAITS_FOR_OTHERS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""The state of a socket that listens, or that is bound without a peer, in each of the kernel's
tables.
"""
CACHES = ("torchinductor_",)
"""What folders of temporary files begin with that are kept on purpose: a library's, for all
processes of a user.
"""
GRACE_S = 10.0
"""How long processes, and what they hold, may outlive the driver that started them."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is left over, in words; `sockets_seen` is how many were there while it ran."""

    sockets_seen: int
    processes: tuple[str, ...]
    ports: tuple[str, ...]
    files: tuple[str, ...]
    shared_memory: tuple[str, ...]


class Surroundings:
    """Looks at what the drivers of this process hold while they run, and for what they leave
    afterwards.
    """

    def __init__(self, temporary: Path, grace_s: float = GRACE_S) -> None:
        """`temporary` is an empty folder that all temporary files from now on go to."""
        self._temporary, self._grace_s = temporary, grace_s
        self._before = dict[str, str | None]()
        self._sockets = dict[int, str]()
        self._shared_memory = set[Path]()
        self._ended_drivers = dict[str, float]()
        self._outlived = dict[int, str]()

    def __enter__(self) -> Surroundings:
        _be_reaper(wanted=True)
        self._before = {"TMPDIR": os.environ.get("TMPDIR"), "tempdir": tempfile.tempdir}
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._temporary)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        _be_reaper(wanted=False)
        tempfile.tempdir = self._before["tempdir"]
        if self._before["TMPDIR"] is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = self._before["TMPDIR"]

    def driver_ended(self, pid: int) -> None:
        """From now on the processes that this driver marked have `grace_s` to end."""
        self._ended_drivers[str(pid)] = time.monotonic()

    def look(self, drivers: set[int]) -> None:
        """Note what our processes hold, and which of them have outlived their driver for too
        long.
        """
        ours = list(descendants())
        reap(ours, spare=drivers)
        open_sockets = _waiting_sockets()
        for process in ours:
            for inode in _socket_inodes(process.pid) & open_sockets.keys():
                self._sockets[inode] = open_sockets[inode]
            self._shared_memory |= _held_shared_memory(process.pid)
            ended_s = self._ended_drivers.get(_driver_of(process))
            if ended_s is not None and time.monotonic() - ended_s > self._grace_s:
                self._outlived[process.pid] = _describe(process)

    def left(self) -> Left:
        """What is there after all drivers have ended, waiting up to `grace_s` for it to go; it is
        then cleared away.
        """
        deadline = time.monotonic() + self._grace_s
        while self._has_more() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.look(set())
        processes = {process.pid: _describe(process) for process in descendants()} | self._outlived
        ports = [port for inode, port in self._sockets.items() if inode in _waiting_sockets()]
        left = Left(
            sockets_seen=len(self._sockets),
            processes=tuple(processes.values()),
            ports=tuple(ports),
            files=self._files(),
            shared_memory=tuple(self._shared_memory_left()),
        )
        self._clear()
        return left

    def _has_more(self) -> bool:
        reap(ours := list(descendants()), spare=set())
        sockets = self._sockets.keys() & _waiting_sockets().keys()
        return bool(ours or sockets or self._files() or self._shared_memory_left())

    def _files(self) -> tuple[str, ...]:
        return tuple(
            sorted(name for name in _names(self._temporary) if not name.startswith(CACHES))
        )

    def _shared_memory_left(self) -> list[str]:
        return sorted(path.name for path in self._shared_memory if path.exists())

    def _clear(self) -> None:
        for process in descendants():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for path in self._temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._sockets.clear()
        self._shared_memory.clear()
        self._outlived.clear()


def descendants() -> Iterator[psutil.Process]:
    """Every live process that this one has started, or a child of it, at whatever depth."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def reap(alive: list[psutil.Process], *, spare: set[int]) -> None:
    """Let the processes go that ended after their own parent did; those to `spare` are waited for
    elsewhere.
    """
    living = {process.pid for process in alive}
    for child in psutil.Process().children():
        if child.pid not in living | spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _be_reaper(*, wanted: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)


def _driver_of(process: psutil.Process) -> str:
    try:
        return process.environ().get(DRIVER_TAG, "")
    except psutil.Error:
        return ""


def _waiting_sockets() -> dict[int, str]:
    """The sockets that listen, or are bound for datagrams, in the kernel's tables: inode ->
    protocol and port.
    """
    found = {}
    for table in SOCKET_TABLES:
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            words = line.split()
            if words[3] == WAITS_FOR_OTHERS[table]:
                found[int(words[9])] = f"{table} {int(words[1].rpartition(':')[2], 16)}"
    return found


def _socket_inodes(pid: int) -> set[int]:
    links = _links(Path(f"/proc/{pid}/fd"))
    return {int(link[len("socket:[") : -1]) for link in links if link.startswith("socket:[")}


def _links(folder: Path) -> list[str]:
    """What the symbolic links of a folder under /proc point to; nothing of a process that is gone
    or another's.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(path))  # noqa: PTH115 - `Path.readlink` would take socket:[1] apart
    return found


def _held_shared_memory(pid: int) -> set[Path]:
    """The files of shared memory that a process has open or mapped."""
    names = _links(Path(f"/proc/{pid}/fd"))
    with contextlib.suppress(OSError):
        names += [
            line.partition("/")[2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        ]
    paths = (Path("/", name) for name in names)
    return {path for path in paths if path.parent == SHARED_MEMORY}
