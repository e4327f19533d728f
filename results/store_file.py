"""What lies at the path of an SQLite store, looked at before SQLite touches it."""

from __future__ import annotations

from pathlib import Path

from frontrunner.results.address import StoreAddress
from frontrunner.results.backup_names import newest_backup
from frontrunner.results.database_errors import damaged
from frontrunner.spaces.errors import NotFound, StoreUnusable

SQLITE_MAGIC = b"SQLite format 3\x00"


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
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be read: {error.strerror}") from error
