"""A table of the processes to which leases were given. Earlier versions leave it alone.

What it says of a lease is found by the lease's epoch, so that it holds for no lease that an earlier version gives out.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "holders",
        sa.Column("campaign_id", sa.Integer(), sa.ForeignKey("campaigns.id"), primary_key=True),
        sa.Column("epoch", sa.Integer(), primary_key=True),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("started_ticks", sa.BigInteger(), nullable=False),
    )
