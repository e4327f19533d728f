"""Bringing a store of an earlier version up to this one.

A store has two numbers. Its revision counts every change of its tables. Its schema version counts those that an earlier
frontrunner could not live with: only these need `frontrunner store upgrade`; the others are made when a store is
opened to be written to.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, select, update

from frontrunner.results.engine import Database
from frontrunner.results.schema import FIRST_REVISION, REVISION, REVISIONS, SCHEMA_VERSION, StoreRow

MIGRATIONS = Path(__file__).parent / "migrations"


def revision_of(connection: Connection) -> str:
    """The revision of a store's tables; the first for a store that states none."""
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
