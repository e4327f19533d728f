"""What strategies expected of going on, as the campaign's history keeps it."""

from __future__ import annotations

from sqlalchemy import Connection, select

from frontrunner.results.records import Event
from frontrunner.results.rows import to_event
from frontrunner.results.schema import EventRow

OUTLOOK = "outlook"
"""The kind of such an event. Its data: expected_improvement, gap and gap_at_most, shares of the best tokens/s, and
measured, the recipes that were measured by then."""


def newest_outlooks(connection: Connection, campaign_id: int, count: int) -> list[Event]:
    """The newest such events of a campaign, at most `count`, oldest first."""
    query = (
        select(EventRow)
        .where(EventRow.campaign_id == campaign_id, EventRow.kind == OUTLOOK)
        .order_by(EventRow.id.desc())
        .limit(count)
    )
    return [to_event(row) for row in reversed(connection.execute(query).all())]


def outlook_shares(event: Event) -> dict[str, float]:
    """The three shares of such an event, by name; 0 for one that was not finite."""
    return {name: float(event.data.get(name) or 0.0) for name in ("expected_improvement", "gap", "gap_at_most")}
