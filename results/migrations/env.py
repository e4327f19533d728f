"""Read by Alembic for each upgrade; runs inside the transaction of the connection that it is given."""

from __future__ import annotations

from alembic import context

from frontrunner.results.schema import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
