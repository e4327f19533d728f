"""Where the text is that SQLite could not hand out: it names no row of text that is no UTF-8, or no JSON."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from sqlalchemy import Table

from frontrunner.results.address import StoreAddress
from frontrunner.results.schema import Base

SAID_BY_SQLITE = ("Could not decode to UTF-8", "malformed JSON")
"""How its messages about text begin."""


def broken_text(address: StoreAddress) -> str | None:
    """The first cell of an SQLite store whose text cannot be read, with its row; None where none is found."""
    uri = address.sqlite_uri(mode="ro", immutable=not address.has_log)
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = bytes
            found = (_in_table(connection, table) for table in Base.metadata.sorted_tables)
            return next((place for place in found if place is not None), None)
    except sqlite3.Error:
        return None  # the error that is being explained says enough


def _in_table(connection: sqlite3.Connection, table: Table) -> str | None:
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table.name,)).fetchone()
    names = [column.name for column in table.columns]
    listed = ", ".join(names)
    for row in connection.execute(f"SELECT {listed} FROM {table.name}") if there else ():  # noqa: S608 - the schema's names
        for name, held in zip(names, row, strict=True):
            why = _why_broken(name, held) if isinstance(held, bytes) else None
            if why is not None:
                return f"{table.name} row {row[0]}, {name}: {why}"
    return None


def _why_broken(name: str, held: bytes) -> str | None:
    try:
        text = held.decode()
        if name.endswith("_json"):
            json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None
