"""Connections and transactions of a store's database, whichever it is.

What differs between databases stays in this file and in those it imports: `sqlite`, `server`, `database_errors`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from frontrunner.results.address import StoreAddress
from frontrunner.results.cells import DamagedCell
from frontrunner.results.clock import Clock, utc_now
from frontrunner.results.database_errors import ConnectionLost, damaged, unusable
from frontrunner.results.rows import refuse_damaged_rows
from frontrunner.results.server import READING, WRITING, ServerClock, server_engine
from frontrunner.results.sqlite import WRITES, file_state, sqlite_engine
from frontrunner.spaces.errors import StoreUnusable

SWITCH_RETRY_S = 0.02
RECONNECT_S = 120.0
"""How long a write waits for a database server that answered before: a restart with its recovery takes less."""
RECONNECT_PAUSE_S = 0.25
WHOLE_STORE = 0x66726F6E74
"""The number of the advisory lock that a write of the whole store holds in PostgreSQL."""


class Database:
    """One open database. Safe to use from several threads; each transaction has its own connection."""

    def __init__(self, address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> None:
        self.address = address
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._held = threading.local()
        if address.path is not None:
            self._engine = sqlite_engine(address, read_only=read_only, busy_timeout_s=busy_timeout_s)
        else:
            self._engine = server_engine(address, lock_timeout_s=busy_timeout_s)
        self.clock: Clock = utc_now if address.path is not None else ServerClock(self._engine)
        """The time by which leases are judged: that of the machine that holds the database."""

    @property
    def is_server(self) -> bool:
        """Whether connections lead over a network, and may break while the database lives on."""
        return self.address.path is None

    def close(self) -> None:
        """Close every connection. SQLite then folds the log into the file, unless others still use it."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have every `read` of this thread until the end be the same transaction, and so see the same state."""
        self.clock()  # a server is asked by a connection of its own, so before this one is taken
        with self.read() as connection:
            outer, self._held.connection = self._connection_held(), connection
            try:
                yield
            finally:
                self._held.connection = outer

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the store throughout."""
        held = self._connection_held()
        if held is not None:
            yield held
            return
        path = self.address.path if self.read_only and not self.address.has_log else None
        before = file_state(path) if path is not None and path.exists() else None
        with self.translated(), self._engine.connect() as connection:
            marked = connection.execution_options(**READING) if self.is_server else connection
            with marked.begin():
                yield marked
        if path is not None and before is not None and file_state(path) != before:
            raise StoreUnusable(f"{path} was written to while it was read", hint="run the command again")

    @contextmanager
    def write(self, *, whole_store: bool = False) -> Iterator[Connection]:
        """A transaction that commits at the end.

        In SQLite it holds the store's only write lock from its start. In PostgreSQL it holds the rows that it locks:
        a driver's transactions begin with their campaign's row, and thus wait for one another and for nobody else.
        What writes more than one campaign's rows sets `whole_store`, and then waits for others that did.
        """
        if self.read_only:
            raise StoreUnusable(f"{self.address} was opened read-only")
        with self.translated(), self._connected() as connection:
            marked = connection.execution_options(**(WRITING if self.is_server else {WRITES: True}))
            with marked.begin():
                if whole_store and self.is_server:
                    marked.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": WHOLE_STORE})
                yield marked

    def use_log(self) -> None:
        """Switch an SQLite file that is known to be ours to a write-ahead log, which it then keeps.

        SQLite does not apply the busy timeout to the switch, so this waits for other programs itself.
        """
        if self.is_server:
            return
        give_up = time.monotonic() + self._busy_timeout_s
        with self.translated(), closing(self._engine.raw_connection()) as connection:
            while True:
                try:
                    connection.cursor().execute("PRAGMA journal_mode = WAL")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > give_up:
                        raise
                    time.sleep(SWITCH_RETRY_S)
                else:
                    return

    def _connection_held(self) -> Connection | None:
        """The transaction of `reading`, where this thread is within it."""
        found: Connection | None = getattr(self._held, "connection", None)
        return found

    def _connected(self) -> Connection:
        """A connection. A server that is being restarted is waited for, for `RECONNECT_S`."""
        give_up = time.monotonic() + RECONNECT_S
        while True:
            try:
                return self._engine.connect()
            except OperationalError:
                if not self.is_server or time.monotonic() > give_up:
                    raise
                time.sleep(RECONNECT_PAUSE_S)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what the database says went wrong into `StoreUnusable`; broken constraints are our own fault.

        `read` and `write` do so by themselves. Within a transaction of another database, this says whose error it is.
        """
        try:
            yield
        except DamagedCell as error:
            raise damaged(self.address, error.finding) from error
        except IntegrityError:
            raise
        except (DBAPIError, sqlite3.Error) as error:
            raise unusable(error, self.address, self._busy_timeout_s, read_only=self.read_only) from error


def quick_check(database: Database) -> None:
    """Read every page of an SQLite store; raises `StoreUnusable` where one is damaged. Other stores pass."""
    if database.is_server:
        return
    with database.read() as connection:
        finding = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if finding != "ok":
            refuse_damaged_rows(connection)  # which names the row where it can
            raise damaged(database.address, str(finding))


__all__ = ["RECONNECT_S", "ConnectionLost", "Database", "quick_check"]
