"""What lies at the path of an SQLite store, looked at before SQLite touches it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from frontrunner.results.address import StoreAddress
from frontrunner.results.backup_names import newest_backup
from frontrunner.results.database_errors import damaged
from frontrunner.spaces.errors import NotFound, StoreUnusable

SQLITE_MAGIC = b"SQLite format 3\x00"
OWN_HANDLES = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Where Linux and macOS list the descriptors of the process that asks; containers may have no /dev/fd."""


def check_file(address: StoreAddress, path: Path, *, create: bool) -> None:
    """Refuse a path that cannot be an SQLite store.

    Raises `NotFound` where the file (or, to create it, its folder) is missing, and `StoreUnusable` where something else
    than an SQLite file lies there. An empty file may become a store, unless it was one: see `_was_a_store`.
    """
    try:
        exists = path.exists()
    except OSError as error:  # a name too long for the file system
        raise StoreUnusable(f"{str(path)[:60]}... cannot be a store: {error.strerror}") from error
    if not exists:
        if not create:
            raise NotFound(f"there is no store at {path}", hint="name another one, or launch a campaign to create it")
        if not path.parent.is_dir():
            raise NotFound(f"there is no folder {path.parent} to create the store in", hint="create it first")
        return
    if not path.is_file():
        raise StoreUnusable(f"{path} is not a file, so it cannot be a store")
    if _head(path) == SQLITE_MAGIC:
        return
    # The file is read once more, since another process may just now have made the store whose log was found.
    was_a_store = _was_a_store(address, path)
    head = _head(path)
    if head == SQLITE_MAGIC:
        return
    if was_a_store:
        raise damaged(address, "it is empty" if not head else "it does not begin as an SQLite file does")
    if head:
        raise StoreUnusable(f"{path} is not an SQLite file, so it cannot be a store", hint="name another file")


def _was_a_store(address: StoreAddress, path: Path) -> bool:
    """Whether a log or a backup lies beside it: neither is ever there before the file itself holds a store."""
    return address.has_log or newest_backup(path) is not None


def _head(path: Path) -> bytes:
    """The file's first bytes, by a descriptor that this process has of it already, where it has one.

    By POSIX, closing any descriptor of a file drops all locks that the process has on it. Those of a store that is open
    here would go with them: other processes would take it for unused, and delete its log.
    """
    try:
        for handle in _own_handles(path):
            with suppress(OSError):  # of one that was opened to write alone
                return os.pread(handle, len(SQLITE_MAGIC), 0)
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be read: {error.strerror}") from error


def _own_handles(path: Path) -> Iterator[int]:
    """The descriptors that this process has of a file, where the system lists them."""
    wanted = path.stat()
    listing = next((folder for folder in OWN_HANDLES if folder.is_dir()), None)
    for entry in [] if listing is None else list(listing.iterdir()):
        handle = int(entry.name)
        with suppress(OSError):  # of the listing itself, which is closed by now
            found = os.fstat(handle)
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield handle
