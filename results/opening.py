"""Opening a database as a store: checking what lies there, creating or upgrading its tables.

A store has two numbers. Its revision counts every change of its tables. Its schema version counts those that an earlier
frontrunner could not work with: only these need `frontrunner store upgrade`; the others are made when a store is
opened for writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select, update

from frontrunner.results.address import StoreAddress, check_file, parse_address, refuse_network
from frontrunner.results.database import Database
from frontrunner.results.records import Clock, timestamp
from frontrunner.results.rows import cell
from frontrunner.results.schema import (
    FIRST_REVISION,
    OLDEST_READABLE_SCHEMA,
    REVISION,
    REVISIONS,
    SCHEMA_VERSION,
    Base,
    StoreRow,
)
from frontrunner.spaces.errors import StoreUnusable

MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE_WAIT_S = 60.0


def open_database(url: str, *, create: bool, read_only: bool, clock: Clock | None, busy_timeout_s: float) -> Database:
    """Open the database of a store of this version; see `frontrunner.results.store.open_store`."""
    create = create and not read_only
    address = _checked(url, create=create, read_only=read_only)
    database = Database(address, read_only=read_only, busy_timeout_s=busy_timeout_s)
    try:
        if not read_only:
            database.quick_check()  # reads the whole file, which is too slow for a reading command
        if create and not _tables(database):
            now = (clock or database.clock)()
            with database.write(whole_store=True) as connection:
                make_tables(connection, now)  # unless another process did while this one waited for the lock
        else:
            _refuse_other_than(database, oldest=OLDEST_READABLE_SCHEMA if read_only else SCHEMA_VERSION)
        if not read_only:
            _migrate_if_needed(database)
            database.use_log()  # only now is the file known to be a store, and ours to change
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def open_to_upgrade(url: str) -> Iterator[Database]:
    """Open the database of a store of this version or an earlier one, as it is; refuses as `open_database` does."""
    database = Database(_checked(url), read_only=False, busy_timeout_s=UPGRADE_WAIT_S)
    try:
        database.quick_check()
        _refuse_other_than(database, oldest=1)
        yield database
    finally:
        database.close()


@contextmanager
def open_to_fill(url: str) -> Iterator[Database]:
    """Open the database of a store, or an empty one, in which the caller's transaction calls `make_tables`.

    So a caller that fails leaves nothing in the database, and no file where there was none.
    """
    address = _checked(url, create=True)
    path = address.path
    is_new = path is not None and not path.exists()
    database = Database(address, read_only=False, busy_timeout_s=UPGRADE_WAIT_S)
    try:
        database.quick_check()
        if _tables(database):
            _refuse_other_than(database, oldest=SCHEMA_VERSION)
            _migrate_if_needed(database)
        yield database
        database.use_log()
    finally:
        database.close()
        if is_new and path is not None and path.exists() and not path.stat().st_size:
            path.unlink()  # SQLite made it, and nothing was written to it


def make_tables(connection: Connection, now: datetime) -> None:
    """Make an empty database a store; one that has tables is left alone."""
    if inspect(connection).get_table_names():
        return
    Base.metadata.create_all(connection)
    REVISIONS.create(connection)
    connection.execute(insert(REVISIONS).values(version_num=REVISION))
    connection.execute(insert(StoreRow).values(id=1, schema_version=SCHEMA_VERSION, created_at=timestamp(now)))


def revision_of(connection: Connection) -> str:
    """Return the revision of a store's tables: the first, for a store that states none."""
    if not inspect(connection).has_table(REVISIONS.name):
        return FIRST_REVISION
    return connection.execute(select(REVISIONS.c.version_num)).scalar() or FIRST_REVISION


def migrate(database: Database) -> str:
    """Make every change that the store lacks, in one transaction; returns the revision that it had before.

    A store of a later revision is left as it is.
    """
    with database.write(whole_store=True) as connection:
        before = revision_of(connection)
        if before < REVISION:
            _run_revisions(connection, before)
            connection.execute(update(StoreRow).values(schema_version=SCHEMA_VERSION))
    return before


def _run_revisions(connection: Connection, before: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if not inspect(connection).has_table(REVISIONS.name) and inspect(connection).has_table(StoreRow.__tablename__):
        command.stamp(config, before)
    command.upgrade(config, REVISION)


def _migrate_if_needed(database: Database) -> None:
    with database.read() as connection:
        before = revision_of(connection)
    if before < REVISION:
        migrate(database)


def _checked(url: str, *, create: bool = False, read_only: bool = False) -> StoreAddress:
    """Parse the address; refuse a file that cannot be a store, and one on a network file system to be written to."""
    address = parse_address(url)
    if address.path is not None:
        check_file(address, address.path, create=create)
        if not read_only:
            refuse_network(address.path)
    return address


def _tables(database: Database) -> set[str]:
    with database.read() as connection:
        return set(inspect(connection).get_table_names())


def _refuse_other_than(database: Database, *, oldest: int) -> None:
    """Raise `StoreUnusable` for what is not a store, and for schema versions before `oldest` or after this one."""
    with database.read() as connection:
        if not inspect(connection).has_table(StoreRow.__tablename__):
            raise StoreUnusable(f"{database.address} holds no frontrunner store", hint="name another file")
        rows = connection.execute(select(StoreRow.id, StoreRow.schema_version)).all()
        versions = [cell(StoreRow.schema_version, row.schema_version, row.id) for row in rows]
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
