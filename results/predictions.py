"""Outlooks and proposals in a campaign's events.

An outlook is what a strategy expects of further probes, a proposal what it expected of the recipe
that it chose. No ranking contains any.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, false, or_

from frontrunner.results.records import Event, Outlook
from frontrunner.results.rows import interpreted, values
from frontrunner.results.schema import EventRow
from frontrunner.results.store import Store

OUTLOOK = "outlook"
NO_OUTLOOK = "no-outlook"
"""Event of an outcome after which a strategy has no forecast, where it had one before."""
MOST_NAMED = 100
"""Trials that a query names. For more it reads all proposals, since SQLite nests at most 1,000
conditions.
"""
PROPOSED = "proposed"
"""Event of a recipe that was chosen by a forecast; its data names the `trial` and has the fields of
`Expected`.
"""
FORECASTS = (OUTLOOK, NO_OUTLOOK, PROPOSED)
"""Events that are not part of a campaign's history."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a strategy expected of a recipe when it chose it.

    `expected_improvement` is the mean gain, as an `Outlook`'s, None before the first measurement;
    `chance` is that to run at all.
    """

    tokens_per_s: float
    chance: float
    expected_improvement: float | None
    of_front: bool = False


def expected_of(store: Store, campaign_id: int, trials: Collection[int]) -> dict[int, Expected]:
    """Return what was expected of trials, given by their numbers, where a strategy said so."""
    mine = [EventRow.campaign_id == campaign_id, EventRow.kind == PROPOSED]
    if len(trials) <= MOST_NAMED:
        # The number of the trial is the last key of the data.
        named = [EventRow.data_json.endswith(f'"trial":{number}}}') for number in trials]
        mine.append(or_(false(), *named))
    with store.database.read() as connection:
        expected = dict(map(_expected, values(connection, Event, *mine)))
    return {number: expected[number] for number in trials if number in expected}


def _expected(event: Event) -> tuple[int, Expected]:
    def read() -> tuple[int, Expected]:
        data: Mapping[str, Any] = event.data  # earlier versions stored a key `belief`, too
        gain = data["expected_improvement"]
        expected = Expected(
            tokens_per_s=float(data["tokens_per_s"] or 0.0),
            chance=float(data["chance"] or 0.0),
            expected_improvement=None if gain is None else float(gain),
            of_front=bool(data["of_front"]),
        )
        return int(data["trial"]), expected

    return interpreted(EventRow, event.id, "data_json", read)


def newest_outlooks(connection: Connection, campaign_id: int, count: int) -> list[Event]:
    """Return the newest `count` events `OUTLOOK` and `NO_OUTLOOK` of a campaign, oldest first."""
    mine = (EventRow.campaign_id == campaign_id, EventRow.kind.in_((OUTLOOK, NO_OUTLOOK)))
    return values(connection, Event, *mine, order=EventRow.id.desc(), limit=count)[::-1]


def outlook_of(event: Event) -> tuple[Outlook, int]:
    """Return the outlook of an event, 0 for a share that was not finite, and the recipes measured
    by then.
    """

    def read() -> tuple[Outlook, int]:
        shares = {
            name: float(event.data.get(name) or 0.0)
            for name in ("expected_improvement", "gap", "gap_at_most")
        }
        measured = int(event.data.get("measured") or 0)
        return Outlook(**shares, of_front=bool(event.data.get("of_front"))), measured

    return interpreted(EventRow, event.id, "data_json", read)
