"""Connections and transactions of a store's database: SQLite or PostgreSQL.

SQLite runs with a write-ahead log, so that readers never wait for the writer; with synchronous FULL, so that a power
cut loses nothing acknowledged; and with `BEGIN IMMEDIATE` for each write, since a transaction that first reads and then
writes fails at once when two do it together, whatever the busy timeout.

In PostgreSQL a write transaction runs at READ COMMITTED and locks rows: a driver's begins by updating its campaign's
row under its lease's epoch, and holds that row to its end. Everything else it writes belongs to that campaign, so
campaigns of other drivers are not waited for. SERIALIZABLE would promise the same, at the price of transactions that
fail at their commit. Reads run at REPEATABLE READ: they see one state.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, OperationalError

from frontrunner.results.address import StoreAddress, damaged
from frontrunner.results.records import Clock, utc_now
from frontrunner.results.rows import DamagedCell, refuse_damaged_rows
from frontrunner.spaces.errors import StoreUnusable, bad_value

SWITCH_RETRY_S = 0.02
RECONNECT_S = 120.0
"""How long a write waits for a database server that was reachable before: a restart with recovery takes less."""
RECONNECT_PAUSE_S = 0.25
RESYNC_S = 60.0
WHOLE_STORE = 0x66726F6E74
"""Number of the advisory lock that a write of the whole store holds in PostgreSQL."""
WRITES = "frontrunner_writes"
"""Execution option that marks a connection whose transaction will write."""
READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
WRITING = {"isolation_level": "READ COMMITTED"}
STALLED_WRITER_S = 30
"""After how long without a statement PostgreSQL ends the transaction of a client that was paused or cut off."""
CONNECTION: dict[str, Any] = {
    "application_name": "frontrunner",
    "connect_timeout": 10,
    # Without these a host that vanished is noticed after two hours.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
SHUTTING_DOWN = ("57P01", "57P02", "57P03", "25P03")
"""PostgreSQL's codes of a server that ends or starts, and of a session that it ended."""
NO_ROOM_FOR_LOG = ("SQLITE_IOERR_SHM", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY")
"""SQLite's errors where it cannot create the file that readers share a log by."""
BROKEN_TEXT = ("Could not decode to UTF-8", "malformed JSON")
"""How SQLite's messages about text begin; they name no row."""


class ConnectionLost(StoreUnusable):
    """The connection to a database server broke, so that it is unknown whether the transaction was committed."""


class Database:
    """One open database. Safe to use from several threads; each transaction has its own connection."""

    def __init__(self, address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> None:
        self.address = address
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._held = threading.local()
        if address.path is not None:
            self._engine = _sqlite_engine(address, read_only=read_only, busy_timeout_s=busy_timeout_s)
        else:
            self._engine = _server_engine(address, lock_timeout_s=busy_timeout_s)
        self.clock: Clock = utc_now if address.path is not None else ServerClock(self._engine)
        """The time by which leases are judged: that of the machine that holds the database."""

    @property
    def is_server(self) -> bool:
        """Whether connections lead over a network, and may break while the database goes on."""
        return self.address.path is None

    def close(self) -> None:
        """Close every connection. SQLite then folds the log into the file, unless others still use it."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make every `read` of this thread until the end one transaction, which sees one state."""
        self.clock()  # a server's clock is read through a connection of its own, so before this one is taken
        with self.read() as connection:
            outer, self._held.connection = self._connection_held(), connection
            try:
                yield
            finally:
                self._held.connection = outer

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the store throughout."""
        held = self._connection_held()
        if held is not None:
            yield held
            return
        path = self.address.path if self.read_only and not self.address.has_log else None
        before = _file_state(path) if path is not None and path.exists() else None
        with self.translated(), self._engine.connect() as connection:
            marked = connection.execution_options(**READING) if self.is_server else connection
            with marked.begin():
                yield marked
        if path is not None and before is not None and _file_state(path) != before:
            raise StoreUnusable(f"{path} was written to while it was read", hint="run the command again")

    @contextmanager
    def write(self, *, whole_store: bool = False) -> Iterator[Connection]:
        """Open a transaction that commits at the end.

        In SQLite it holds the store's only write lock from its start. In PostgreSQL it holds the rows that it locks:
        a driver's transactions begin with their campaign's row, and thus wait only for one another. A transaction that
        writes more than one campaign's rows sets `whole_store`, and then waits for others that did.
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

    def quick_check(self) -> None:
        """Read every page of an SQLite store; raises `StoreUnusable` where one is damaged. Other stores pass."""
        if self.is_server:
            return
        with self.read() as connection:
            finding = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if finding != "ok":
                refuse_damaged_rows(connection)  # which names the row where it can
                raise damaged(self.address, str(finding))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the database's errors into `StoreUnusable`; violated constraints are our own bugs and stay.

        `read` and `write` do so by themselves. Within a transaction of another database, this names this one.
        """
        try:
            yield
        except DamagedCell as error:
            raise damaged(self.address, error.finding) from error
        except IntegrityError:
            raise
        except (DBAPIError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def _connection_held(self) -> Connection | None:
        """Return the transaction of `reading`, where this thread is within it."""
        found: Connection | None = getattr(self._held, "connection", None)
        return found

    def _connected(self) -> Connection:
        """Connect, waiting up to `RECONNECT_S` for a server that is being restarted."""
        give_up = time.monotonic() + RECONNECT_S
        while True:
            try:
                return self._engine.connect()
            except OperationalError:
                if not self.is_server or time.monotonic() > give_up:
                    raise
                time.sleep(RECONNECT_PAUSE_S)

    def _unusable(self, error: DBAPIError | sqlite3.Error) -> StoreUnusable:
        if isinstance(error, DBAPIError) and self.is_server:
            return self._server_unusable(error)
        cause = error.orig if isinstance(error, DBAPIError) else error
        name, said = getattr(cause, "sqlite_errorname", ""), str(cause)
        if self.read_only and self.address.has_log and name.startswith(NO_ROOM_FOR_LOG):
            return StoreUnusable(
                f"{self.address} cannot be read: a log lies beside it, which needs one more file there ({said})",
                hint=f"copy {self.address} and {self.address}-wal to a folder that has room and may be written to,"
                " and read them there",
            )
        return self._file_unusable(name, said)

    def _file_unusable(self, name: str, said: str) -> StoreUnusable:
        """Return the error for one of SQLite's, by its name and its message."""
        if name.startswith("SQLITE_BUSY"):
            return self._locked("close the program that has the file open")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return self._full(said)
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or said.startswith(("no such table", "no such column")):
            return damaged(self.address, said)
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return StoreUnusable(
                f"{self.address} cannot be opened: {said}", hint="check the permissions of file and folder"
            )
        is_text = said.startswith(BROKEN_TEXT)
        return (
            damaged(self.address, self._broken_text() or said) if is_text else StoreUnusable(f"{self.address}: {said}")
        )

    def _server_unusable(self, error: DBAPIError) -> StoreUnusable:
        code = getattr(error.orig, "sqlstate", None) or ""
        said = next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)
        if error.connection_invalidated or code in SHUTTING_DOWN or code.startswith("08"):
            return ConnectionLost(
                f"{self.address}: the connection broke: {said}",
                hint="when the server is reachable again: frontrunner resume",
            )
        if code == "55P03":
            return self._locked("end the session that holds it: see pg_stat_activity")
        if code.startswith("53"):
            return self._full(said)
        if code in ("25006", "42501"):
            hint = "use a role that may write to this database"
            return StoreUnusable(f"{self.address} cannot be written: {said}", hint=hint)
        if not code:  # no session was made
            hint = "check host, port, user and database, and that the server runs"
            return StoreUnusable(f"{self.address} cannot be reached: {said}", hint=hint)
        return StoreUnusable(f"{self.address}: {said}")

    def _locked(self, hint: str) -> StoreUnusable:
        return StoreUnusable(
            f"{self.address}: another program held the write lock for more than {self._busy_timeout_s:g} s", hint=hint
        )

    def _full(self, said: str) -> StoreUnusable:
        return StoreUnusable(
            f"{self.address} cannot be written ({said}); what was stored before is safe",
            hint="free some space, then run the command again; for a campaign that it stopped: frontrunner resume",
        )

    def _broken_text(self) -> str | None:
        """Return the first cell of an SQLite store whose text cannot be read; None where none is found."""
        engine = _sqlite_engine(self.address, read_only=True, busy_timeout_s=self._busy_timeout_s)
        try:
            with engine.connect() as connection, with_undecodable_text(connection):
                refuse_damaged_rows(connection)
        except DamagedCell as error:
            return error.finding
        except (DBAPIError, sqlite3.Error):
            pass  # the error that is being explained is enough
        finally:
            engine.dispose()
        return None


class ServerClock:
    """The server's time, read once per minute and continued by this machine's monotonic clock in between.

    So drivers on several hosts judge leases by one clock, and a jump of their own clocks changes nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._read: tuple[datetime, float] | None = None

    def __call__(self) -> datetime:
        """Return the time in UTC. A server that is unreachable is not tried again within the next minute."""
        with self._lock:
            if self._read is None or time.monotonic() - self._read[1] > RESYNC_S:
                self._read = self._server_time(), time.monotonic()
            return self._continued(*self._read)

    def _server_time(self) -> datetime:
        try:
            with self._engine.connect() as connection:
                found: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        except DBAPIError:
            if self._read is None:
                raise
            return self._continued(*self._read)
        return found.astimezone(UTC)

    @staticmethod
    def _continued(read: datetime, at_s: float) -> datetime:
        return read + timedelta(seconds=time.monotonic() - at_s)


@contextmanager
def with_undecodable_text(connection: Connection) -> Iterator[None]:
    """Have SQLite hand out text that is not UTF-8, with surrogates in it, so that the row reader can name its place."""
    driver: Any = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        yield
        return
    before, driver.text_factory = driver.text_factory, lambda held: held.decode(errors="surrogateescape")
    try:
        yield
    finally:
        driver.text_factory = before


def _sqlite_engine(address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> Engine:
    """Return connections to the file; no file is touched before the first."""

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

    # A reader connects again each time, since whether there is a log changes between reads.
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool if read_only else QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")

    return engine


def _server_engine(address: StoreAddress, *, lock_timeout_s: float) -> Engine:
    """Return connections to the server, made when they are needed; each is tested before it is used again.

    Raises `InvalidInput` where the driver that the URL names is not installed.
    """
    # A connection that breaks is reported or replaced by us; the pool would print its traceback as well.
    logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())
    try:
        engine = create_engine(address.url, connect_args=CONNECTION, pool_pre_ping=True)
    except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
        raise bad_value(
            "store.url",
            str(address),
            "postgresql+psycopg://..., with psycopg installed",
            hint=f"{error}; run: pip install 'frontrunner[postgresql]', or use sqlite:///path",
        ) from error

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {int(lock_timeout_s * 1000)}")
            cursor.execute(f"SET idle_in_transaction_session_timeout = {STALLED_WRITER_S * 1000}")
            # A server may be configured to acknowledge before it has written; an acknowledged outcome is on disk.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    return engine


def _file_state(path: Path) -> tuple[int, int]:
    """Return (bytes, time of the last change in ns), by which a reader that was promised no writer finds one."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
