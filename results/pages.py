"""Paged queries: campaigns, ranked recipes, trials, comparisons and attempts, a bounded number at a time.

Pages are counted from 1. A page beyond the last is empty; `total` is the number of items on all pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, func, select
from sqlalchemy.orm import aliased
from sqlalchemy.sql.selectable import GenerativeSelect

from frontrunner.results.outcome import Outcome
from frontrunner.results.ranking import (
    BYTES_PER_GB,
    ORDERED_COLUMNS,
    Filters,
    RankBy,
    RankedRecipe,
    has_value,
    ordering,
    rank,
    resolve,
    to_ranked,
)
from frontrunner.results.records import Campaign, CampaignSummary, Trial
from frontrunner.results.rows import cell, outcomes_by_attempt, to_trial
from frontrunner.results.schema import AttemptRow, CampaignRow, FailureRow, StandingRow, TrialRow
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.results.summaries import SummaryCache, summaries
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.recipe import Recipe

SelectT = TypeVar("SelectT", bound=GenerativeSelect)


@dataclass(frozen=True, kw_only=True)
class CampaignPage:
    """Campaigns, the newest first."""

    items: tuple[CampaignSummary, ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class RecipePage:
    """Measured recipes of one campaign; their ranks are those among all of its recipes."""

    items: tuple[RankedRecipe, ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """A trial with the outcome of its last attempt, None before the first has ended.

    `outcome_number` counts a campaign's final outcomes from 1, as they were recorded; None until there is one.
    """

    trial: Trial
    outcome_number: int | None
    attempts: int
    outcome: Outcome | None


@dataclass(frozen=True, kw_only=True)
class TrialPage:
    """Trials of one campaign, in the order in which they were proposed, or the last first."""

    items: tuple[TrialOutcome, ...]
    total: int


def campaign_page(
    store: Store, *, page: int = 1, page_size: int = 50, known: SummaryCache | None = None
) -> CampaignPage:
    """Return one page of the store's campaigns; for `known` see `frontrunner.results.summaries.summaries`."""
    query = select(CampaignRow.id, CampaignRow.updated_at).order_by(CampaignRow.id.desc())
    now = store.now()  # before a connection is taken: a server's clock needs one of its own
    with store.database.read() as connection:
        found = connection.execute(cut(query, page, page_size)).all()
        total = connection.execute(select(func.count()).select_from(CampaignRow)).scalar_one()
        items = summaries(connection, found, now=now, file=store.database.address.path, known=known)
        return CampaignPage(items=tuple(items), total=total)


def any_campaign(store: Store) -> str | None:
    """Return the name of any campaign, None where there is none: the cheapest query that reads the tables."""
    with store.database.read() as connection:
        name: str | None = connection.execute(select(CampaignRow.name).limit(1)).scalar()
        return name


def newest_names(store: Store, limit: int) -> list[str]:
    """Return the names of the campaigns that were created last, the newest first."""
    query = select(CampaignRow.name).order_by(CampaignRow.id.desc()).limit(limit)
    with store.database.read() as connection:
        return list(connection.execute(query).scalars())


def recipe_page(  # noqa: PLR0913 - the parameters of a query, each by its name
    store: Store,
    campaign: str | None,
    *,
    by: RankBy = RankBy.TOKENS,
    filters: Filters | None = None,
    max_memory_gb: float | None = None,
    page: int = 1,
    page_size: int = 50,
) -> RecipePage:
    """Return one page of a campaign's measured recipes that pass the filters, best first.

    Raises `InvalidInput` for an unknown filter.
    """
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        mine = StandingRow.campaign_id == found.id
        key = ORDERED_COLUMNS[by]
        place = func.row_number().over(order_by=ordering(by)).label("place")
        best = func.first_value(key).over(order_by=ordering(by)).label("best")
        ranked = select(StandingRow.trial_id, place, best).where(mine).subquery()
        wanted = _wanted(connection, filters or {}, max_memory_gb)
        query = (
            select(StandingRow, TrialRow.recipe_json, TrialRow.number, ranked.c.place, ranked.c.best)
            .join(ranked, ranked.c.trial_id == StandingRow.trial_id)
            .join(TrialRow, TrialRow.id == StandingRow.trial_id)
            .where(mine, *wanted)
            .order_by(ranked.c.place)
        )
        counted = select(func.count()).select_from(StandingRow).join(TrialRow, TrialRow.id == StandingRow.trial_id)
        total = connection.execute(counted.where(mine, *wanted)).scalar_one()
        rows = connection.execute(cut(query, page, page_size)).all()
        items = tuple(to_ranked(row, found, rank=row.place, better=row.best, by=by) for row in rows)
    return RecipePage(items=items, total=total)


def trial_page(
    store: Store,
    campaign: str | None,
    *,
    state: TrialState | None = None,
    newest_first: bool = False,
    page: int = 1,
    page_size: int = 50,
) -> TrialPage:
    """Return one page of a campaign's trials, of one state or of all, by their numbers or in reverse."""
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        wanted = [TrialRow.campaign_id == found.id] + ([] if state is None else [TrialRow.state == state])
        total = connection.execute(select(func.count()).select_from(TrialRow).where(*wanted)).scalar_one()
        query = select(TrialRow).where(*wanted).order_by(TrialRow.number.desc() if newest_first else TrialRow.number)
        rows = connection.execute(cut(query, page, page_size)).all()
        return TrialPage(items=_with_outcomes(connection, rows), total=total)


def outcomes_after(store: Store, campaign_id: int, after: int, limit: int) -> tuple[TrialOutcome, ...]:
    """Return up to `limit` trials whose final outcome has a number above `after`, by that number."""
    query = (
        select(TrialRow)
        .where(TrialRow.campaign_id == campaign_id, TrialRow.outcome_number > after)
        .order_by(TrialRow.outcome_number)
        .limit(limit)
    )
    with store.database.read() as connection:
        return _with_outcomes(connection, connection.execute(query).all())


def _with_outcomes(connection: Connection, rows: Sequence[Any]) -> tuple[TrialOutcome, ...]:
    last = (
        select(func.max(AttemptRow.id).label("id"), AttemptRow.trial_id, func.count().label("attempts"))
        .where(AttemptRow.trial_id.in_([row.id for row in rows]))
        .group_by(AttemptRow.trial_id)
    )
    tries = {row.trial_id: row for row in connection.execute(last)}
    attempts = select(AttemptRow.id).where(AttemptRow.id.in_([row.id for row in tries.values()]))
    outcomes = outcomes_by_attempt(connection, attempts)
    return tuple(
        TrialOutcome(
            trial=to_trial(row),
            outcome_number=row.outcome_number,
            attempts=tries[row.id].attempts if row.id in tries else 0,
            outcome=outcomes.get(tries[row.id].id) if row.id in tries else None,
        )
        for row in rows
    )


def _wanted(connection: Connection, filters: Filters, max_memory_gb: float | None) -> list[ColumnElement[bool]]:
    wanted = [has_value(connection, name, value) for name, value in filters.items()]
    if max_memory_gb is not None:
        wanted.append(StandingRow.peak_memory_bytes_max_rank <= max_memory_gb * BYTES_PER_GB)
    return wanted


def cut(query: SelectT, page: int, page_size: int) -> SelectT:
    """Return the query for one page; raises `InvalidInput` if the page number or size is below 1."""
    if page < 1 or page_size < 1:
        raise bad_value("page, page_size", f"{page}, {page_size}", "numbers of at least 1")
    return query.limit(page_size).offset((page - 1) * page_size)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of two compared campaigns, with its best recipe, None before the first measurement."""

    campaign: CampaignSummary
    best: RankedRecipe | None


@dataclass(frozen=True, kw_only=True)
class SharedRecipe:
    """A recipe that both campaigns measured. `speed_ratio` is the second's tokens/s over the first's."""

    recipe_id: str
    recipe: Recipe
    first_tokens_per_s: float
    second_tokens_per_s: float

    @property
    def speed_ratio(self) -> float:
        """second_tokens_per_s / first_tokens_per_s."""
        return self.second_tokens_per_s / self.first_tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Both campaigns, and a page of the `total` recipes that both measured, the first campaign's fastest first.

    A recipe's id holds its problem, so that campaigns of different problems share none.
    """

    first: Side
    second: Side
    shared: tuple[SharedRecipe, ...]
    total: int


def compare(store: Store, first: str, second: str, *, page: int = 1, page_size: int = 50) -> Comparison:
    """Compare two named campaigns; raises `NotFound` where there is no such campaign."""
    one, its_trial, other = StandingRow, aliased(TrialRow), aliased(StandingRow)
    now = store.now()  # before a connection is taken: a server's clock needs one of its own
    with store.database.read() as connection:
        left, right = resolve(connection, store, first), resolve(connection, store, second)
        query = (  # by way of the other's trial, which has an index by campaign and recipe
            select(
                one.recipe_id, one.tokens_per_s, other.tokens_per_s.label("second"), its_trial.id, its_trial.recipe_json
            )
            .join(its_trial, and_(its_trial.campaign_id == right.id, its_trial.recipe_id == one.recipe_id))
            .join(other, other.trial_id == its_trial.id)
            .where(one.campaign_id == left.id)
            .order_by(one.tokens_per_s.desc(), one.recipe_id)
        )
        total = connection.execute(select(func.count()).select_from(query.order_by(None).subquery())).scalar_one()
        rows = connection.execute(cut(query, page, page_size)).all()
        seen = summaries(connection, (left, right), now=now, file=store.database.address.path)
        sides = [_side(connection, campaign, summary) for campaign, summary in zip((left, right), seen, strict=True)]
        shared = tuple(
            SharedRecipe(
                recipe_id=row.recipe_id,
                recipe=cell(TrialRow.recipe_json, row.recipe_json, row.id),
                first_tokens_per_s=row.tokens_per_s,
                second_tokens_per_s=row.second,
            )
            for row in rows
        )
    return Comparison(first=sides[0], second=sides[1], shared=shared, total=total)


def _side(connection: Connection, campaign: Campaign, summary: CampaignSummary) -> Side:
    fastest = rank(connection, campaign, top=1)
    return Side(campaign=summary, best=fastest[0] if fastest else None)


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """One attempt; `ended` is its state, or the kind of its failure; `finished_at` is None while it runs."""

    trial_number: int
    number: int
    recipe_id: str
    recipe: Recipe
    ended: str
    started_at: str
    finished_at: str | None


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The newest attempts of a campaign, oldest first, of `total`."""

    items: tuple[AttemptSpan, ...]
    total: int


def newest_spans(store: Store, campaign_id: int, limit: int) -> Spans:
    """Return the `limit` attempts of a campaign that were begun last."""
    mine = AttemptRow.campaign_id == campaign_id
    newest = select(AttemptRow.id).where(mine).order_by(AttemptRow.id.desc()).limit(limit).subquery()
    query = (
        select(
            AttemptRow.id,
            AttemptRow.number,
            AttemptRow.state,
            AttemptRow.started_at,
            AttemptRow.finished_at,
            AttemptRow.trial_id,
            TrialRow.recipe_id,
            TrialRow.recipe_json,
            TrialRow.number.label("trial"),
            FailureRow.kind,
        )
        .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
        .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.id.in_(select(newest.c.id)))  # found in an index first: rows of attempts are wide
        .order_by(AttemptRow.id.desc())
    )
    with store.database.read() as connection:
        rows = connection.execute(query).all()
        total = connection.execute(select(func.count()).select_from(AttemptRow).where(mine)).scalar_one()
        return Spans(items=tuple(_span(row) for row in reversed(rows)), total=total)


def _span(row: Any) -> AttemptSpan:
    return AttemptSpan(
        trial_number=row.trial,
        number=row.number,
        recipe_id=row.recipe_id,
        recipe=cell(TrialRow.recipe_json, row.recipe_json, row.trial_id),
        ended=row.kind or row.state,
        started_at=cell(AttemptRow.started_at, row.started_at, row.id),
        finished_at=cell(AttemptRow.finished_at, row.finished_at, row.id),
    )
