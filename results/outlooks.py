"""What strategies expected of going on, as the campaign's history keeps it."""

from __future__ import annotations

from typing import TypedDict

from sqlalchemy import Connection, select

from frontrunner.results.cells import Cells
from frontrunner.results.records import Event
from frontrunner.results.rows import to_event
from frontrunner.results.schema import EventRow

OUTLOOK = "outlook"
"""The kind of such an event. Its data: expected_improvement, gap and gap_at_most, shares of the best tokens/s or, with
of_front, of what the front of several objectives is worth; and measured, the recipes that were measured by then."""


class OutlookData(TypedDict):
    """What such an event says of going on."""

    expected_improvement: float
    gap: float
    gap_at_most: float
    of_front: bool


def newest_outlooks(connection: Connection, campaign_id: int, count: int) -> list[Event]:
    """The newest such events of a campaign, at most `count`, oldest first."""
    query = (
        select(EventRow)
        .where(EventRow.campaign_id == campaign_id, EventRow.kind == OUTLOOK)
        .order_by(EventRow.id.desc())
        .limit(count)
    )
    events = [to_event(row) for row in reversed(connection.execute(query).all())]
    for event in events:
        Cells(EventRow, event, event.id).made(
            "data_json", event, lambda told: (outlook_shares(told), measured_by(told))
        )
    return events


def outlook_shares(event: Event) -> OutlookData:
    """The three shares of such an event, 0 for one that was not finite, and what they are shares of."""
    return OutlookData(
        expected_improvement=_share(event, "expected_improvement"),
        gap=_share(event, "gap"),
        gap_at_most=_share(event, "gap_at_most"),
        of_front=bool(event.data.get("of_front")),
    )


def measured_by(event: Event) -> int:
    """How many recipes were measured by the time of such an event."""
    return int(event.data.get("measured") or 0)


def _share(event: Event, name: str) -> float:
    return float(event.data.get(name) or 0.0)
