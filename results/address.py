"""Address of a store: an SQLite file by path or URL, or another database by URL; and the file that
lies there.
"""

from __future__ import annotations

import glob
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from frontrunner.results.redaction import redact
from frontrunner.spaces.errors import NotFound, StoreUnusable, bad_value

EXPECTED = (
    "a path, or a URL such as sqlite:///path/to/store.db or postgresql+psycopg://user@host/database"
)
BACKUP_MARK = ".backup-"
OVERRIDE = "FRONTRUNNER_NETWORK_STORE"
NETWORK_TYPES = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "afs",
            "ceph",
            "lustre",
            "gpfs",
            "beegfs",
            "panfs",
            "wekafs",
        ),
        *("orangefs", "pvfs2", "glusterfs", "gfs2", "ocfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone"),
    }
)


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """Parsed address; `path` is the absolute path of the SQLite file, None for another database."""

    url: URL
    path: Path | None

    def __str__(self) -> str:
        """Return the file's path, or the URL with its passwords hidden."""
        return str(self.path or redact([self.url.render_as_string(hide_password=True)])[0])

    def connect_sqlite(
        self, *, mode: str, immutable: bool, timeout_s: float = 0.0
    ) -> sqlite3.Connection:
        """Connect to the file, with `mode` ro or rwc; `immutable` promises SQLite that there is no
        writer.
        """
        uri = f"file:{quote(str(self.path))}?mode={mode}" + ("&immutable=1" if immutable else "")
        return sqlite3.connect(
            uri, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )

    @property
    def has_log(self) -> bool:
        """Whether the file has a write-ahead log: it is in use, or its writer was killed.

        The log lies beside the file, not beside a link to it.
        """
        if self.path is None:
            return False
        file = self.path.resolve()
        return file.with_name(f"{file.name}-wal").exists()


def parse_address(text: str) -> StoreAddress:
    """Read `sqlite:///path`, a bare path, or a PostgreSQL URL; `InvalidInput` for anything else."""
    if "\x00" in text or not text.strip():
        raise bad_value("store.url", text, EXPECTED)
    try:
        url = make_url(text) if "://" in text else URL.create("sqlite", database=text)
    except (ArgumentError, ValueError) as error:
        raise bad_value("store.url", redact([text])[0], EXPECTED) from error
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise bad_value("store.url", text, "sqlite:///path: a store is a file")
        return StoreAddress(url=url, path=Path(url.database).expanduser().absolute())
    if url.get_backend_name() != "postgresql":
        raise bad_value("store.url", redact([text])[0], EXPECTED)
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg")
    return StoreAddress(url=url, path=None)


def backup_beside(path: Path, now: datetime) -> Path:
    """Return the name of a backup made now: STORE.backup-20260301T120000Z, in UTC; names sort by
    time.
    """
    return path.with_name(f"{path.name}{BACKUP_MARK}{now:%Y%m%dT%H%M%SZ}")


def newest_backup(path: Path) -> Path | None:
    """Return the newest backup in the store's folder; None where there is none."""
    time = "[0-9]" * 8 + "T" + "[0-9]" * 6 + "Z"
    return max(path.parent.glob(f"{glob.escape(path.name)}{BACKUP_MARK}{time}"), default=None)


def damaged(address: StoreAddress, finding: str) -> StoreUnusable:
    """Return the error for a store with damaged pages or cells, naming its newest backup."""
    backup = None if address.path is None else newest_backup(address.path)
    hint = "there is no backup in its folder; the file was left as it is"
    if address.path is None:
        hint = (
            "restore a backup into another schema: frontrunner store copy --store BACKUP --to URL;"
            " the store was left as it is"
        )
    elif backup is not None:
        hint = (
            "restore the newest backup under another name: frontrunner store copy"
            f" --store {backup} --to NEW.db"
        )
    return StoreUnusable(f"{address} is damaged: {finding}", hint=hint)


def check_file(address: StoreAddress, path: Path, *, create: bool) -> None:
    """Refuse a path that cannot be an SQLite store, before SQLite opens it to write.

    An empty file may become a store, unless it was one: a log or a backup lies in its folder.
    """
    try:
        exists = path.exists()
    except OSError as error:  # a name too long for the file system
        raise StoreUnusable(f"{str(path)[:60]}... cannot be a store: {error.strerror}") from error
    if not exists:
        if not create:
            hint = (
                "name another with --store or $FRONTRUNNER_STORE, or launch a campaign to create it"
            )
            raise NotFound(f"there is no store at {path}", hint=hint)
        if not path.parent.is_dir():
            raise NotFound(
                f"there is no folder {path.parent} to create the store in", hint="create it first"
            )
        return
    if not path.is_file():
        raise StoreUnusable(f"{path} is not a file, so it cannot be a store")
    was_a_store = address.has_log or newest_backup(path) is not None
    size = (
        path.stat().st_size
    )  # after looking for a log: another process may just be creating the store
    is_sqlite = size > 0 and _is_sqlite(address)
    if was_a_store and not is_sqlite:
        raise damaged(
            address, "it does not begin as an SQLite file does" if size else "it is empty"
        )
    if size and not is_sqlite:
        raise StoreUnusable(
            f"{path} is not an SQLite file, so it cannot be a store", hint="name another file"
        )


def _is_sqlite(address: StoreAddress) -> bool:
    """Return whether SQLite knows the file's first page; other errors are left to whatever opens
    it.

    Not read by a descriptor of our own: closing it would drop this process's locks on the store
    (POSIX), and other processes would delete its log.
    """
    try:
        with closing(address.connect_sqlite(mode="ro", immutable=True)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorname", "") != "SQLITE_NOTADB"
    return True


def refuse_network(path: Path) -> None:
    """Raise `StoreUnusable` for a path on a network file system, unless `OVERRIDE` allows it."""
    kind = file_system_of(path)
    if kind not in NETWORK_TYPES or os.environ.get(OVERRIDE) == "1":
        return
    raise StoreUnusable(
        f"{path} lies on a network file system ({kind}): SQLite's log needs memory that its users"
        " share, and its locks do not hold between hosts, so that two of them would corrupt the"
        " store",
        hint=f"use a local disk or PostgreSQL; or, if one host alone opens it, set {OVERRIDE}=1",
    )


def file_system_of(path: Path) -> str | None:
    """Return the type of the file system that holds a path, or would; None where it is unknown."""
    real = Path(
        os.path.realpath(path)
    )  # which `resolve` is not of a link to itself, before Python 3.13
    holding = [
        one for one in psutil.disk_partitions(all=True) if real.is_relative_to(one.mountpoint)
    ]
    # A later mount at one point hides the earlier.
    return max(reversed(holding), key=lambda one: len(one.mountpoint)).fstype if holding else None
