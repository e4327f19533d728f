"""Backups of a store while drivers write to it, and copies of a store into another one, in either kind of database."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, insert, inspect, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from frontrunner.results.address import StoreAddress, backup_beside
from frontrunner.results.database import Database
from frontrunner.results.lease import refuse_driven
from frontrunner.results.opening import make_tables
from frontrunner.results.rows import Columns, storable
from frontrunner.results.schema import Base, CampaignRow, StoreRow
from frontrunner.spaces.errors import InvalidInput, NotFound, StoreUnusable, writing

BATCH = 500
WRONG_TYPE = "42804"
"""PostgreSQL's code for a value of another type than its column's, as a file of SQLite may hold."""
OF_THE_COPY = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_CANTOPEN", "SQLITE_READONLY")
"""Prefixes of SQLite's errors that are about the file written to."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Result of a copy: the number of campaigns, and of rows in each table."""

    source: str
    target: str
    campaigns: int
    rows: dict[str, int]


def copy(source: Database, target: Database) -> Copied:
    """Copy every row of a store into one that holds no campaign yet, in one transaction.

    It makes an empty database a store. Rows keep their ids. Raises `AlreadyDriven` while a driver holds a campaign,
    since a driver of the copy would end its probes, `InvalidInput` where the target holds campaigns, and
    `StoreUnusable` for a source with rows that no store can hold.
    """
    now, made_at = source.clock(), target.clock()
    with source.read() as reading, target.write(whole_store=True) as filling:
        refuse_driven(reading, source, now)
        make_tables(filling, made_at)
        if filling.execute(select(CampaignRow.id).limit(1)).first() is not None:
            raise InvalidInput(f"{target.address} holds campaigns already", hint="name a new store to copy to")
        present = set(inspect(reading).get_table_names())
        rows = {
            table.name: _copy_table(source, reading, filling, table)
            for table in Base.metadata.sorted_tables
            if table.name != StoreRow.__tablename__ and table.name in present
        }
    return Copied(
        source=str(source.address), target=str(target.address), campaigns=rows[CampaignRow.__tablename__], rows=rows
    )


def batches(connection: Connection, table: Table) -> Iterator[list[Columns]]:
    """Yield a table's rows in the order of their keys, with text as PostgreSQL can hold it."""
    rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
    for part in rows.partitions(BATCH):
        yield [{name: storable(v) if isinstance(v, str) else v for name, v in row.items()} for row in part]


def _copy_table(source: Database, reading: Connection, filling: Connection, table: Table) -> int:
    copied = 0
    for batch in _named(source, batches(reading, table)):
        try:
            filling.execute(insert(table), batch)
        except DBAPIError as error:
            of_the_rows = isinstance(error, IntegrityError | DataError)
            if not of_the_rows and getattr(error.orig, "sqlstate", None) != WRONG_TYPE:
                raise
            raise StoreUnusable(
                f"{source.address} holds rows of {table.name} that no store can hold: {first_line(error)}",
                hint=f"nothing was copied; see which: frontrunner store check --store {source.address}",
            ) from error
        copied += len(batch)
    if filling.dialect.name == "postgresql" and "id" in table.columns and copied:
        last = filling.execute(select(func.max(table.c.id))).scalar_one()
        sequence = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :last)")
        filling.execute(sequence, {"name": table.name, "last": last})
    return copied


def _named(source: Database, rows: Iterator[list[Columns]]) -> Iterator[list[Columns]]:
    """Yield the batches; errors of reading them name the source, not the target."""
    with source.translated():
        yield from rows


def first_line(error: DBAPIError) -> str:
    """Return the first line of what the database says."""
    return next(iter(str(error.orig).splitlines()), "")


def backup(database: Database, target: Path | None) -> Path:
    """Write what the store holds now to `target`, by default a new file beside it, whole or not at all.

    A backup of SQLite is a store; one of PostgreSQL is an archive that pg_restore reads. Raises `InvalidInput` where
    the target exists or cannot be written, `NotFound` where its folder or pg_dump is missing, and `StoreUnusable` where
    the store cannot be read.
    """
    path = database.address.path or Path(database.address.url.database or "store")
    target = (target or backup_beside(path, database.clock())).absolute()
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


def _copy_pages(database: Database, target: Path) -> None:
    """Copy one state of the file, its log included; a driver that writes meanwhile does not wait."""
    with database.read() as connection:
        source: Any = connection.connection.driver_connection
        try:
            with closing(sqlite3.connect(target)) as made:
                source.backup(made)
                made.execute("PRAGMA journal_mode = DELETE")  # the copy is one file, without a log beside it
                finding = made.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            if not getattr(error, "sqlite_errorname", "").startswith(OF_THE_COPY):
                raise
            raise OSError(str(error)) from error  # or the store would be blamed, which was only read
    if finding != "ok":
        raise StoreUnusable(f"the backup of {database.address} is damaged: {finding}", hint="frontrunner store check")


def _dump(database: Database, target: Path) -> None:
    """Dump the store's schema by pg_dump, which has to be of the server's version or a later one."""
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
    environment = os.environ | ({"PGPASSWORD": str(password)} if password else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise StoreUnusable(f"pg_dump of {database.address} failed: {said}", hint="see what pg_dump needs")


def _without_password(address: StoreAddress) -> str:
    """Return the address for libpq; the password goes through the environment, which other users do not see."""
    url = address.url.set(drivername="postgresql")
    return url._replace(password=None).render_as_string(hide_password=False)


def _flush(path: Path) -> None:
    """Have a file or a folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
