"""Text of a damaged SQLite file that is no text: found, and read nevertheless so that the other rules can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from frontrunner.results.audit.structure import TABLES

FETCHED = 2000
OF_ATTEMPT = "SELECT campaign_id FROM attempts WHERE id = ?"


def undecodable(connection: Connection, tables: frozenset[str]) -> list[dict[str, Any]]:
    """The cells of an SQLite store whose bytes are no UTF-8. A PostgreSQL server lets none in."""
    if connection.dialect.name != "sqlite":
        return []
    with _text_as(connection, bytes):
        return [found for table in TABLES if table in tables for found in _of_table(_driver(connection), table)]


@contextmanager
def readable(connection: Connection, *, is_damaged: bool) -> Iterator[None]:
    """Have bytes that are no UTF-8 read as escapes, where there are such."""
    if not is_damaged:
        yield
        return
    with _text_as(connection, lambda held: held.decode(errors="backslashreplace")):
        yield


def _of_table(driver: Any, table: str) -> Iterator[dict[str, Any]]:
    cursor = driver.execute(f"SELECT * FROM {table}")  # noqa: S608 - a constant
    names = [column[0] for column in cursor.description]
    while rows := cursor.fetchmany(FETCHED):
        cells = [cell for row in rows for cell in row if type(cell) is bytes]
        if not _is_text(b"\n".join(cells)):  # a line break ends any character, so two cells do not make one together
            for row in rows:
                yield from _of_row(driver, table, dict(zip(names, row, strict=True)))


def _of_row(driver: Any, table: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for column, cell in row.items():
        if type(cell) is not bytes or _is_text(cell):
            continue
        campaign = row["id"] if table == "campaigns" else row.get("campaign_id")
        if "attempt_id" in row:
            found = driver.execute(OF_ATTEMPT, (row["attempt_id"],)).fetchone()
            campaign = found and found[0]
        yield {
            "campaign": campaign,
            "column": f"{table}.{column}",
            "row": next(iter(row.values())),
            "why": f"it is no UTF-8: {cell[:40]!r}",
        }


def _is_text(cell: bytes) -> bool:
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


def _driver(connection: Connection) -> Any:
    """The connection of Python's own sqlite3 module below SQLAlchemy's, in the same transaction."""
    return connection.connection.driver_connection


@contextmanager
def _text_as(connection: Connection, factory: Callable[[bytes], object]) -> Iterator[None]:
    driver = _driver(connection)
    before, driver.text_factory = driver.text_factory, factory
    try:
        yield
    finally:
        driver.text_factory = before
