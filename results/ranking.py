"""Ranking of a campaign's recipes, one row per recipe with repeats pooled, and its Pareto front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from frontrunner.results.displayed_rows import DisplayedRows
from frontrunner.results.outcome import Measurement, ProbeEnding, RecipeStats, doubts_of
from frontrunner.results.records import NODE_TYPES, Campaign, Figures
from frontrunner.results.rows import cell, recorded_by_trial, value_of
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.store import Store
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value, require_one_of
from frontrunner.spaces.problem import Training
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.sharding import Sharding

BYTES_PER_GB = 1e9


class RankBy(StrEnum):
    """Figure that recipes are ordered by."""

    TOKENS = "tokens"
    TOKENS_PER_DEVICE = "tokens-per-device"
    TFLOPS = "tflops"
    MEMORY = "memory"
    STEP_TIME = "step-time"


ORDERED_COLUMNS: dict[RankBy, InstrumentedAttribute[Any]] = {
    RankBy.TOKENS: StandingRow.tokens_per_s,
    # In the same order: a problem's recipes have the same FLOPs per token.
    RankBy.TOKENS_PER_DEVICE: StandingRow.model_tflops_per_device,
    RankBy.TFLOPS: StandingRow.model_tflops_per_device,
    RankBy.MEMORY: StandingRow.peak_memory_bytes_max_rank,
    RankBy.STEP_TIME: StandingRow.step_time_s_median,
}
MORE_IS_BETTER = frozenset({RankBy.TOKENS, RankBy.TOKENS_PER_DEVICE, RankBy.TFLOPS})
PEAK_IS_KNOWN = StandingRow.peak_memory_bytes_max_rank > 0
"""Tables of others' measurements need not state it."""

Filters = Mapping[str, int | str | Mapping[str, Choice | None]]
"""Fields of a recipe, `data_parallel` or `sharding`, with the value that each must have.

`custom` has that of each knob of the user's own, None where recipes have none of it.
"""
FILTERS = (
    *(one.name for one in DIMENSIONS.values() if one.kind in ("count", "flag", "choice", "name")),
    "data_parallel",
    "sharding",
)


@dataclass(frozen=True, kw_only=True)
class RankedRecipe(Displayed):
    """One recipe with its rank, from 1; `gap_percent` is how much worse it is than the first.

    `memory_above_idle_bytes_max_rank` is `Measurement`'s, the most in any repeat, None where none
    states it. `doubts` are those of the pooled repeats' `Telemetry`; `training` is what all its
    tokens take at this rate. `why_unconfirmed` states why its place is not to be relied on, if
    none of its measurements is full (`Measurement.is_full`).
    """

    rank: int
    recipe_id: str
    recipe: Recipe
    trial_number: int
    figures: Figures
    standing: RecipeStats
    gap_percent: float
    memory_above_idle_bytes_max_rank: int | None = None
    doubts: tuple[str, ...] = ()
    training: Training | None = None
    why_unconfirmed: str | None = None


class Ranking(list[RankedRecipe], DisplayedRows):
    """Ranked recipes as a list that a notebook shows as a table."""


def best(
    store: Store,
    campaign: Campaign | str | None,
    *,
    top: int | None = 10,
    by: str | None = None,
    max_memory_gb: float | None = None,
) -> list[RankedRecipe]:
    """Return the campaign's `top` recipes (None for all), best first; empty where none was
    measured.

    `by` is one of tokens (tokens/s), tokens-per-device, tflops (model TFLOPS per device), memory
    (of the rank that needs most) and step-time; by default what the campaign seeks. `max_memory_gb`
    leaves out recipes with a rank above that many 1e9 bytes. It and `memory` leave out recipes
    whose peak memory is unknown. Equal figures are ordered by recipe id.

    Raises `InvalidInput` for an unknown `by`, or for limits that are not above 0.
    """
    if by is not None:
        require_one_of("best", "by", by, [word.value for word in RankBy])
    if top is not None and top < 1:
        raise bad_value("best.top", top, "at least 1")
    if max_memory_gb is not None and not max_memory_gb > 0:
        raise bad_value("best.max_memory_gb", max_memory_gb, "a size above 0 in GB")
    with store.read(campaign) as (connection, found):
        if by is None:
            return best_of(connection, found, *conditions(RankBy.TOKENS, max_memory_gb), top=top)
        return rank(
            connection, found, *conditions(RankBy(by), max_memory_gb), by=RankBy(by), top=top
        )


def best_of(
    connection: Connection, campaign: Campaign, *wanted: ColumnElement[bool], top: int | None = None
) -> list[RankedRecipe]:
    """Rank the recipes that meet the conditions by what the campaign seeks, within a
    transaction.
    """
    sought = campaign.objective
    if sought != "tokens_per_cost":
        return rank(connection, campaign, *wanted, by=RankBy(sought.replace("_", "-")), top=top)

    def rate(row: RankedRecipe) -> float:
        return row.standing.tokens_per_s / nodes_of(campaign, row.recipe.devices)

    rows = sorted(rank(connection, campaign, *wanted), key=lambda row: (-rate(row), row.recipe_id))[
        :top
    ]
    return [
        replace(row, rank=place, gap_percent=gap_percent(rate(row), rate(rows[0])))
        for place, row in enumerate(rows, start=1)
    ]


def conditions(by: RankBy, max_memory_gb: float | None) -> list[ColumnElement[bool]]:
    """Return what a ranked row must meet: a known peak where it is ranked or limited by it, and
    that limit.
    """
    known = [PEAK_IS_KNOWN] if by is RankBy.MEMORY or max_memory_gb is not None else []
    peak = StandingRow.peak_memory_bytes_max_rank
    return known if max_memory_gb is None else [*known, peak <= max_memory_gb * BYTES_PER_GB]


def rank(  # noqa: PLR0913 - the parameters of a query, each by its name
    connection: Connection,
    campaign: Campaign,
    *wanted: ColumnElement[bool],
    by: RankBy = RankBy.TOKENS,
    top: int | None = None,
    offset: int = 0,
    ranks: Iterable[int] | None = None,
    better: float | None = None,
) -> list[RankedRecipe]:
    """Rank the recipes that meet the conditions within a transaction.

    Their `ranks` are by default from 1, and gaps are to `better`, by default the first one's
    figure.
    """
    query = (
        select(StandingRow, TrialRow.recipe_json, TrialRow.number)
        .join(TrialRow, TrialRow.id == StandingRow.trial_id)
        .where(StandingRow.campaign_id == campaign.id, *wanted)
        .order_by(*ordering(by))
        .limit(top)
        .offset(offset)
    )
    found, rows = [], connection.execute(query).all()
    recorded = recorded_by_trial(connection, [row.trial_id for row in rows])
    for place, row in zip(ranks or itertools.count(1), rows, strict=False):
        stats, recipe = (
            value_of(RecipeStats, row),
            cell(TrialRow.recipe_json, row.recipe_json, row.trial_id),
        )
        figure = getattr(stats, ORDERED_COLUMNS[by].key)
        better = figure if better is None else better
        ranked = RankedRecipe(
            rank=place,
            recipe_id=row.recipe_id,
            recipe=recipe,
            trial_number=row.number,
            figures=campaign.figures,
            standing=stats,
            gap_percent=gap_percent(figure, better, by=by),
            memory_above_idle_bytes_max_rank=max(
                (
                    size
                    for one in recorded[row.trial_id]
                    if (size := one.memory_above_idle_bytes_max_rank) is not None
                ),
                default=None,
            ),
            doubts=doubts_of(recorded[row.trial_id]),
            why_unconfirmed=_why_unconfirmed(row.recipe_id, recorded[row.trial_id]),
            training=_training(campaign, recipe, stats.tokens_per_s),
        )
        found.append(ranked)
    return found


def _why_unconfirmed(recipe_id: str, measurements: Sequence[Measurement]) -> str | None:
    """Return why a recipe's place is not confirmed; None if a measurement of it is full."""
    if not measurements or any(one.is_full for one in measurements):
        return None
    reasons = []
    if any(one.ended is ProbeEnding.SLOWER for one in measurements):
        reasons.append("ended early, as it was clearly slower than the best recipe at that time")
    if any(one.is_disturbed for one in measurements):
        reasons.append("was disturbed by other processes")
    each = "its probe" if len(measurements) == 1 else "each of its probes"
    return f"The place of {recipe_id} is not confirmed: {each} {' or '.join(reasons)}"


def _training(campaign: Campaign, recipe: Recipe, tokens_per_s: float) -> Training | None:
    """Return what the tokens that the campaign states take at a recipe's rate; None where it states
    none, or nothing of its nodes.
    """
    stated: Mapping[str, Any] = campaign.problem_summary
    if "billion_tokens" not in stated or NODE_TYPES in stated:
        return None
    nodes, price = nodes_of(campaign, recipe.devices), stated.get("price_per_node_hour")
    return Training.of(stated["billion_tokens"], tokens_per_s, nodes, price)


def nodes_of(campaign: Campaign, devices: int) -> int:
    """Return the whole nodes that so many devices take.

    Nodes are equal, so the order by tokens/s per node is that by tokens per price.
    """
    stated: Mapping[str, Any] = campaign.problem_summary
    devices_per_node: int = stated["devices_per_node"]
    return math.ceil(devices / devices_per_node)


def pareto(
    store: Store, campaign: Campaign | str | None, *, least_tokens_per_s: float | None = None
) -> list[RankedRecipe]:
    """Return the front of tokens/s (more is better) against the peak memory of the fullest rank
    (less is better).

    Fastest first. Recipes whose peak is unknown are left out; of recipes equal in both, the one
    with the smallest recipe id is returned. `least_tokens_per_s` leaves slower recipes out
    beforehand. A window over the index finds the front of 100,000 recipes in 50 ms; reading them
    for `spaces.pareto` takes several times as long.
    """
    memory = StandingRow.peak_memory_bytes_max_rank
    with store.read(campaign) as (connection, found):
        wanted = [StandingRow.campaign_id == found.id, PEAK_IS_KNOWN]
        if least_tokens_per_s is not None:
            wanted.append(StandingRow.tokens_per_s >= least_tokens_per_s)
        # Walking from the fastest down, a recipe is on the front if it needs less than all before
        # it.
        fastest_first = (StandingRow.tokens_per_s.desc(), memory, StandingRow.recipe_id)
        least_before = (
            func.min(memory).over(order_by=fastest_first, rows=(None, -1)).label("least_before")
        )
        walked = (
            select(StandingRow.trial_id, memory.label("memory"), least_before)
            .where(*wanted)
            .subquery()
        )
        on_front = or_(walked.c.least_before.is_(None), walked.c.memory < walked.c.least_before)
        return rank(
            connection, found, StandingRow.trial_id.in_(select(walked.c.trial_id).where(on_front))
        )


def ordering(by: RankBy) -> tuple[ColumnElement[Any], ...]:
    """Return the ORDER BY of a ranking: the figure, best first, then the recipe id."""
    key = ORDERED_COLUMNS[by]
    return (key.desc() if by in MORE_IS_BETTER else key.asc()), StandingRow.recipe_id.asc()


def gap_percent(figure: float, better: float, *, by: RankBy = RankBy.TOKENS) -> float:
    """Return by how many percent `figure` is worse than `better`."""
    return 100.0 * ((better - figure) if by in MORE_IS_BETTER else (figure - better)) / better


def passes(recipe: Recipe, filters: Filters) -> bool:
    """Return whether a recipe has the value of each filter. With one copy its sharding is
    "none".
    """
    for name, value in filters.items():
        if name == "sharding":
            named = Sharding.named(str(value), recipe.copies)
            has_it = recipe.sharding == named and (recipe.copies > 1 or value == "none")
        elif isinstance(value, Mapping):
            own = {one.name: one.value for one in recipe.custom}
            has_it = all(own.get(knob) == wanted for knob, wanted in value.items())
        else:
            has_it = (
                getattr(recipe, DIMENSIONS[name].field if name in DIMENSIONS else name) == value
            )
        if not has_it:
            return False
    return True


def check_filters(filters: Filters) -> None:
    """Raise `InvalidInput` for an unknown filter, or sharding."""
    for name, value in filters.items():
        if name not in FILTERS and name != "custom":
            raise bad_value("filter", name, f"one of {', '.join(FILTERS)}")
        if name == "sharding":
            Sharding.named(str(value), 2)
