"""Wall-clock time for the store's records. Durations never come from here: they come from a monotonic clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the time with its zone."""


def utc_now() -> datetime:
    """The system's time, in UTC."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """ISO 8601 in UTC with offset and microseconds: text of one width, so that it sorts by time.

    Raises ValueError for a time without a zone, which could be any hour.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
