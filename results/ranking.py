"""Ranking of a campaign's recipes, one row per recipe with repeats pooled, and its Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, cast, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from frontrunner.notebook import Displayed
from frontrunner.results.outcome import RecipeStats
from frontrunner.results.records import Campaign, Figures
from frontrunner.results.rows import cell, find_campaign, to_stats
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.store import Store
from frontrunner.spaces.errors import InvalidInput, bad_value, require_one_of
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.sharding import Sharding

BYTES_PER_GB = 1e9


class RankBy(StrEnum):
    """Figure that recipes are ordered by: more is better for the first two, less for the others."""

    TOKENS = "tokens"
    TFLOPS = "tflops"
    MEMORY = "memory"
    STEP_TIME = "step-time"


ORDERED_COLUMNS: dict[RankBy, InstrumentedAttribute[Any]] = {
    RankBy.TOKENS: StandingRow.tokens_per_s,
    RankBy.TFLOPS: StandingRow.model_tflops_per_device,
    RankBy.MEMORY: StandingRow.peak_memory_bytes_max_rank,
    RankBy.STEP_TIME: StandingRow.step_time_s_median,
}
MORE_IS_BETTER = frozenset({RankBy.TOKENS, RankBy.TFLOPS})

Filters = Mapping[str, int | str]
"""Fields of a recipe, `data_parallel` or `sharding`, by its common name, with the value that each must have."""
DEFAULTS = {one.name: one.neutral for one in DIMENSIONS.values() if one.kind in ("count", "flag", "choice")}
"""Fields of a recipe that can be filtered by, with the value of recipes that were stored before the field existed."""
FILTERS = (*DEFAULTS, "data_parallel", "sharding")
_ALL_COPIES = 10**12
"""Stands for the number of copies in a sharding's degrees; no name spells a degree as large."""


@dataclass(frozen=True, kw_only=True)
class RankedRecipe(Displayed):
    """One recipe with its rank, from 1. `gap_percent` is how much worse it is than the first; 0 for the first."""

    rank: int
    recipe_id: str
    recipe: Recipe
    trial_number: int
    figures: Figures
    standing: RecipeStats
    gap_percent: float


class Ranking(list[RankedRecipe], Displayed):
    """Ranked recipes as a list that a notebook shows as a table."""


def best(
    store: Store,
    campaign: Campaign | str | None,
    *,
    top: int | None = 10,
    by: str = "tokens",
    max_memory_gb: float | None = None,
) -> list[RankedRecipe]:
    """Return the campaign's `top` recipes (None for all), best first; empty where none was measured.

    `by` is one of tokens (tokens/s), tflops (model TFLOPS per device), memory (of the rank that needs most) and
    step-time. `max_memory_gb` leaves out recipes with a rank above that many 1e9 bytes. Equal figures are
    ordered by recipe id.

    Raises `InvalidInput` for an unknown `by`, or for limits that are not above 0.
    """
    require_one_of("best", "by", by, [word.value for word in RankBy])
    if top is not None and top < 1:
        raise bad_value("best.top", top, "at least 1")
    if max_memory_gb is not None and not max_memory_gb > 0:
        raise bad_value("best.max_memory_gb", max_memory_gb, "a size above 0 in GB")
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        return rank(connection, found, by=RankBy(by), top=top, max_memory_gb=max_memory_gb)


def rank(
    connection: Connection,
    campaign: Campaign,
    *,
    by: RankBy = RankBy.TOKENS,
    top: int | None = None,
    max_memory_gb: float | None = None,
) -> list[RankedRecipe]:
    """Rank within a transaction; see `best`."""
    query = (
        select(StandingRow, TrialRow.recipe_json, TrialRow.number)
        .join(TrialRow, TrialRow.id == StandingRow.trial_id)
        .where(StandingRow.campaign_id == campaign.id)
        .order_by(*ordering(by))
        .limit(top)
    )
    if max_memory_gb is not None:
        query = query.where(StandingRow.peak_memory_bytes_max_rank <= max_memory_gb * BYTES_PER_GB)
    rows = connection.execute(query).all()
    return [
        to_ranked(row, campaign, rank=place, better=getattr(rows[0], ORDERED_COLUMNS[by].key), by=by)
        for place, row in enumerate(rows, start=1)
    ]


def pareto(
    store: Store, campaign: Campaign | str | None, *, least_tokens_per_s: float | None = None
) -> list[RankedRecipe]:
    """Return the front of tokens/s (more is better) against the peak memory of the neediest rank (less is better).

    Fastest first, so that memory falls along the list. Of recipes equal in both, the one with the smallest
    recipe id is returned. With `least_tokens_per_s`, slower recipes are left out beforehand.
    """
    memory = StandingRow.peak_memory_bytes_max_rank
    fastest_first = (StandingRow.tokens_per_s.desc(), memory, StandingRow.recipe_id)
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        # Walking from the fastest down, a recipe is on the front if it needs less than all before it.
        least_before = func.min(memory).over(order_by=fastest_first, rows=(None, -1))
        wanted = [StandingRow.campaign_id == found.id]
        if least_tokens_per_s is not None:
            wanted.append(StandingRow.tokens_per_s >= least_tokens_per_s)
        walked = (
            select(StandingRow.trial_id, memory.label("memory"), least_before.label("least_before"))
            .where(*wanted)
            .subquery()
        )
        query = (
            select(StandingRow, TrialRow.recipe_json, TrialRow.number)
            .join(TrialRow, TrialRow.id == StandingRow.trial_id)
            .join(walked, walked.c.trial_id == StandingRow.trial_id)
            .where(or_(walked.c.least_before.is_(None), walked.c.memory < walked.c.least_before))
            .order_by(*fastest_first)
        )
        rows = connection.execute(query).all()
        return [
            to_ranked(row, found, rank=place, better=rows[0].tokens_per_s) for place, row in enumerate(rows, start=1)
        ]


def ordering(by: RankBy) -> tuple[ColumnElement[Any], ...]:
    """Return the ORDER BY of a ranking: the figure, best first, then the recipe id."""
    key = ORDERED_COLUMNS[by]
    return (key.desc() if by in MORE_IS_BETTER else key.asc()), StandingRow.recipe_id.asc()


def gap_percent(figure: float, better: float, *, by: RankBy = RankBy.TOKENS) -> float:
    """Return by how many percent `figure` is worse than `better`: below it where more is better, else above it.

    Where `better` is 0, as memory that a table does not state, there is no gap.
    """
    if not better:
        return 0.0
    return 100.0 * ((better - figure) if by in MORE_IS_BETTER else (figure - better)) / better


def to_ranked(row: Any, campaign: Campaign, *, rank: int, better: float, by: RankBy = RankBy.TOKENS) -> RankedRecipe:
    """Read a row of `standings` joined with its trial's recipe and number; the best recipe has the figure `better`.

    Raises `DamagedCell`, as all that reads rows, so it is called within the transaction.
    """
    stats = to_stats(row)
    return RankedRecipe(
        rank=rank,
        recipe_id=row.recipe_id,
        recipe=cell(TrialRow.recipe_json, row.recipe_json, row.trial_id),
        trial_number=row.number,
        figures=campaign.figures,
        standing=stats,
        gap_percent=gap_percent(getattr(stats, ORDERED_COLUMNS[by].key), better, by=by),
    )


def resolve(connection: Connection, store: Store, campaign: Campaign | str | None) -> Campaign:
    """Return a campaign as it is now; None means the one created last."""
    return find_campaign(connection, campaign.name if isinstance(campaign, Campaign) else campaign, store=store.url)


def has_value(connection: Connection, name: str, value: int | str) -> ColumnElement[bool]:
    """Return the condition that a trial's recipe has this value; raises `InvalidInput` for an unknown filter."""
    if name == "data_parallel":
        whole = _count(connection, "tensor_parallel") * _count(connection, "pipeline_parallel")
        return _count(connection, "devices") // (whole * _count(connection, "context_parallel")) == value
    if name == "sharding":
        return _is_sharded(connection, str(value))
    if name not in DEFAULTS:
        raise bad_value("filter", name, f"one of {', '.join(FILTERS)}")
    field = _field(connection, DIMENSIONS[name].stored)
    same = field == _as_stored(connection, value)
    return (same | field.is_(None)) if DEFAULTS[name] == value else same


def _is_sharded(connection: Connection, name: str) -> ColumnElement[bool]:
    """Compare a recipe's degrees with those of the name over its own copies, as `Sharding.named` defines them.

    With one copy every sharding is "none".
    """
    try:
        wanted = Sharding.named(name, _ALL_COPIES)
    except InvalidInput as error:  # which names it as a campaign file does
        raise InvalidInput(error.message.removeprefix("space."), hint=error.hint) from None
    whole = _count(connection, "tensor_parallel") * _count(connection, "pipeline_parallel")
    copies = _count(connection, "devices") // whole
    found: ColumnElement[bool] = copies > (0 if name == "none" else 1)
    for kind in ("parameters", "gradients", "optimizer"):
        degree = getattr(wanted, kind)
        found &= _count(connection, "sharding", kind) == (copies if degree == _ALL_COPIES else degree)
    return found


def _field(connection: Connection, *path: str) -> ColumnElement[Any]:
    """Return a field of the recipe, as text in PostgreSQL: databases differ in how they read JSON text."""
    if connection.dialect.name == "sqlite":
        found: ColumnElement[Any] = func.json_extract(TrialRow.recipe_json, f"$.{'.'.join(path)}")
    else:
        found = cast(TrialRow.recipe_json, JSON)[path].as_string()
    return found


def _as_stored(connection: Connection, value: int | str) -> int | str:
    """Return a value as `_field` returns it."""
    if connection.dialect.name == "sqlite":
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(connection: Connection, *path: str) -> ColumnElement[int]:
    """Return an integer field; 1 in a recipe that was stored before the field existed."""
    if connection.dialect.name == "sqlite":
        return func.coalesce(_field(connection, *path), 1)
    return func.coalesce(cast(TrialRow.recipe_json, JSON)[path].as_integer(), 1)
