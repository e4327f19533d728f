"""Connections and transactions of a store's database, and the tables in it: SQLite or PostgreSQL.

SQLite runs with a write-ahead log, so that readers never wait for the writer; with synchronous
FULL, so that a power cut loses nothing acknowledged; and with `BEGIN IMMEDIATE` for each write,
since a transaction that reads first and then writes fails at once when two do it together.

In PostgreSQL a write runs at READ COMMITTED and begins by updating its campaign's row under its
lease's epoch; all else that it writes belongs to that campaign. Reads run at REPEATABLE READ.

A store has a revision, which counts every change of its tables, and a schema version, which counts
those that an earlier frontrunner could not work with. Missing revisions are made when a store is
opened for writing.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import (
    Connection,
    Engine,
    NullPool,
    QueuePool,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy import text as sql
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
)

from frontrunner.results.address import (
    StoreAddress,
    check_file,
    damaged,
    parse_address,
    refuse_network,
)
from frontrunner.results.outcome import FailureKind
from frontrunner.results.records import Clock, timestamp, utc_now
from frontrunner.results.rows import DamagedCell, cell, unreadable_rows
from frontrunner.results.schema import (
    FIRST_REVISION,
    REVISION,
    REVISIONS,
    SCHEMA_VERSION,
    Base,
    FailureRow,
    StandingRow,
    StoreRow,
    checked,
)
from frontrunner.spaces.errors import StoreUnusable, bad_value, installing

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])
SWITCH_RETRY_S = 0.02
RECONNECT_S = 120.0
"""How long a write waits for a database server that was reachable before."""
RECONNECT_PAUSE_S = 0.25
WHOLE_STORE = 0x66726F6E74
"""Number of PostgreSQL's advisory lock for a write of the whole store."""
WRITES = "frontrunner_writes"
READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
WRITING = {"isolation_level": "READ COMMITTED"}
STALLED_WRITER_S = 30
"""After this time without a statement PostgreSQL ends the transaction of a client that was paused
or cut off.
"""
CONNECTION: dict[str, Any] = {
    "application_name": "frontrunner",
    "connect_timeout": 10,
    # Without these a host that vanished is noticed after two hours.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
SERVER_IS_GONE = ("57P01", "57P02", "57P03", "25P03", "08")
"""PostgreSQL's codes of a server that ends or starts, an ended session, and a broken connection."""
DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
DAMAGED_WORDS = ("no such table", "no such column", "malformed JSON")
LOCKED = "{store}: another program held the write lock for more than {timeout:g} s"
ERRORS: dict[tuple[str, ...], tuple[str, str]] = {
    ("SQLITE_BUSY",): (LOCKED, "close the program that has the file open"),
    ("55P03",): (LOCKED, "end the session that holds it: see pg_stat_activity"),
    ("SQLITE_FULL", "SQLITE_IOERR", "53"): (
        "{store} cannot be written ({said}); what was stored before is safe",
        (
            "free some space, then run the command again; for a campaign that it stopped:"
            " frontrunner resume"
        ),
    ),
    ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM"): (
        "{store} cannot be opened: {said}",
        "check the permissions of file and folder",
    ),
    ("25006", "42501"): (
        "{store} cannot be written: {said}",
        "use a role that may write to this database",
    ),
    ("unreachable",): (
        "{store} cannot be reached: {said}",
        "check host, port, user and database, and that the server runs",
    ),
}
"""Beginnings of SQLite's and PostgreSQL's error codes, the message, and the hint."""


class ConnectionLost(StoreUnusable):
    """The connection to a database server broke, so that it is unknown whether the transaction was
    committed.
    """


class StoreReplaced(StoreUnusable):
    """The file of an open store was removed, or another one is in its place."""


def repeatable(method: M) -> M:
    """Have a method that only reads, of an object with a `database`, run again when the connection
    to a database server breaks.
    """

    @wraps(method)
    def repeated(self: Any, *arguments: Any, **named: Any) -> Any:
        return self.database.repeated(lambda: method(self, *arguments, **named))

    return cast(M, repeated)


class Database:
    """One open database. Safe to use from several threads; each transaction has its own
    connection.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        read_only: bool,
        busy_timeout_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.address = address
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._clock = clock
        self._held = threading.local()
        self._opened_file: tuple[int, int] | None = None
        if self.is_server:
            self._engine = _server_engine(address, lock_timeout_s=busy_timeout_s)
        else:
            self._engine = _sqlite_engine(
                address, read_only=read_only, busy_timeout_s=busy_timeout_s
            )

    @property
    def is_server(self) -> bool:
        """Whether connections may break while the database goes on."""
        return self.address.path is None

    def now(self, connection: Connection | None = None) -> datetime:
        """Return the time by which leases are judged: that of the machine that holds the
        database.
        """
        if self._clock is not None or not self.is_server:
            return (self._clock or utc_now)()
        with self.read() if connection is None else nullcontext(connection) as reading:
            found: datetime = reading.execute(sql("SELECT clock_timestamp()")).scalar_one()
            return found.astimezone(UTC)

    def close(self) -> None:
        """Close every connection; SQLite then folds the log into the file, unless others still use
        it.
        """
        self._engine.dispose()

    def remember_file(self) -> None:
        """Take the file that is there now for the one that is open."""
        if self.address.path is not None:
            self._opened_file = _file_identity(self.address.path)

    def check_file_is_there(self) -> None:
        """Raise `StoreReplaced` where the path no longer names the file that was opened.

        SQLite goes on to write into a file whose name was removed, where nobody finds it again.
        """
        if self._opened_file is None or self.address.path is None:
            return
        try:
            is_same = _file_identity(self.address.path) == self._opened_file
            what = "was replaced by another file"
        except FileNotFoundError:
            is_same, what = False, "was removed"
        if not is_same:
            raise StoreReplaced(
                f"{self.address} {what} while it was in use, and nothing was stored since",
                hint=(
                    "put the file back, with the -wal and -shm files beside it, and run the command"
                    " again"
                ),
            )

    def repeated(self, read: Callable[[], T]) -> T:
        """Return the result of a function that only reads; call it again while the connection to a
        database server breaks, for up to `RECONNECT_S`.
        """
        give_up = time.monotonic() + RECONNECT_S
        while True:
            try:
                return read()
            except ConnectionLost:
                if self._connection_held() is not None or time.monotonic() > give_up:
                    raise
            with self.translated(), self._connected():  # waits until the server is there again
                pass

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make every `read` of this thread until the end one transaction."""
        with self.read() as connection:
            outer, self._held.connection = self._connection_held(), connection
            try:
                yield
            finally:
                self._held.connection = outer

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the store throughout."""
        if (held := self._connection_held()) is not None:
            yield held
            return
        path = self.address.path if self.read_only and not self.address.has_log else None
        before = _file_state(path) if path is not None and path.exists() else None
        with self.translated(), self._engine.connect() as connection:
            marked = connection.execution_options(**READING) if self.is_server else connection
            with marked.begin():
                yield marked
        if path is not None and before is not None and _file_state(path) != before:
            raise StoreUnusable(
                f"{path} was written to while it was read", hint="run the command again"
            )

    @contextmanager
    def write(self, *, whole_store: bool = False) -> Iterator[Connection]:
        """Open a transaction that commits at the end.

        One that writes more than one campaign's rows sets `whole_store`, and then waits for others
        that did.
        """
        if self.read_only:
            raise StoreUnusable(f"{self.address} was opened read-only")
        self.check_file_is_there()
        with self.translated(), self._connected() as connection:
            marked = connection.execution_options(**(WRITING if self.is_server else {WRITES: True}))
            with marked.begin():
                if whole_store and self.is_server:
                    marked.execute(
                        sql("SELECT pg_advisory_xact_lock(:number)"), {"number": WHOLE_STORE}
                    )
                yield marked
        self.check_file_is_there()  # else the commit went into a file without a name

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the database's errors into `StoreUnusable`; violated constraints are our own bugs
        and stay.
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
        cause = error.orig if isinstance(error, DBAPIError) else error
        said = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        if self.is_server:
            code = (
                getattr(cause, "sqlstate", None) or "unreachable"
            )  # without a code no session was made
            if (isinstance(error, DBAPIError) and error.connection_invalidated) or code.startswith(
                SERVER_IS_GONE
            ):
                hint = "when the server is reachable again: frontrunner resume"
                return ConnectionLost(f"{self.address}: the connection broke: {said}", hint=hint)
        else:
            code = getattr(cause, "sqlite_errorname", "")
            if code.startswith(DAMAGED) or said.startswith(DAMAGED_WORDS):
                return damaged(self.address, said)
        for codes, (message, hint) in ERRORS.items():
            if code.startswith(codes):
                filled = message.format(store=self.address, said=said, timeout=self._busy_timeout_s)
                return StoreUnusable(filled, hint=hint)
        return StoreUnusable(f"{self.address}: {said}")

    def use_log(self) -> None:
        """Switch an SQLite file to a write-ahead log, which it then keeps.

        SQLite does not apply the busy timeout to the switch, so this waits itself.
        """
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
        """Read every page of an SQLite store; raises `StoreUnusable` naming the row where one is
        damaged.
        """
        with self.read() as connection:
            finding = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if finding != "ok":
                for _, error in unreadable_rows(connection):
                    raise error
                raise damaged(self.address, str(finding))


def _sqlite_engine(address: StoreAddress, *, read_only: bool, busy_timeout_s: float) -> Engine:

    def connect() -> sqlite3.Connection:
        # Reading a log needs files beside the store; without a log they would be made for nothing.
        connection = address.connect_sqlite(
            mode="ro" if read_only else "rwc",
            immutable=read_only and not address.has_log,
            timeout_s=busy_timeout_s,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        # So that the row reader, which refuses surrogates, can name the place of text that is not
        # UTF-8.
        connection.text_factory = lambda held: held.decode(errors="surrogateescape")
        return connection

    # A reader connects again each time, since whether there is a log changes between reads.
    engine = create_engine(
        "sqlite://", creator=connect, poolclass=NullPool if read_only else QueuePool
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN"
        )

    return engine


def _server_engine(address: StoreAddress, *, lock_timeout_s: float) -> Engine:
    # A connection that breaks is reported or replaced by us; the pool would print its traceback as
    # well.
    logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())
    settings = {
        "lock_timeout": int(lock_timeout_s * 1000),
        "idle_in_transaction_session_timeout": STALLED_WRITER_S * 1000,
        "synchronous_commit": "on",  # a server may acknowledge by default before it has written
    }
    options = " ".join(
        [
            str(address.url.query.get("options", "")),
            *(f"-c {key}={settings[key]}" for key in settings),
        ]
    )
    try:
        return create_engine(
            address.url, connect_args=CONNECTION | {"options": options}, pool_pre_ping=True
        )
    except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
        raise bad_value(
            "store.url",
            str(address),
            "postgresql+psycopg://..., with psycopg installed",
            hint=f"{error}; run: {installing('frontrunner[postgresql]')}, or use sqlite:///path",
        ) from error


def _file_identity(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_dev, state.st_ino


def _file_state(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def open_database(
    url: str, *, create: bool, read_only: bool, clock: Clock | None, busy_timeout_s: float
) -> Database:
    """Open the database of a store of this version; see `frontrunner.results.store.open_store`."""
    address = parse_address(url)
    if address.path is not None:
        check_file(address, address.path, create=create and not read_only)
        if not read_only:
            refuse_network(address.path)
    database = Database(address, read_only=read_only, busy_timeout_s=busy_timeout_s, clock=clock)
    try:
        if read_only:
            with database.read() as connection:
                _refuse_other_versions(connection, address)
        else:
            _prepare(database, create=create)
            database.remember_file()
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: Database, *, create: bool) -> None:
    """Check an SQLite file, and create or upgrade the tables."""
    if not database.is_server:
        database.quick_check()  # reads the whole file, which is too slow for a reading command
    with database.read() as connection:
        is_empty = create and not inspect(connection).get_table_names()
        if not is_empty:
            _refuse_other_versions(connection, database.address)
        is_older = revision_of(connection) < REVISION
    if is_empty or is_older:
        with database.write(whole_store=True) as connection:
            _make_tables(connection, timestamp(database.now(connection)))
    if not database.is_server:
        database.use_log()  # only now is the file known to be a store, and ours to change


def revision_of(connection: Connection) -> str:
    """Return the revision of a store's tables: the first, for a store that states none."""
    if not inspect(connection).has_table(REVISIONS.name):
        return FIRST_REVISION
    return connection.execute(select(REVISIONS.c.version_num)).scalar() or FIRST_REVISION


def _make_tables(connection: Connection, now: str) -> None:
    """Make every change of the revisions that the store lacks, unless another process just did."""
    is_new = not inspect(connection).get_table_names()
    before = revision_of(connection)
    if not is_new and before >= REVISION:
        return
    if not is_new and before < "0002":
        indexes = Base.metadata.tables[StandingRow.__tablename__].indexes
        by_tokens = next(index for index in indexes if index.name == "standings_by_tokens")
        by_tokens.drop(connection)
        by_tokens.create(connection)
    if not is_new and before < "0009":
        _allow_new_kinds(connection)
    # What is missing: revisions 0003 to 0008 added a table each.
    Base.metadata.create_all(connection)
    REVISIONS.create(connection, checkfirst=True)
    connection.execute(delete(REVISIONS))
    connection.execute(insert(REVISIONS).values(version_num=REVISION))
    if is_new:
        connection.execute(
            insert(StoreRow).values(id=1, schema_version=SCHEMA_VERSION, created_at=now)
        )


def _allow_new_kinds(connection: Connection) -> None:
    """Renew the constraint on kinds of failures, to which revision 0009 added two kinds."""
    failures = Base.metadata.tables[FailureRow.__tablename__]
    if connection.dialect.name == "postgresql":
        kinds = checked("kind", FailureKind)
        allowed = kinds.sqltext
        connection.execute(sql(f"ALTER TABLE failures DROP CONSTRAINT {kinds.name}"))
        connection.execute(
            sql(f"ALTER TABLE failures ADD CONSTRAINT {kinds.name} CHECK ({allowed})")
        )
        return
    # SQLite cannot change a constraint of a table.
    connection.execute(sql("ALTER TABLE failures RENAME TO failures_before"))
    failures.create(connection)
    columns = ", ".join(column.name for column in failures.columns)
    connection.execute(
        sql(f"INSERT INTO failures ({columns}) SELECT {columns} FROM failures_before")  # noqa: S608 - names of ours
    )
    connection.execute(sql("DROP TABLE failures_before"))


def _refuse_other_versions(connection: Connection, address: StoreAddress) -> None:
    """Raise `StoreUnusable` for what is not a store, and for other schema versions."""
    is_store = inspect(connection).has_table(StoreRow.__tablename__)
    row = (
        connection.execute(select(StoreRow.id, StoreRow.schema_version)).first()
        if is_store
        else None
    )
    if row is None:
        raise StoreUnusable(f"{address} holds no frontrunner store", hint="name another file")
    version = cell(StoreRow.schema_version, row.schema_version, row.id)
    if version != SCHEMA_VERSION:
        message = f"{address} has schema {version}, this version needs {SCHEMA_VERSION}"
        raise StoreUnusable(message, hint="upgrade frontrunner")
