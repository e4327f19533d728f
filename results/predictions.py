"""Outlooks and proposals in a campaign's events.

An outlook is what a strategy expects of further probes, a proposal what it expected of the recipe
that it chose. No ranking contains any.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, false, or_

from frontrunner.results.records import Event, Outlook
from frontrunner.results.rows import interpreted, values
from frontrunner.results.schema import EventRow
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Choice

OUTLOOK = "outlook"
NO_OUTLOOK = "no-outlook"
"""Event of an outcome after which a strategy has no forecast, where it had one before."""
MOST_NAMED = 100
"""Trials whose events are looked for one by one."""
PROPOSED = "proposed"
"""Event of a recipe that was chosen by a forecast; its data names the `trial` and has the fields of
`Proposed`.
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


@dataclass(frozen=True, kw_only=True)
class Belief:
    """The tokens/s of the fastest recipe that a strategy expected to run at places of a map, as (x,
    y, tokens/s).

    A measured recipe counts with what was measured. A place that has none is left out.
    """

    x: str
    y: str
    cells: tuple[tuple[Choice, Choice, float], ...]


@dataclass(frozen=True, kw_only=True)
class Proposed(Expected):
    """What a strategy expected of a recipe when it chose it, and of all others."""

    belief: Belief | None = None

    @property
    def alone(self) -> Expected:
        """What was expected of the recipe alone."""
        return Expected(**{one.name: getattr(self, one.name) for one in fields(Expected)})


def expected_of(store: Store, campaign_id: int, trials: Collection[int]) -> dict[int, Expected]:
    """Return what was expected of trials, given by their numbers, where a strategy said so."""
    return {number: one.alone for number, one in proposed_of(store, campaign_id, trials).items()}


def proposed_of(store: Store, campaign_id: int, trials: Collection[int]) -> dict[int, Proposed]:
    """Return the same with what was expected of all other recipes."""
    mine = [EventRow.campaign_id == campaign_id, EventRow.kind == PROPOSED]
    if len(trials) <= MOST_NAMED:
        named = [
            EventRow.data_json.endswith(f'"trial":{number}}}') for number in trials
        ]  # the last of its keys
        mine.append(or_(false(), *named))
    with store.database.read() as connection:
        # At most one proposal per trial, in the order of their numbers.
        found = dict(map(_proposed, values(connection, Event, *mine, limit=max(trials, default=0))))
    wanted = set(trials)
    return {number: one for number, one in found.items() if number in wanted}


def _proposed(event: Event) -> tuple[int, Proposed]:
    def read() -> tuple[int, Proposed]:
        data: Mapping[str, Any] = event.data
        gain, belief = (
            data["expected_improvement"],
            data.get("belief"),
        )  # earlier versions stored none
        cells = (
            () if belief is None else tuple((x, y, float(rate)) for x, y, rate in belief["cells"])
        )
        proposed = Proposed(
            tokens_per_s=float(data["tokens_per_s"] or 0.0),
            chance=float(data["chance"] or 0.0),
            expected_improvement=None if gain is None else float(gain),
            of_front=bool(data["of_front"]),
            belief=None
            if belief is None
            else Belief(x=str(belief["x"]), y=str(belief["y"]), cells=cells),
        )
        return int(data["trial"]), proposed

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
