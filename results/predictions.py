"""Predictions and outlooks in a campaign's events.

A prediction is a recipe's expected rate, from probes on fewer nodes. An outlook is what a strategy expects of further
probes. Both are events: they are never among the measurements, and no ranking contains one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypedDict

from sqlalchemy import Connection, select

from frontrunner.results.columns import recipe_from_json, recipe_to_json
from frontrunner.results.outcome import RecipeStats
from frontrunner.results.records import Campaign, Event, Figures
from frontrunner.results.rows import interpreted, to_campaign, to_event, to_stats
from frontrunner.results.schema import CampaignRow, EventRow, StandingRow, TrialRow
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe

PREDICTION = "prediction"
"""Kind of a prediction's event; its data are the fields of `Predicted`, the recipe as JSON, without later results."""
SMALL_CAMPAIGN, SMALL_SCALE = "small_campaign", "small_scale"
"""Keys of a campaign's problem summary: the campaign on fewer nodes that it is predicted from, and how that differs."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A recipe's expected tokens/s at the campaign's scale, the ends of its 95 % interval, and its chance to run.

    `confirmed` pools what was measured of it at that scale since, None where nothing was; `failed` says that it was
    tried there and failed.
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
        return None if self.confirmed is None else self.tokens_per_s / self.confirmed.tokens_per_s - 1


@dataclass(frozen=True, kw_only=True)
class SmallScale:
    """A campaign that is predicted from another on fewer nodes.

    `small` is that other one, `scale` says how it differs and `small_measured` counts its measured recipes;
    `predicted` are the best recipes of this one, best first.
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
        """The mean of |predicted / measured - 1| over the confirmed ones; None where there is none."""
        errors = [abs(one.error) for one in self.predicted if one.error is not None]
        return sum(errors) / len(errors) if errors else None


def prediction_data(predicted: Predicted) -> dict[str, str | float]:
    """Return a prediction as an event's data."""
    table = asdict(predicted)
    kept = {key: table[key] for key in ("recipe_id", "tokens_per_s", "low", "high", "chance")}
    return kept | {"recipe": recipe_to_json(predicted.recipe)}


def small_scale(store: Store, campaign: Campaign) -> SmallScale | None:
    """Return the predictions of a campaign from one on fewer nodes; None where it is not predicted from another."""
    small = campaign.problem_summary.get(SMALL_CAMPAIGN)
    if small is None:
        return None
    with store.database.read() as connection:
        row = connection.execute(select(CampaignRow).where(CampaignRow.name == str(small))).first()
        return SmallScale(
            campaign=campaign.name,
            nodes=_nodes(campaign),
            small=str(small),
            scale=str(campaign.problem_summary.get(SMALL_SCALE, "")),
            small_measured=0 if row is None else _measured(connection, to_campaign(row).id),
            figures=campaign.figures,
            predicted=predictions(connection, campaign.id),
        )


def scales_that_predict(store: Store, recipe_id: str) -> tuple[SmallScale, ...]:
    """Return the campaigns that predict this recipe, the newest first, each with that prediction only."""
    with store.database.read() as connection:
        query = select(EventRow.campaign_id).where(EventRow.kind == PREDICTION).distinct()
        ids = list(connection.execute(query).scalars())
        rows = connection.execute(select(CampaignRow).where(CampaignRow.id.in_(ids)).order_by(CampaignRow.id.desc()))
        campaigns = [to_campaign(row) for row in rows]
    found = []
    for campaign in campaigns:
        scale = small_scale(store, campaign)
        mine = tuple(one for one in scale.predicted if one.recipe_id == recipe_id) if scale else ()
        if scale is not None and mine:
            found.append(replace(scale, predicted=mine))
    return tuple(found)


def predicted_ids(store: Store) -> tuple[str, ...]:
    """Return the ids of all predicted recipes of the store, measured or not."""
    with store.database.read() as connection:
        events = connection.execute(select(EventRow).where(EventRow.kind == PREDICTION))
        return tuple(dict.fromkeys(_recipe_id(to_event(row)) for row in events))


def predictions(connection: Connection, campaign_id: int) -> tuple[Predicted, ...]:
    """Return a campaign's predictions in the order in which they were made, with what was measured since."""
    query = select(EventRow).where(EventRow.campaign_id == campaign_id, EventRow.kind == PREDICTION)
    events = [to_event(row) for row in connection.execute(query.order_by(EventRow.id)).all()]
    if not events:
        return ()
    standings = select(StandingRow).where(StandingRow.campaign_id == campaign_id)
    measured = {row.recipe_id: to_stats(row) for row in connection.execute(standings)}
    tried = select(TrialRow.recipe_id).where(TrialRow.campaign_id == campaign_id, TrialRow.state == TrialState.FAILED)
    failed = set(connection.execute(tried).scalars())
    return tuple(_predicted(event, measured, failed) for event in events)


def _recipe_id(event: Event) -> str:
    return interpreted(EventRow, event.id, "data_json", lambda: str(event.data["recipe_id"]))


def _predicted(event: Event, measured: Mapping[str, RecipeStats], failed: set[str]) -> Predicted:
    recipe_id = _recipe_id(event)
    predicted = interpreted(EventRow, event.id, "data_json", lambda: _prediction(event.data))
    return replace(predicted, confirmed=measured.get(recipe_id), failed=recipe_id in failed)


def _prediction(data: Mapping[str, Any]) -> Predicted:
    """Read what `prediction_data` wrote."""
    return Predicted(
        recipe_id=str(data["recipe_id"]),
        recipe=recipe_from_json(str(data["recipe"])),
        tokens_per_s=float(data["tokens_per_s"] or 0.0),
        low=float(data["low"] or 0.0),
        high=float(data["high"] or 0.0),
        chance=float(data["chance"] or 0.0),
    )


def _nodes(campaign: Campaign) -> int:
    found = campaign.problem_summary.get("nodes", 0)
    return interpreted(CampaignRow, campaign.id, "problem_json", lambda: int(str(found)))


def _measured(connection: Connection, campaign_id: int) -> int:
    found = connection.execute(select(StandingRow.trial_id).where(StandingRow.campaign_id == campaign_id))
    return len(found.all())


OUTLOOK = "outlook"
"""Kind of an outlook event. Its data: expected_improvement, gap and gap_at_most, shares of the best tokens/s or, with
of_front, of what the front of several objectives is worth; and measured, the recipes that were measured by then."""


class OutlookData(TypedDict):
    """Expected gain from further probes, as an outlook event states it."""

    expected_improvement: float
    gap: float
    gap_at_most: float
    of_front: bool


def newest_outlooks(connection: Connection, campaign_id: int, count: int) -> list[Event]:
    """Return the newest `count` outlook events of a campaign, oldest first."""
    query = (
        select(EventRow)
        .where(EventRow.campaign_id == campaign_id, EventRow.kind == OUTLOOK)
        .order_by(EventRow.id.desc())
        .limit(count)
    )
    events = [to_event(row) for row in reversed(connection.execute(query).all())]
    for event in events:
        interpreted(EventRow, event.id, "data_json", partial(_check_outlook, event))
    return events


def _check_outlook(event: Event) -> None:
    outlook_shares(event)
    measured_by(event)


def outlook_shares(event: Event) -> OutlookData:
    """Return the three shares of an outlook event, 0 for one that was not finite, and what they are shares of."""
    return OutlookData(
        expected_improvement=_share(event, "expected_improvement"),
        gap=_share(event, "gap"),
        gap_at_most=_share(event, "gap_at_most"),
        of_front=bool(event.data.get("of_front")),
    )


def measured_by(event: Event) -> int:
    """Return how many recipes were measured by the time of an outlook event."""
    return int(event.data.get("measured") or 0)


def _share(event: Event, name: str) -> float:
    return float(event.data.get(name) or 0.0)
