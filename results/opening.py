"""Opening a database as a store: what lies there is checked, and made only where nothing does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Connection, insert, inspect, select

from frontrunner.results.address import parse_address
from frontrunner.results.clock import Clock, timestamp
from frontrunner.results.engine import Database, quick_check
from frontrunner.results.file_system import refuse_network
from frontrunner.results.schema import OLDEST_READABLE_SCHEMA, REVISION, REVISIONS, SCHEMA_VERSION, Base, StoreRow
from frontrunner.results.store_file import check_file
from frontrunner.results.upgrading import migrate, revision_of
from frontrunner.spaces.errors import StoreUnusable

UPGRADE_WAIT_S = 60.0


def open_database(url: str, *, create: bool, read_only: bool, clock: Clock | None, busy_timeout_s: float) -> Database:
    """The database of a store of this version; see `frontrunner.results.store.open_store`."""
    create = create and not read_only
    address = parse_address(url)
    if address.path is not None:
        check_file(address, address.path, create=create)
        if not read_only:
            refuse_network(address.path)
    database = Database(address, read_only=read_only, busy_timeout_s=busy_timeout_s)
    try:
        if not read_only:
            quick_check(database)  # reads the whole file, which a question about it should not have to wait for
        _check_version(database, create=create, clock=clock or database.clock)
        if not read_only:
            _add_what_is_new(database)
            database.use_log()  # only now is the file known to be a store, and ours to change
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def open_to_upgrade(url: str) -> Iterator[Database]:
    """The database of a store of this version or an earlier one, as it is; see `open_database` for what is refused."""
    address = parse_address(url)
    if address.path is not None:
        check_file(address, address.path, create=False)
        refuse_network(address.path)
    database = Database(address, read_only=False, busy_timeout_s=UPGRADE_WAIT_S)
    try:
        quick_check(database)
        _refuse_other_than(database, oldest=1)
        yield database
    finally:
        database.close()


@contextmanager
def open_to_fill(url: str) -> Iterator[Database]:
    """The database of a store, or of none yet, in which `make_tables` makes one within the caller's transaction.

    So a caller that fails leaves nothing in the database, and no file where there was none.
    """
    address = parse_address(url)
    path = address.path
    if path is not None:
        check_file(address, path, create=True)
        refuse_network(path)
    is_new = path is not None and not path.exists()
    database = Database(address, read_only=False, busy_timeout_s=UPGRADE_WAIT_S)
    try:
        quick_check(database)
        if _tables(database):
            _refuse_other_than(database, oldest=SCHEMA_VERSION)
            _add_what_is_new(database)
        yield database
        database.use_log()
    finally:
        database.close()
        if is_new and path is not None and path.exists() and not path.stat().st_size:
            path.unlink()  # SQLite made it, and nothing was written to it


def make_tables(connection: Connection, now: datetime) -> None:
    """Make an empty database a store; in one that has tables nothing is made."""
    if inspect(connection).get_table_names():
        return
    Base.metadata.create_all(connection)
    REVISIONS.create(connection)
    connection.execute(insert(REVISIONS).values(version_num=REVISION))
    connection.execute(insert(StoreRow).values(id=1, schema_version=SCHEMA_VERSION, created_at=timestamp(now)))


def _tables(database: Database) -> set[str]:
    with database.read() as connection:
        return set(inspect(connection).get_table_names())


def _check_version(database: Database, *, create: bool, clock: Clock) -> None:
    """Make the tables in an empty database; refuse one that is no store, or of another version."""
    if create and not _tables(database):
        now = clock()
        with database.write(whole_store=True) as connection:
            make_tables(connection, now)  # unless another process did while this one waited for the lock
        return
    _refuse_other_than(database, oldest=OLDEST_READABLE_SCHEMA if database.read_only else SCHEMA_VERSION)


def _refuse_other_than(database: Database, *, oldest: int) -> None:
    """Raise `StoreUnusable` for what is no store, and for schema versions before `oldest` or after this one."""
    with database.read() as connection:
        if not inspect(connection).has_table(StoreRow.__tablename__):
            raise StoreUnusable(f"{database.address} holds no frontrunner store", hint="name another file")
        versions = connection.execute(select(StoreRow.schema_version)).scalars().all()
    if len(versions) != 1:
        raise StoreUnusable(
            f"{database.address} has {len(versions)} rows about itself, where a store has one",
            hint="restore a backup: frontrunner store copy BACKUP NEW.db",
        )
    (version,) = versions
    if oldest <= version <= SCHEMA_VERSION:
        return
    older = version < SCHEMA_VERSION
    raise StoreUnusable(
        f"{database.address} has schema {version}, this version needs {SCHEMA_VERSION}",
        hint=f"run: frontrunner store upgrade --store {database.address}" if older else "upgrade frontrunner",
    )


def _add_what_is_new(database: Database) -> None:
    """Make the changes that earlier versions of frontrunner do not mind: they leave alone what they do not know."""
    with database.read() as connection:
        if revision_of(connection) >= REVISION:
            return
    migrate(database)
