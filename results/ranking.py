"""Which recipes of a campaign are best: one row a recipe, repeats pooled, in an order that never varies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, select
from sqlalchemy.orm import InstrumentedAttribute

from frontrunner.notebook import Displayed
from frontrunner.results.cells import Cells
from frontrunner.results.codec import recipe_from_json
from frontrunner.results.from_columns import standing_from_columns
from frontrunner.results.records import Campaign, Figures, Standing
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.store import Store, find_campaign
from frontrunner.spaces.errors import bad_value, require_one_of
from frontrunner.spaces.recipe import Recipe

BYTES_PER_GB = 1e9


class RankBy(StrEnum):
    """What recipes are ordered by; the first two the more the better, the others the less."""

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


@dataclass(frozen=True, kw_only=True)
class RankedRecipe(Displayed):
    """One recipe with its place, from 1. `gap_percent` is how much worse it is than the first; 0 for the first."""

    rank: int
    recipe_id: str
    recipe: Recipe
    trial_number: int
    figures: Figures
    standing: Standing
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
    """The campaign's `top` recipes (None for all), best first; empty where none was measured.

    `by` is one of tokens (tokens/s), tflops (model TFLOPS a device), memory (the rank that needs most) and
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
    """`best` inside a transaction, its arguments checked."""
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


def ordering(by: RankBy) -> tuple[ColumnElement[Any], ...]:
    """The ORDER BY of a ranking: the figure, best first, then the recipe id."""
    key = ORDERED_COLUMNS[by]
    return (key.desc() if by in MORE_IS_BETTER else key.asc()), StandingRow.recipe_id.asc()


def gap_percent(figure: float, better: float, *, by: RankBy = RankBy.TOKENS) -> float:
    """How many percent `figure` is worse than `better`: below it where more is better, else above it."""
    return 100.0 * ((better - figure) if by in MORE_IS_BETTER else (figure - better)) / better


def to_ranked(row: Any, campaign: Campaign, *, rank: int, better: float, by: RankBy = RankBy.TOKENS) -> RankedRecipe:
    """A row of `standings` joined with its trial's recipe and number, in `campaign`; the best has the figure `better`.

    Raises `DamagedCell`, as all that reads rows, so it is called within the transaction.
    """
    standing = standing_from_columns(row)
    cells = Cells(StandingRow, row, row.trial_id)
    return RankedRecipe(
        rank=rank,
        recipe_id=row.recipe_id,
        recipe=Cells(TrialRow, row, row.trial_id).read("recipe_json", recipe_from_json),
        trial_number=row.number,
        figures=campaign.figures,
        standing=standing,
        gap_percent=cells.read(ORDERED_COLUMNS[by].key, lambda figure: gap_percent(figure, better, by=by)),
    )


def resolve(connection: Connection, store: Store, campaign: Campaign | str | None) -> Campaign:
    """The campaign that a question is about, as it is now; None stands for the one created last."""
    return find_campaign(connection, campaign.name if isinstance(campaign, Campaign) else campaign, store=store.url)
