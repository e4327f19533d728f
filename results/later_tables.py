"""Tables that stores of earlier versions do not have. Such a store is read as it is where nobody may write to it."""

from __future__ import annotations

from sqlalchemy import Connection, inspect

from frontrunner.results.schema import Base


def is_there(connection: Connection, table: type[Base]) -> bool:
    """Whether the store has a table; a connection remembers that it has, since tables are never taken away."""
    remembered = f"frontrunner_has_{table.__tablename__}"
    if not connection.info.get(remembered):
        connection.info[remembered] = inspect(connection).has_table(table.__tablename__)
    return bool(connection.info[remembered])
