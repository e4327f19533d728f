"""A whole store into another one, of the same kind of database or of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, func, insert, inspect, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from frontrunner.results import leases
from frontrunner.results.codec import storable
from frontrunner.results.engine import Database
from frontrunner.results.opening import make_tables
from frontrunner.results.schema import Base, CampaignRow, StoreRow
from frontrunner.spaces.errors import AlreadyDriven, InvalidInput, StoreUnusable

BATCH = 500
WRONG_TYPE = "42804"
"""PostgreSQL's code for a value of another type than its column's, as a file of SQLite may hold."""
Batch = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What was copied: how many campaigns, and how many rows of each table."""

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
    with source.read() as reading, target.write(whole_store=True) as writing:
        refuse_driven(reading, source, now)
        make_tables(writing, made_at)
        if writing.execute(select(CampaignRow.id).limit(1)).first() is not None:
            raise InvalidInput(f"{target.address} holds campaigns already", hint="name a new store to copy to")
        there = set(inspect(reading).get_table_names())
        tables = [table for table in Base.metadata.sorted_tables if table.name != StoreRow.__tablename__]
        rows = {}
        for table in tables:
            if table.name in there:
                rows[table.name] = _copy_table(source, _batches(source, reading, table), writing, table)
    return Copied(
        source=str(source.address), target=str(target.address), campaigns=rows[CampaignRow.__tablename__], rows=rows
    )


def refuse_driven(connection: Connection, database: Database, now: datetime, name: str | None = None) -> None:
    """Raise `AlreadyDriven` where a live driver holds the named campaign, or (None) any, at a time of its clock.

    A server is asked for the time by a connection of its own, so before this one is taken.
    """
    for row in connection.execute(select(CampaignRow)).all():
        if name in (None, row.name) and leases.is_held(connection, row, now, file=database.address.path):
            raise AlreadyDriven(
                f"campaign {row.name} is driven by {row.driver_host}:{row.driver_pid}",
                hint="stop that driver first: Ctrl-C, or SIGTERM",
            )


def _copy_table(source: Database, batches: Iterator[Batch], writing: Connection, table: Table) -> int:
    copied = 0
    for batch in batches:
        try:
            writing.execute(insert(table), batch)
        except DBAPIError as error:
            if not _is_of_the_rows(error):
                raise
            raise StoreUnusable(
                f"{source.address} holds rows of {table.name} that no store can hold: {_first_line(error)}",
                hint=f"nothing was copied; see which: frontrunner store check --store {source.address}",
            ) from error
        copied += len(batch)
    if writing.dialect.name == "postgresql" and "id" in table.columns and copied:
        last = writing.execute(select(func.max(table.c.id))).scalar_one()
        raised = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :last)")
        writing.execute(raised, {"name": table.name, "last": last})
    return copied


def _is_of_the_rows(error: DBAPIError) -> bool:
    """Whether the values are to blame, and not the database that they were to be written to."""
    return isinstance(error, IntegrityError | DataError) or getattr(error.orig, "sqlstate", None) == WRONG_TYPE


def _first_line(error: DBAPIError) -> str:
    return (str(error.orig).splitlines() or [""])[0]


def _batches(source: Database, connection: Connection, table: Table) -> Iterator[Batch]:
    """The table's rows in the order of their keys; text without what PostgreSQL does not hold."""
    with source.translated():
        rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        for part in rows.partitions(BATCH):
            yield [
                {key: storable(value) if isinstance(value, str) else value for key, value in row.items()}
                for row in part
            ]
