"""Address of a store: an SQLite file by path or URL, or another database by URL; and the file that lies there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from frontrunner.results.redaction import redact
from frontrunner.spaces.errors import NotFound, StoreUnusable, bad_value

EXPECTED = "a path, or a URL such as sqlite:///path/to/store.db or postgresql+psycopg://user@host/database"
KEY_PASSWORD = "sslpassword"  # noqa: S105 - the name of libpq's parameter
SQLITE_MAGIC = b"SQLite format 3\x00"
BACKUP_MARK = ".backup-"
BACKUP_TIME = re.compile(r"\d{8}T\d{6}Z")

OWN_HANDLES = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Lists of this process's open descriptors, on Linux and macOS; containers may have no /dev/fd."""

OVERRIDE = "FRONTRUNNER_NETWORK_STORE"
"""Environment variable that, set to 1, allows SQLite stores on network file systems."""
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "panfs", "wekafs"),
        *("orangefs", "pvfs2", "glusterfs", "gfs2", "ocfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone"),
    }
)
"""File system types, as named in /proc/self/mountinfo, whose files several hosts share."""
MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """Parsed address; `path` is the absolute path of the SQLite file, None for another database.

    The password is in `url.password`, wherever it was written.
    """

    url: URL
    path: Path | None

    def __str__(self) -> str:
        """Return the file's path, or the URL with its password, and that of its key, hidden."""
        if self.path is not None:
            return str(self.path)
        shown = self.url
        if KEY_PASSWORD in shown.query:
            shown = shown.update_query_dict({KEY_PASSWORD: "***"})
        return shown.render_as_string(hide_password=True)

    def sqlite_uri(self, *, mode: str, immutable: bool = False) -> str:
        """Return the file as an SQLite URI; `mode` is ro, rw or rwc.

        `immutable` promises SQLite that there is no writer, so that it needs no other file in the folder.
        """
        if self.path is None:
            raise ValueError(f"{self} is not an SQLite file")
        return f"file:{quote(str(self.path))}?mode={mode}" + ("&immutable=1" if immutable else "")

    @property
    def has_log(self) -> bool:
        """Whether the file has a write-ahead log: it is in use, or its writer was killed."""
        return self.path is not None and self.path.with_name(self.path.name + "-wal").exists()


def parse_address(text: str) -> StoreAddress:
    """Read `sqlite:///path`, a bare path, or another database's URL; `InvalidInput` for anything else."""
    if "\x00" in text or not text.strip():
        raise bad_value("store.url", text, EXPECTED)
    if "://" not in text:
        path = Path(text).expanduser().absolute()
        return StoreAddress(url=URL.create("sqlite", database=str(path)), path=path)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise bad_value("store.url", redact([text])[0], EXPECTED) from error
    if url.get_backend_name() == "postgresql":
        return StoreAddress(url=_normalized(url), path=None)
    if url.get_backend_name() != "sqlite":
        raise bad_value("store.url", redact([text])[0], EXPECTED)
    if not url.database or url.database == ":memory:":
        raise bad_value("store.url", text, "sqlite:///path: a store is a file")
    return StoreAddress(url=url, path=Path(url.database).expanduser().absolute())


def _normalized(url: URL) -> URL:
    """Return a PostgreSQL URL with its driver, and `?password=` moved to where it is hidden.

    libpq prefers that parameter to a password before the host.
    """
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg")
    given = url.query.get("password")
    if given is None:
        return url
    password = given if isinstance(given, str) else given[-1]
    return url.difference_update_query(["password"]).set(password=password)


def is_new(text: str) -> bool:
    """Return whether opening this address would create an SQLite file; raises as `parse_address` does."""
    path = parse_address(text).path
    return path is not None and not path.exists()


def backup_beside(path: Path, now: datetime) -> Path:
    """Return the name of a backup made now: STORE.backup-20260301T120000Z, in UTC; names sort by time."""
    return path.with_name(f"{path.name}{BACKUP_MARK}{now:%Y%m%dT%H%M%SZ}")


def newest_backup(path: Path) -> Path | None:
    """Return the newest backup in the store's folder; None where there is none, or the folder cannot be listed."""
    prefix = path.name + BACKUP_MARK
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.name.startswith(prefix)]
    except PermissionError:
        return None
    newest = max((name for name in names if BACKUP_TIME.fullmatch(name.removeprefix(prefix))), default=None)
    return None if newest is None else path.with_name(newest)


def damaged(address: StoreAddress, finding: str) -> StoreUnusable:
    """Return the error for a store with damaged pages or cells, naming its newest backup."""
    backup = None if address.path is None else newest_backup(address.path)
    hint = "there is no backup in its folder; the file was left as it is"
    if address.path is None:
        hint = "restore a backup into another schema: pg_restore; the store was left as it is"
    elif backup is not None:
        hint = f"restore the newest backup under another name: frontrunner store copy {backup} NEW.db"
    return StoreUnusable(f"{address} is damaged: {finding}", hint=hint)


def check_file(address: StoreAddress, path: Path, *, create: bool) -> None:
    """Refuse a path that cannot be an SQLite store, before SQLite touches it.

    Raises `NotFound` where the file (or, to create it, its folder) is missing, and `StoreUnusable` for anything but an
    SQLite file. An empty file may become a store, unless it was one: a log or a backup lies in its folder.
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
    was_a_store = address.has_log or newest_backup(path) is not None
    head = _head(path)  # again: another process may just have created the store whose log was found
    if head == SQLITE_MAGIC:
        return
    if was_a_store:
        raise damaged(address, "it is empty" if not head else "it does not begin as an SQLite file does")
    if head:
        raise StoreUnusable(f"{path} is not an SQLite file, so it cannot be a store", hint="name another file")


def _head(path: Path) -> bytes:
    """Return the file's first bytes, read through a descriptor that this process already has, if there is one.

    By POSIX, closing any descriptor of a file drops all locks that the process has on it. Those of a store that is open
    here would go with them: other processes would take it for unused, and delete its log.
    """
    try:
        for handle in _own_handles(path):
            with suppress(OSError):  # of one that was opened for writing only
                return os.pread(handle, len(SQLITE_MAGIC), 0)
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be read: {error.strerror}") from error


def _own_handles(path: Path) -> Iterator[int]:
    wanted = path.stat()
    listing = next((folder for folder in OWN_HANDLES if folder.is_dir()), None)
    for entry in [] if listing is None else list(listing.iterdir()):
        handle = int(entry.name)
        with suppress(OSError):  # of the listing itself, which is closed by now
            found = os.fstat(handle)
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield handle


def refuse_network(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Raise `StoreUnusable` for a path on a network file system, unless `OVERRIDE` allows it.

    SQLite loses stores there when two hosts open one.
    """
    kind = file_system_of(path, mounts=mounts)
    if kind not in NETWORK_TYPES or os.environ.get(OVERRIDE) == "1":
        return
    raise StoreUnusable(
        f"{path} lies on a network file system ({kind}): SQLite's log needs memory that its users share, and its locks "
        "do not hold between hosts, so that two of them would corrupt the store",
        hint=f"use a local disk or PostgreSQL; or, if one host alone opens it, set {OVERRIDE}=1",
    )


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that holds a path, or would; None where the machine does not state it."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    found, depth = None, -1
    real = path.resolve()
    for line in lines:
        # Fields: id, parent, device, root, mount point, options, some optional ones, a dash, type (proc(5)).
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))  # blanks are octal
        if real.is_relative_to(point) and len(point.parts) >= depth:  # a later mount at one point hides the earlier
            found, depth = after.split(" ", 1)[0], len(point.parts)
    return found
