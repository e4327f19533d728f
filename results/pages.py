"""Queries of campaigns, ranked recipes, trials and attempts, a page at a time or all of a
campaign's.

Pages are counted from 1. A page after the last is empty; `total` is the number of items on all
pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, and_, func, select
from sqlalchemy.orm import aliased
from sqlalchemy.sql.selectable import GenerativeSelect

from frontrunner.results.displayed_rows import frame_of
from frontrunner.results.lease import is_held
from frontrunner.results.outcome import Outcome
from frontrunner.results.predictions import FORECASTS
from frontrunner.results.ranking import (
    BYTES_PER_GB,
    ORDERED_COLUMNS,
    Filters,
    RankBy,
    RankedRecipe,
    best_of,
    check_filters,
    conditions,
    ordering,
    rank,
)
from frontrunner.results.records import AttemptOutcome, Campaign, CampaignSummary, Event, Trial
from frontrunner.results.rows import attempts_by_trial, cell, read_attempts, value_of, values
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    EventRow,
    StandingRow,
    TrialRow,
)
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
SelectT = TypeVar("SelectT", bound=GenerativeSelect)


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T], Displayed):
    """Some of `total` items."""

    items: tuple[T, ...]
    total: int

    def to_frame(self) -> pd.DataFrame:
        """Return the items as a data frame, as lists of the API do."""
        return frame_of(self.items)


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """A trial with the outcome of its last attempt; `outcome_number` counts a campaign's final
    outcomes from 1.
    """

    trial: Trial
    outcome_number: int | None
    attempts: int
    outcome: Outcome | None


CampaignPage = Page[CampaignSummary]
RecipePage = Page[RankedRecipe]
TrialPage = Page[TrialOutcome]
HistoryPage = Page[Event]


def campaign_page(store: Store, *, page: int = 1, page_size: int = 50) -> CampaignPage:
    """Return one page of the store's campaigns."""
    query = cut(select(CampaignRow.id).order_by(CampaignRow.id.desc()), page, page_size)
    with store.database.read() as connection:
        total = connection.execute(select(func.count()).select_from(CampaignRow)).scalar_one()
        items = store.summaries(connection, connection.execute(query).scalars().all())
        return CampaignPage(items=tuple(items), total=total)


def newest_names(store: Store, limit: int) -> list[str]:
    """Return the names of the campaigns that were created last, the newest first."""
    query = select(CampaignRow.name).order_by(CampaignRow.id.desc()).limit(limit)
    with store.database.read() as connection:
        return list(connection.execute(query).scalars())


def history_page(
    store: Store, campaign: str | None, *, page: int = 1, page_size: int = 50
) -> HistoryPage:
    """Return one page of a campaign's history, the newest first: every event but forecasts."""
    with store.read(campaign) as (connection, found):
        mine = (EventRow.campaign_id == found.id, EventRow.kind.not_in(FORECASTS))
        query = cut(select(EventRow.id).where(*mine).order_by(EventRow.id.desc()), page, page_size)
        items = values(connection, Event, EventRow.id.in_(query), order=EventRow.id.desc())
        total = connection.execute(
            select(func.count()).select_from(EventRow).where(*mine)
        ).scalar_one()
    return HistoryPage(items=tuple(items), total=total)


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
    """Return one page of a campaign's measured recipes that pass the filters, best first, with
    ranks among all.
    """
    check_filters(filters or {})
    check_page(page, page_size)
    most_bytes = None if max_memory_gb is None else max_memory_gb * BYTES_PER_GB
    columns = [StandingRow.trial_id, StandingRow.peak_memory_bytes_max_rank.label("memory")]
    with store.database.reading(), store.read(campaign) as (connection, found):
        figure = ORDERED_COLUMNS[by].label("figure")
        query = select(*columns, figure).where(
            StandingRow.campaign_id == found.id, *conditions(by, None)
        )
        rows = connection.execute(query.order_by(*ordering(by))).all()
        passing = _passing(store, found, filters) if filters else None
        places = {
            row.trial_id: place
            for place, row in enumerate(rows, start=1)
            if (most_bytes is None or 0 < row.memory <= most_bytes)
            and (passing is None or row.trial_id in passing)
        }
        shown = list(places)[(page - 1) * page_size : page * page_size]
        items = rank(
            connection,
            found,
            StandingRow.trial_id.in_(shown),
            by=by,
            ranks=[places[trial_id] for trial_id in shown],
            better=rows[0].figure if rows else None,
        )
    return RecipePage(items=tuple(items), total=len(places))


def _passing(store: Store, campaign: Campaign, filters: Filters) -> frozenset[int]:
    from frontrunner.results.snapshot import passing

    return passing(store, campaign, filters)


def trial_page(
    store: Store,
    campaign: str | None,
    *,
    state: TrialState | None = None,
    newest_first: bool = False,
    page: int = 1,
    page_size: int = 50,
) -> TrialPage:
    """Return one page of a campaign's trials, of one state or of all, by their numbers or in
    reverse.
    """
    with store.read(campaign) as (connection, found):
        wanted = [TrialRow.campaign_id == found.id] + (
            [] if state is None else [TrialRow.state == state]
        )
        total = connection.execute(
            select(func.count()).select_from(TrialRow).where(*wanted)
        ).scalar_one()
        query = (
            select(TrialRow)
            .where(*wanted)
            .order_by(TrialRow.number.desc() if newest_first else TrialRow.number)
        )
        rows = connection.execute(cut(query, page, page_size)).all()
        return TrialPage(items=with_outcomes(connection, rows), total=total)


def outcomes_after(
    store: Store, campaign_id: int, after: int, limit: int
) -> tuple[TrialOutcome, ...]:
    """Return up to `limit` trials whose final outcome has a number above `after`, by that
    number.
    """
    mine = (TrialRow.campaign_id == campaign_id, TrialRow.outcome_number > after)
    query = select(TrialRow).where(*mine).order_by(TrialRow.outcome_number).limit(limit)
    with store.database.read() as connection:
        return with_outcomes(connection, connection.execute(query).all())


def newest_outcomes(store: Store, campaign_id: int, limit: int) -> tuple[TrialOutcome, ...]:
    """Return the `limit` trials whose final outcomes were recorded last, the newest first."""
    mine = (TrialRow.campaign_id == campaign_id, TrialRow.outcome_number.is_not(None))
    query = select(TrialRow).where(*mine).order_by(TrialRow.outcome_number.desc()).limit(limit)
    with store.database.read() as connection:
        return with_outcomes(connection, connection.execute(query).all())


def with_outcomes(connection: Connection, rows: Sequence[Any]) -> tuple[TrialOutcome, ...]:
    """Return rows of `TrialRow` with their outcomes, within a transaction."""
    tries = attempts_by_trial(connection, AttemptRow.trial_id.in_([row.id for row in rows]))
    return tuple(
        TrialOutcome(
            trial=value_of(Trial, row),
            outcome_number=row.outcome_number,
            attempts=len(tries.get(row.id, ())),
            outcome=tries[row.id][-1].outcome if row.id in tries else None,
        )
        for row in rows
    )


def check_page(page: int, page_size: int) -> None:
    """Raise `InvalidInput` if the page number or size is below 1."""
    if page < 1 or page_size < 1:
        raise bad_value("page, page_size", f"{page}, {page_size}", "numbers of at least 1")


def cut(query: SelectT, page: int, page_size: int) -> SelectT:
    """Return the query for one page."""
    check_page(page, page_size)
    return query.limit(page_size).offset((page - 1) * page_size)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of several compared campaigns, with its best recipe, None before the first
    measurement.
    """

    campaign: CampaignSummary
    best: RankedRecipe | None


@dataclass(frozen=True, kw_only=True)
class SharedRecipe:
    """A recipe that all compared campaigns measured, with its tokens/s in each."""

    recipe_id: str
    recipe: Recipe
    tokens_per_s: tuple[float, ...]

    @property
    def speed_ratios(self) -> tuple[float, ...]:
        """tokens_per_s / tokens_per_s of the first."""
        return tuple(rate / self.tokens_per_s[0] for rate in self.tokens_per_s)


@dataclass(frozen=True, kw_only=True)
class Comparison(Displayed):
    """Campaigns, and a page of the `total` recipes that all of them measured, the first campaign's
    fastest first.
    """

    sides: tuple[Side, ...]
    shared: tuple[SharedRecipe, ...]
    total: int


MOST_COMPARED = 8


def check_compared(names: Sequence[str]) -> None:
    """Raise `InvalidInput` for fewer than two names, or too many."""
    if not 2 <= len(names) <= MOST_COMPARED:
        raise bad_value("campaigns", ", ".join(names) or "none", f"2 to {MOST_COMPARED} to compare")


def compare(
    store: Store, names: Sequence[str], *, page: int = 1, page_size: int = 50
) -> Comparison:
    """Compare two named campaigns or more."""
    check_compared(names)
    one, first_trial = StandingRow, aliased(TrialRow)
    with store.database.reading(), store.database.read() as connection:
        campaigns = [store.campaign(name) for name in names]
        query = select(one.recipe_id, one.trial_id, first_trial.recipe_json, one.tokens_per_s)
        query = query.join(first_trial, first_trial.id == one.trial_id).where(
            one.campaign_id == campaigns[0].id
        )
        for place, campaign in enumerate(campaigns[1:], start=1):
            # By way of the other's trial, which has an index by campaign and recipe.
            trial, other = aliased(TrialRow), aliased(StandingRow)
            query = query.add_columns(other.tokens_per_s.label(f"rate_{place}"))
            query = query.join(
                trial, and_(trial.campaign_id == campaign.id, trial.recipe_id == one.recipe_id)
            )
            query = query.join(other, other.trial_id == trial.id)
        total = connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
        query = query.order_by(one.tokens_per_s.desc(), one.recipe_id)
        shared = tuple(
            SharedRecipe(
                recipe_id=recipe_id,
                recipe=cell(TrialRow.recipe_json, recipe_json, trial_id),
                tokens_per_s=tuple(rates),
            )
            for recipe_id, trial_id, recipe_json, *rates in connection.execute(
                cut(query, page, page_size)
            )
        )
        summaries = store.summaries(connection, [campaign.id for campaign in campaigns])
        sides = tuple(
            Side(campaign=summary, best=next(iter(rank(connection, campaign, top=1)), None))
            for campaign, summary in zip(campaigns, summaries, strict=True)
        )
    return Comparison(sides=sides, shared=shared, total=total)


def newest_spans(store: Store, campaign_id: int, limit: int) -> Page[AttemptOutcome]:
    """Return the `limit` attempts of a campaign that were begun last, oldest first."""
    mine = AttemptRow.campaign_id == campaign_id
    with store.database.read() as connection:
        total = connection.execute(
            select(func.count()).select_from(AttemptRow).where(mine)
        ).scalar_one()
        return Page(items=tuple(read_attempts(connection, mine, newest=limit)), total=total)


def under_way(store: Store, campaign: Campaign, limit: int) -> tuple[bool, Page[AttemptOutcome]]:
    """Return whether a driver holds the campaign, and the first `limit` attempts that it has under
    way.
    """
    with store.database.read() as connection:
        row = connection.execute(select(CampaignRow).where(CampaignRow.id == campaign.id)).one()
        if not is_held(store.database, connection, row):
            return False, Page(items=(), total=0)
        # Those that an earlier driver left under way are older: this one has yet to collect them.
        is_its_own = AttemptRow.started_at >= row.driven_since
        mine = (
            AttemptRow.campaign_id == campaign.id,
            AttemptRow.state == AttemptState.RUNNING,
            is_its_own,
        )
        total = connection.execute(
            select(func.count()).select_from(AttemptRow).where(*mine)
        ).scalar_one()
        first = connection.execute(
            select(AttemptRow.id).where(*mine).order_by(AttemptRow.id).limit(limit)
        ).scalars()
        return True, Page(
            items=tuple(read_attempts(connection, AttemptRow.id.in_(first.all()))), total=total
        )


def rank_of(store: Store, campaign: Campaign, recipe_id: str) -> int | None:
    """Return a recipe's rank by what the campaign seeks, None where it has none."""
    from frontrunner.results.snapshot import attempts_of

    trials = attempts_of(store, campaign).trials
    row = trials.row_of.get(recipe_id)
    return None if row is None else int(trials.ranks[row]) or None


def ranked_at(store: Store, campaign: Campaign, places: Mapping[str, int]) -> list[RankedRecipe]:
    """Return some recipes of the ranking, given as recipe id -> rank, the first included."""
    with store.read(campaign) as (connection, found):
        rows = best_of(connection, found, StandingRow.recipe_id.in_(places))
    return [replace(row, rank=places[row.recipe_id]) for row in rows]


@dataclass(frozen=True, kw_only=True)
class TrialHistory:
    """A trial and its attempts in the order of their start."""

    trial: Trial
    attempts: tuple[AttemptOutcome, ...]


def trial_histories(store: Store, campaign_id: int) -> list[TrialHistory]:
    """Return every trial of the campaign with its attempts, by number."""
    with store.database.reading(), store.database.read() as connection:
        tries = attempts_by_trial(connection, AttemptRow.campaign_id == campaign_id)
        return [
            TrialHistory(trial=one, attempts=tuple(tries.get(one.id, ())))
            for one in store.trials(campaign_id)
        ]
