"""Backups of a store while drivers write to it: SQLite's own, or PostgreSQL's pg_dump."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from frontrunner.results.address import StoreAddress
from frontrunner.results.backup_names import backup_beside
from frontrunner.results.engine import Database
from frontrunner.spaces.errors import InvalidInput, NotFound, StoreUnusable, writing

OF_THE_COPY = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_CANTOPEN", "SQLITE_READONLY")
"""How SQLite's names of errors begin that are of the file written to."""


def backup(database: Database, target: Path | None) -> Path:
    """Write what the store holds now to `target`, by default a new file beside it, whole or not at all.

    A backup of SQLite is a store; one of PostgreSQL is an archive that pg_restore reads. Raises `InvalidInput` where
    the target exists or cannot be written, `NotFound` where its folder or pg_dump is missing, and `StoreUnusable` where
    the store cannot be read.
    """
    target = (target or _default(database)).absolute()
    if target.exists():
        raise InvalidInput(f"{target} exists already", hint="name another file")
    if not target.parent.is_dir():
        raise NotFound(f"there is no folder {target.parent} to write the backup to", hint="create it first")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with writing(target):
            if database.address.path is None:
                _dump(database, unfinished)
            else:
                _copy_pages(database, unfinished)
                shutil.copymode(database.address.path, unfinished)
            _flush(unfinished)
            unfinished.replace(target)
            _flush(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _default(database: Database) -> Path:
    return backup_beside(database.address.path or Path(database.address.url.database or "store"), database.clock())


def _copy_pages(database: Database, target: Path) -> None:
    """One state of the file, its log included; a driver that writes meanwhile neither waits nor is in it by halves."""
    with database.read() as connection:
        source = connection.connection.driver_connection
        if not isinstance(source, sqlite3.Connection):
            raise TypeError(f"expected a connection of sqlite3, not {source!r}")
        try:
            with closing(sqlite3.connect(target)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # the copy is one file, without a log beside it
                finding = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            if not getattr(error, "sqlite_errorname", "").startswith(OF_THE_COPY):
                raise
            raise OSError(str(error)) from error  # or the store would be blamed, which was only read
    if finding != "ok":
        raise StoreUnusable(f"the backup of {database.address} is damaged: {finding}", hint="frontrunner store check")


def _dump(database: Database, target: Path) -> None:
    """The store's schema by pg_dump, which has to be of the server's version or a later one."""
    program = shutil.which("pg_dump")
    if program is None:
        raise NotFound(
            "backing up a PostgreSQL store needs pg_dump, which is not installed here",
            hint="install it (Debian: postgresql-client), or run: frontrunner store copy URL FILE.db",
        )
    with database.read() as connection:
        schema = connection.execute(text("SELECT current_schema()")).scalar_one()
    where = ["--dbname", _without_password(database.address), "--schema", str(schema)]
    command = [program, "--format=custom", "--no-password", "--file", str(target), *where]
    password = database.address.url.password
    environment = os.environ | ({"PGPASSWORD": password} if password else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise StoreUnusable(f"pg_dump of {database.address} failed: {said}", hint="see what pg_dump needs")


def _without_password(address: StoreAddress) -> str:
    """The address as libpq reads it; the password goes by the environment, which other users do not see."""
    url = address.url.set(drivername="postgresql")
    return url._replace(password=None).render_as_string(hide_password=False)


def _flush(path: Path) -> None:
    """Have a file or a folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
