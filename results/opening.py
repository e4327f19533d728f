"""Opening a database as a store: what lies there is checked, and made only where nothing does."""

from __future__ import annotations

from sqlalchemy import insert, inspect, select

from frontrunner.results.address import check_file, parse_address
from frontrunner.results.clock import Clock, timestamp
from frontrunner.results.engine import Database, quick_check
from frontrunner.results.schema import SCHEMA_VERSION, Base, EndingRow, StoreRow
from frontrunner.spaces.errors import StoreUnusable


def open_database(url: str, *, create: bool, read_only: bool, clock: Clock | None, busy_timeout_s: float) -> Database:
    """The database of a store of this version; see `frontrunner.results.store.open_store`."""
    create = create and not read_only
    address = parse_address(url)
    if address.path is not None:
        check_file(address.path, create=create)
    database = Database(address, read_only=read_only, busy_timeout_s=busy_timeout_s)
    try:
        if not read_only:
            quick_check(database)  # reads the whole file, which a question about it should not have to wait for
        _check_version(database, create=create, clock=clock or database.clock)
        if not read_only:
            _add_endings(database)
            database.use_log()  # only now is the file known to be a store, and ours to change
    except BaseException:
        database.close()
        raise
    return database


def _check_version(database: Database, *, create: bool, clock: Clock) -> None:
    """Make the tables in an empty database; refuse one that is no store, or of another version."""
    with database.read() as connection:
        tables = set(inspect(connection).get_table_names())
    if not tables and create:
        _create_tables(database, clock)
        return
    if StoreRow.__tablename__ not in tables:
        raise StoreUnusable(f"{database.address} holds no frontrunner store", hint="name another file")
    with database.read() as connection:
        version = connection.execute(select(StoreRow.schema_version)).scalar_one()
    if version == SCHEMA_VERSION:
        return
    older = version < SCHEMA_VERSION
    raise StoreUnusable(
        f"{database.address} has schema {version}, this version needs {SCHEMA_VERSION}",
        hint=f"run: frontrunner store upgrade {database.address}" if older else "upgrade frontrunner",
    )


def _add_endings(database: Database) -> None:
    """The one table that the first stores of this schema lack; versions that do not know it leave it alone."""
    table = Base.metadata.tables[EndingRow.__tablename__]
    with database.read() as connection:
        if inspect(connection).has_table(table.name):
            return
    with database.write(whole_store=True) as connection:
        table.create(connection, checkfirst=True)


def _create_tables(database: Database, clock: Clock) -> None:
    """All tables in one transaction; another process may have made them while this one waited for the lock."""
    with database.write(whole_store=True) as connection:
        if not inspect(connection).get_table_names():
            Base.metadata.create_all(connection)
            row = insert(StoreRow).values(id=1, schema_version=SCHEMA_VERSION, created_at=timestamp(clock()))
            connection.execute(row)
