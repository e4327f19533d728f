"""Predictions and outlooks in a campaign's events.

A prediction is a recipe's expected rate, from probes on fewer nodes. An outlook is what a strategy
expects of further probes, a proposal what it expected of the recipe that it chose. No ranking
contains any.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, false, func, or_, select

from frontrunner.results.outcome import RecipeStats
from frontrunner.results.records import SMALL_CAMPAIGN, Campaign, Event, Figures, Outlook
from frontrunner.results.rows import interpreted, value_of, values
from frontrunner.results.schema import (
    CampaignRow,
    EventRow,
    StandingRow,
    TrialRow,
    recipe_from_json,
    recipe_to_json,
)
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe

PREDICTION = "prediction"
# Keys of a campaign's problem summary: the campaign that it is predicted from, and how that
# differs.
SMALL_SCALE = "small_scale"
FIGURES = ("tokens_per_s", "low", "high", "chance")
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
FORECASTS = (OUTLOOK, NO_OUTLOOK, PREDICTION, PROPOSED)
"""Events that are not part of a campaign's history."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A recipe's expected tokens/s at the campaign's scale, its 95 % interval, and its chance to
    run.

    `confirmed` pools its measurements at that scale since; `failed` says that it was tried there
    and failed.
    """

    recipe_id: str
    recipe: Recipe
    tokens_per_s: float
    low: float
    high: float
    chance: float
    confirmed: RecipeStats | None = None
    failed: bool = False

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1; None where it was not measured."""
        return (
            None if self.confirmed is None else self.tokens_per_s / self.confirmed.tokens_per_s - 1
        )


@dataclass(frozen=True, kw_only=True)
class SmallScale:
    """A campaign that is predicted from another, `small`, on fewer nodes; `scale` says how that
    differs.
    """

    campaign: str
    nodes: int
    small: str
    scale: str
    small_measured: int
    figures: Figures
    predicted: tuple[Predicted, ...]

    @property
    def confirmed(self) -> tuple[Predicted, ...]:
        """Those that were measured at the campaign's scale."""
        return tuple(one for one in self.predicted if one.confirmed is not None)

    @property
    def mean_error(self) -> float | None:
        """Mean of |predicted / measured - 1| over the confirmed ones; None where there is none."""
        errors = [abs(one.error) for one in self.predicted if one.error is not None]
        return sum(errors) / len(errors) if errors else None


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


def prediction_data(predicted: Predicted) -> dict[str, str | float]:
    """Return a prediction as an event's data."""
    figures = {name: getattr(predicted, name) for name in FIGURES}
    return {"recipe_id": predicted.recipe_id, "recipe": recipe_to_json(predicted.recipe), **figures}


def small_scale(store: Store, campaign: Campaign) -> SmallScale | None:
    """Return the predictions of a campaign from one on fewer nodes; None where there are none."""
    small = campaign.problem_summary.get(SMALL_CAMPAIGN)
    if small is None:
        return None
    with store.database.read() as connection:
        measured = select(func.count()).select_from(StandingRow)
        of_small = measured.join(CampaignRow, CampaignRow.id == StandingRow.campaign_id)
        nodes = campaign.problem_summary.get("nodes", 0)
        return SmallScale(
            campaign=campaign.name,
            nodes=interpreted(CampaignRow, campaign.id, "problem_json", lambda: int(str(nodes))),
            small=str(small),
            scale=str(campaign.problem_summary.get(SMALL_SCALE, "")),
            small_measured=connection.execute(
                of_small.where(CampaignRow.name == str(small))
            ).scalar_one(),
            figures=campaign.figures,
            predicted=_predictions(connection, campaign.id),
        )


def scales_that_predict(store: Store, prefix: str) -> tuple[SmallScale, ...]:
    """Return the campaigns that predict recipes whose ids have this prefix, the newest first, each
    with these only.
    """
    predict = CampaignRow.id.in_(select(EventRow.campaign_id).where(EventRow.kind == PREDICTION))
    with store.database.read() as connection:
        campaigns = values(connection, Campaign, predict, order=CampaignRow.id.desc())
    scales = [
        scale for campaign in campaigns if (scale := small_scale(store, campaign)) is not None
    ]
    found = (
        replace(
            scale,
            predicted=tuple(one for one in scale.predicted if one.recipe_id.startswith(prefix)),
        )
        for scale in scales
    )
    return tuple(scale for scale in found if scale.predicted)


def _predictions(connection: Connection, campaign_id: int) -> tuple[Predicted, ...]:
    events = values(
        connection, Event, EventRow.campaign_id == campaign_id, EventRow.kind == PREDICTION
    )
    standings = select(StandingRow).where(StandingRow.campaign_id == campaign_id)
    measured = {row.recipe_id: value_of(RecipeStats, row) for row in connection.execute(standings)}
    tried = select(TrialRow.recipe_id).where(
        TrialRow.campaign_id == campaign_id, TrialRow.state == TrialState.FAILED
    )
    failed = set(connection.execute(tried).scalars())
    return tuple(
        replace(one, confirmed=measured.get(one.recipe_id), failed=one.recipe_id in failed)
        for one in map(_prediction, events)
    )


def _prediction(event: Event) -> Predicted:
    def read() -> Predicted:
        data: Mapping[str, Any] = event.data
        figures: dict[str, Any] = {name: float(data[name] or 0.0) for name in FIGURES}
        recipe = recipe_from_json(str(data["recipe"]))
        return Predicted(recipe_id=str(data["recipe_id"]), recipe=recipe, **figures)

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
