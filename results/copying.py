"""A whole store into another one, of the same kind of database or of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, func, insert, inspect, select, text

from frontrunner.results import leases
from frontrunner.results.codec import storable
from frontrunner.results.engine import Database
from frontrunner.results.schema import Base, CampaignRow, StoreRow
from frontrunner.spaces.errors import AlreadyDriven, InvalidInput

BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What was copied: how many campaigns, and how many rows of each table."""

    source: str
    target: str
    campaigns: int
    rows: dict[str, int]


def copy(source: Database, target: Database) -> Copied:
    """Copy every row of a store into one that holds no campaign yet, in one transaction.

    Rows keep their ids. Raises `AlreadyDriven` while a driver holds a campaign, since a driver of the copy would end
    its probes, and `InvalidInput` where the target holds campaigns.
    """
    now = source.clock()
    with source.read() as reading, target.write(whole_store=True) as writing:
        refuse_driven(reading, source, now)
        if writing.execute(select(CampaignRow.id).limit(1)).first() is not None:
            raise InvalidInput(f"{target.address} holds campaigns already", hint="name a new store to copy to")
        there = set(inspect(reading).get_table_names())
        tables = [table for table in Base.metadata.sorted_tables if table.name != StoreRow.__tablename__]
        rows = {table.name: _copy_table(reading, writing, table) for table in tables if table.name in there}
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


def _copy_table(reading: Connection, writing: Connection, table: Table) -> int:
    copied = 0
    for batch in _batches(reading, table):
        writing.execute(insert(table), batch)
        copied += len(batch)
    if writing.dialect.name == "postgresql" and "id" in table.columns and copied:
        last = writing.execute(select(func.max(table.c.id))).scalar_one()
        raised = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :last)")
        writing.execute(raised, {"name": table.name, "last": last})
    return copied


def _batches(connection: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    """The table's rows in the order of their keys; text without what PostgreSQL does not hold."""
    rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
    for part in rows.partitions(BATCH):
        yield [
            {key: storable(value) if isinstance(value, str) else value for key, value in row.items()} for row in part
        ]
