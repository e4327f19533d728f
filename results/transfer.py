"""Backups of a store, and copies of all its campaigns or of one campaign into another store.

One campaign is copied by way of a store of its own, which is checked as any store is before the
campaign joins others. `frontrunner.results.archives` fills this store from a file instead.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, insert, inspect, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from frontrunner.results.address import backup_beside, parse_address
from frontrunner.results.check import check
from frontrunner.results.lease import refuse_driven
from frontrunner.results.process_identity import acting_user
from frontrunner.results.records import COPIED, USER, timestamp
from frontrunner.results.rows import Columns, storable
from frontrunner.results.schema import (
    AttemptRow,
    Base,
    CampaignRow,
    DeletionRow,
    EventRow,
    StoreRow,
)
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import (
    InvalidInput,
    StoreUnusable,
    require_campaign_name,
    shown,
    writing,
)

BATCH = 500
OF_THE_STORE = (StoreRow.__table__, DeletionRow.__table__)
TABLES = [table.name for table in Base.metadata.sorted_tables if table not in OF_THE_STORE]
"""A campaign's tables, each after those that it refers to."""
WRONG_TYPE = "42804"
"""PostgreSQL's code for a value of another type than its column's, as a file of SQLite may hold."""
OF_THE_COPY = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY",
)
"""Prefixes of SQLite's errors about the file written to."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Result of a copy: its source (a store, or the file of an archive), and its rows by table."""

    source: str
    target: str
    campaigns: int
    rows: dict[str, int]


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield the path of a new file in the same folder that becomes `path` at the end; nothing is
    left on an error.
    """
    folder = path.absolute().parent
    with writing(path), tempfile.TemporaryDirectory(dir=folder, prefix=f".{path.name}.") as beside:
        unfinished = Path(beside) / path.name
        yield unfinished
        _flush(unfinished)
        unfinished.replace(path)
        _flush(folder)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def backup(store: Store, target: Path | None) -> Path:
    """Write what the store holds now, as a store in an SQLite file: `target`, or a new one named
    after the store.

    Drivers may go on meanwhile.
    """
    path = store.database.address.path or Path(
        f"{store.database.address.url.database or 'store'}.db"
    )
    target = (target or backup_beside(path, store.now())).absolute()
    if target.exists():
        raise InvalidInput(f"{target} exists already", hint="name another file")
    with written_whole(target) as unfinished, store.database.read() as reading:
        if store.database.is_server:
            with tempfile.TemporaryDirectory() as folder:
                _copy_all(store, reading, f"{folder}/store.db")
                shutil.copyfile(f"{folder}/store.db", unfinished)
        else:
            _copy_pages(store.url, reading, unfinished)
            shutil.copymode(path, unfinished)
    return target


def _copy_pages(store: str, connection: Connection, target: Path) -> None:
    """Copy one state of the file, its log included; a driver that writes meanwhile does not
    wait.
    """
    source: Any = connection.connection.driver_connection
    try:
        with closing(sqlite3.connect(target)) as made:
            source.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")  # the copy is one file, without a log
            finding = made.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        if error.sqlite_errorname.startswith(OF_THE_COPY):
            raise OSError(
                str(error)
            ) from error  # or the store would be blamed, which was only read
        raise
    if finding != "ok":
        raise StoreUnusable(
            f"the backup of {store} is damaged: {finding}", hint="frontrunner store check"
        )


def copy(source: Store, target: str) -> Copied:
    """Copy every campaign of a store into one that holds none yet, in one transaction.

    Raises `AlreadyDriven` while a driver holds a campaign, since a driver of the copy would end its
    probes. A copy that fails leaves no file.
    """
    with _no_file_on_error(target), source.database.read() as reading:
        refuse_driven(source.database, reading)
        return _copy_all(source, reading, target)


@contextmanager
def _no_file_on_error(store: str) -> Iterator[None]:
    path = parse_address(store).path
    is_new = path is not None and not path.exists()
    try:
        yield
    except BaseException:
        if is_new and path is not None:
            path.unlink(missing_ok=True)
        raise


def _copy_all(source: Store, reading: Connection, target: str) -> Copied:
    rows: Counter[str] = Counter()
    with open_store(target) as filled, filled.database.write(whole_store=True) as filling:
        if filling.execute(select(CampaignRow.id).limit(1)).first() is not None:
            raise InvalidInput(
                f"{filled.url} holds campaigns already",
                hint="name a new store, or copy one campaign with --campaign",
            )
        for campaign_id in reading.execute(
            select(CampaignRow.id).order_by(CampaignRow.id)
        ).scalars():
            rows += _copy_rows(source, reading, campaign_id, filling)[1]
    return _copied(source.url, filled, rows)


def _copied(source: str, target: Store, rows: Counter[str]) -> Copied:
    counts = {table: rows[table] for table in TABLES}
    return Copied(source=source, target=target.url, campaigns=rows["campaigns"], rows=counts)


def copy_campaign(source: Store, campaign: str, target: str, *, name: str | None) -> Copied:
    """Copy one campaign, as `name` or under its own, into a store that may hold others.

    Raises `AlreadyDriven` while a driver holds the campaign, and otherwise as `add_checked` does.
    """
    with staging(name) as staged:
        with source.read(campaign) as (reading, found), staged.database.write() as filling:
            refuse_driven(source.database, reading, found.name)
            _copy_rows(source, reading, found.id, filling)
        origin = {"store": source.url, "campaign": found.name}
        return add_checked(staged, target, source=source.url, name=name, kind=COPIED, origin=origin)


@contextmanager
def staging(name: str | None) -> Iterator[Store]:
    """Open a temporary store for one campaign, which `add_checked` will call `name`."""
    if name is not None:
        require_campaign_name("--name", name)
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/campaign.db") as staged:
        yield staged


def add_checked(
    staged: Store,
    target: str,
    *,
    source: str,
    name: str | None,
    kind: str,
    origin: Mapping[str, object],
) -> Copied:
    """Add the only campaign of the store `staged` to the store `target`, in one transaction.

    An event of this kind says where the campaign came from.

    Raises `InvalidInput` for a campaign that breaks a rule of `check`, and `NameTaken`. Nothing is
    written then, and no new file is left.
    """
    with staged.database.reading(), staged.database.read() as reading:
        for finding in check(reading, store=source).findings:
            row = ", ".join(
                f"{key} {shown(value)}"
                for key, value in finding.rows[0].items()
                if key != "campaign"
            )
            why = f"{finding.count} rows break that {finding.says}: {row}"
            raise InvalidInput(
                f"{source} does not hold a campaign that a driver wrote: {why}",
                hint="nothing was written",
            )
        found = staged.campaign(None)
        wanted = name or found.name
        with (
            _no_file_on_error(target),
            open_store(target) as store,
            store.database.write(whole_store=True) as filling,
        ):
            store.refuse_taken(filling, wanted, "give another with --name")
            campaign_id, rows = _copy_rows(staged, reading, found.id, filling, name=wanted)
            data = {**origin, "attempts": rows["attempts"], USER: acting_user()}
            event = insert(EventRow).values(
                campaign_id=campaign_id,
                at=timestamp(store.database.now(filling)),
                kind=kind,
                data_json=canonical_json(data),
            )
            filling.execute(event)
    return _copied(source, store, rows)


def _copy_rows(
    source: Store,
    reading: Connection,
    campaign_id: int,
    filling: Connection,
    *,
    name: str | None = None,
) -> tuple[int, Counter[str]]:
    """Copy a campaign's rows, as `name` or under its own, under ids that are free in the target.

    Returns the campaign's id there, and the number of rows by table.
    """
    new_ids: dict[str, dict[Any, int]] = {table: {} for table in TABLES}
    counts: Counter[str] = Counter()
    for table, batch in _rows_of(source, reading, campaign_id):
        refers = {key.parent.name: new_ids[key.column.table.name] for key in table.foreign_keys}
        values = [
            {key: refers[key].get(value) if key in refers else value for key, value in row.items()}
            for row in batch
        ]
        if name is not None and table is CampaignRow.__table__:
            values[0]["name"] = name
        old = [row.pop("id", None) for row in values]
        try:
            if "id" in table.columns:
                made = insert(table).returning(table.c.id, sort_by_parameter_order=True)
                new_ids[table.name].update(
                    zip(old, filling.execute(made, values).scalars(), strict=True)
                )
            else:
                filling.execute(insert(table), values)
        except DBAPIError as error:
            of_the_rows = isinstance(error, IntegrityError | DataError)
            if not of_the_rows and getattr(error.orig, "sqlstate", None) != WRONG_TYPE:
                raise
            raise StoreUnusable(
                f"{source.url} holds rows of {table.name} that no store can hold:"
                f" {first_line(error)}",
                hint=f"nothing was copied; see which: frontrunner store check --store {source.url}",
            ) from error
        counts[table.name] += len(values)
    return new_ids["campaigns"][campaign_id], counts


def _rows_of(
    store: Store, connection: Connection, campaign_id: int
) -> Iterator[tuple[Table, list[Columns]]]:
    """Yield a campaign's rows in batches, in the order of their keys, with text as PostgreSQL can
    hold it.
    """
    present = set(inspect(connection).get_table_names())
    for table in (Base.metadata.tables[name] for name in TABLES if name in present):
        with store.database.translated():  # which names this store, not one that is copied to
            query = (
                select(table)
                .where(of_campaign(table, campaign_id))
                .order_by(*table.primary_key.columns)
            )
            for part in connection.execute(query).mappings().partitions(BATCH):
                yield (
                    table,
                    [
                        {key: storable(v) if isinstance(v, str) else v for key, v in row.items()}
                        for row in part
                    ],
                )


def of_campaign(table: Table, campaign_id: int) -> ColumnElement[bool]:
    """Return the condition for the rows of a campaign."""
    if table.name == "campaigns":
        return table.c.id == campaign_id
    if "campaign_id" in table.columns:
        return table.c.campaign_id == campaign_id
    return table.c.attempt_id.in_(
        select(AttemptRow.id).where(AttemptRow.campaign_id == campaign_id)
    )


def first_line(error: DBAPIError) -> str:
    """Return the first line of what the database says."""
    return next(iter(str(error.orig).splitlines()), "")
