"""How SQLite is used.

It runs with a write-ahead log, so that readers never wait for the writer; with synchronous FULL, so that a power cut
loses nothing acknowledged; and with `BEGIN IMMEDIATE` for each write, since a transaction that first reads and then
writes fails at once when two do it together, whatever the busy timeout.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event

from frontrunner.results.address import StoreAddress

WRITES = "frontrunner_writes"
"""Execution option that marks a connection whose transaction will write."""


def sqlite_engine(address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> Engine:
    """Connections to the file; no file is touched before the first."""

    def connect() -> sqlite3.Connection:
        # Reading a log needs files beside the store; without a log they would be made for nothing.
        mode = "ro" if read_only else "rwc"
        uri = address.sqlite_uri(mode=mode, immutable=read_only and not address.has_log)
        # Transactions are begun by the listener below, not by the driver, hence isolation_level None.
        connection = sqlite3.connect(
            uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    # A reader's connection is opened anew each time, since whether there is a log changes between reads.
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool if read_only else QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")

    return engine


def file_state(path: Path) -> tuple[int, int]:
    """(size in bytes, time of the last change in ns): what a reader that was promised no writer checks afterwards."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
