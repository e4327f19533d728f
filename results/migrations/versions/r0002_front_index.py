"""Standings are indexed in the order in which the Pareto front is walked. Earlier versions use the index as well."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the index anew; some stores that have no revision of their own hold it already."""
    op.drop_index("standings_by_tokens", "standings")
    fastest_first = sa.text("tokens_per_s DESC")
    rest = ("peak_memory_bytes_max_rank", "recipe_id", "trial_id")
    op.create_index("standings_by_tokens", "standings", ["campaign_id", fastest_first, *rest])
