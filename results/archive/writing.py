"""A campaign out of a store, as an archive."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, Table, inspect, select

from frontrunner.results.archive.lines import END, FORMAT, HEADER, VERSION, Chain, write_line
from frontrunner.results.clock import timestamp
from frontrunner.results.copying import refuse_driven
from frontrunner.results.schema import REVISION, AttemptRow, Base
from frontrunner.results.store import Store, find_campaign
from frontrunner.spaces.errors import InvalidInput, NotFound, writing

TABLES = (
    *("campaigns", "provenance", "trials", "attempts", "measurements"),
    *("endings", "failures", "standings", "events"),
)
"""The order of an archive: each row after those that it refers to."""
BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Archived:
    """What an archive holds; `sha256` is the hash of its last line, and so of all of it."""

    campaign: str
    file: str
    rows: int
    sha256: str


def archive(store: Store, campaign: str | None, path: Path) -> Archived:
    """Write the campaign (None: the newest) to a new file, whole or not at all.

    Raises `AlreadyDriven` while a driver holds the campaign, `InvalidInput` where the file exists or cannot be written,
    and `NotFound` where its folder, or the campaign, is missing.
    """
    if path.exists():
        raise InvalidInput(f"{path} exists already", hint="name another file")
    if not path.absolute().parent.is_dir():
        raise NotFound(f"there is no folder {path.absolute().parent} to write {path.name} to")
    with writing(path):
        return _written(store, campaign, path)


def _written(store: Store, campaign: str | None, path: Path) -> Archived:
    now = store.now()
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file, store.database.read() as connection:
            found = find_campaign(connection, campaign, store=store.url)
            refuse_driven(connection, store.database, now, found.name)
            chain = Chain()
            about = {"format": FORMAT, "version": VERSION, "revision": REVISION, "campaign": found.name}
            write_line(file, chain, HEADER, {**about, "written_at": timestamp(now)})
            rows = 0
            for table, row in _rows(connection, found.id):
                write_line(file, chain, table, row)
                rows += 1
            write_line(file, chain, END, {"rows": rows})
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return Archived(campaign=found.name, file=str(path), rows=rows, sha256=chain.sha256)


def _rows(connection: Connection, campaign_id: int) -> Iterator[tuple[str, dict[str, Any]]]:
    there = set(inspect(connection).get_table_names())
    for name in TABLES:
        if name not in there:  # a store of an earlier revision, which may be read
            continue
        for row in connection.execute(_of_campaign(Base.metadata.tables[name], campaign_id)).mappings():
            yield name, dict(row)


def _of_campaign(table: Table, campaign_id: int) -> Select[Any]:
    """The campaign's rows of one table, in the order of their keys."""
    query = select(table).order_by(*table.primary_key.columns)
    if table.name == "campaigns":
        return query.where(table.c.id == campaign_id)
    if "campaign_id" in table.columns:
        return query.where(table.c.campaign_id == campaign_id)
    attempts = select(AttemptRow.id).where(AttemptRow.campaign_id == campaign_id)
    return query.where(table.c.attempt_id.in_(attempts))
