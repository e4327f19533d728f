"""Tables of measured configurations, and what a campaign says about the one in which its probes are
looked up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The CSV file of `evaluator = "table"`, and one of its problems by name where several fit the
    campaign's.
    """

    path: str | None = None
    """The CSV file, relative to the campaign file."""
    problem: str | None = None
    """The table's problem by name (`model seq gbs hardware gpus`), needed where several match the
    campaign.
    """
