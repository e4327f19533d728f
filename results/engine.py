"""Connections and transactions; whatever differs between databases stays in this file.

SQLite runs with a write-ahead log, so that readers never wait for the writer; with synchronous FULL, so
that a power cut loses nothing acknowledged; and with `BEGIN IMMEDIATE` for each write, since a transaction
that first reads and then writes fails at once when two do it together, whatever the busy timeout.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchModuleError

from frontrunner.results.address import StoreAddress
from frontrunner.spaces.errors import StoreUnusable, bad_value

WRITES = "frontrunner_writes"
"""Execution option that marks a connection whose transaction will write."""

SWITCH_RETRY_S = 0.02


class Database:
    """One open database. Safe to use from several threads; each transaction has its own connection."""

    def __init__(self, address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> None:
        self.address = address
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        if address.path is not None:
            self._engine = _sqlite_engine(address, read_only=read_only, busy_timeout_s=busy_timeout_s)
        else:
            self._engine = _server_engine(address)

    def close(self) -> None:
        """Close every connection. SQLite then folds the log into the file, unless others still use it."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the store throughout."""
        path = self.address.path if self.read_only and not self.address.has_log else None
        before = _file_state(path) if path is not None and path.exists() else None
        with self._translated(), self._engine.connect() as connection, connection.begin():
            yield connection
        if path is not None and before is not None and _file_state(path) != before:
            raise StoreUnusable(f"{path} was written to while it was read", hint="run the command again")

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the store's only write lock from its start; commits at the end."""
        if self.read_only:
            raise StoreUnusable(f"{self.address} was opened read-only")
        with self._translated(), self._engine.connect() as connection:
            marked = connection.execution_options(**{WRITES: True})
            with marked.begin():
                yield marked

    def use_log(self) -> None:
        """Switch an SQLite file that is known to be ours to a write-ahead log, which it then keeps.

        SQLite does not apply the busy timeout to the switch, so this waits for other programs itself.
        """
        if self.address.path is None:
            return
        give_up = time.monotonic() + self._busy_timeout_s
        with self._translated(), closing(self._engine.raw_connection()) as connection:
            while True:
                try:
                    connection.cursor().execute("PRAGMA journal_mode = WAL")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > give_up:
                        raise
                    time.sleep(SWITCH_RETRY_S)
                else:
                    return

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what the database says went wrong into `StoreUnusable`; broken constraints are our own fault."""
        try:
            yield
        except IntegrityError:
            raise
        except (DBAPIError, sqlite3.Error) as error:
            raise _unusable(error, self.address, self._busy_timeout_s) from error


def quick_check(database: Database) -> None:
    """Read every page of an SQLite store; raises `StoreUnusable` where one is damaged. Other stores pass."""
    if database.address.path is None:
        return
    with database.read() as connection:
        finding = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if finding != "ok":
        raise _damaged(database.address, str(finding))


def _sqlite_engine(address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> Engine:
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


def _server_engine(address: StoreAddress) -> Engine:
    try:
        return create_engine(address.url, isolation_level="REPEATABLE READ")
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise bad_value(
            "store.url", str(address), "a database whose driver is installed", hint=f"{error}; or use sqlite:///path"
        ) from error


def _file_state(path: Path) -> tuple[int, int]:
    """(size in bytes, time of the last change in ns): what a reader that was promised no writer checks afterwards."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _unusable(error: DBAPIError | sqlite3.Error, address: StoreAddress, busy_timeout_s: float) -> StoreUnusable:
    cause = error.orig if isinstance(error, DBAPIError) else error
    name = getattr(cause, "sqlite_errorname", "")
    if name.startswith("SQLITE_BUSY"):
        return StoreUnusable(
            f"{address}: another program held the write lock for more than {busy_timeout_s:g} s",
            hint="close the program that has the file open",
        )
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return StoreUnusable(
            f"{address} cannot be written ({cause}); what was stored before is safe",
            hint="free some space, then run: frontrunner resume",
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _damaged(address, str(cause))
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreUnusable(f"{address} cannot be opened: {cause}", hint="check the permissions of file and folder")
    return StoreUnusable(f"{address}: {cause}")


def _damaged(address: StoreAddress, finding: str) -> StoreUnusable:
    return StoreUnusable(f"{address} is damaged: {finding}", hint="restore a backup; the file was left as it is")
