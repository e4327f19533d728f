"""The tables of the first stores, which state no revision: they are taken to be at this one, which makes nothing."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Leave the tables as they are."""
