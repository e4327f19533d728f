"""A table of why attempts measured no further step. Earlier versions leave it alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table, unless the store has it: versions without revisions added it to stores that they wrote to."""
    if sa.inspect(op.get_bind()).has_table("endings"):
        return
    op.create_table(
        "endings",
        sa.Column("attempt_id", sa.Integer(), sa.ForeignKey("attempts.id"), primary_key=True),
        sa.Column("ended", sa.String(), nullable=False),
        sa.CheckConstraint("ended IN ('known', 'slower', 'noisy', 'limit', 'fixed')", name="ended_known"),
    )
