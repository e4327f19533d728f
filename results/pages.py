"""A store in pages: campaigns, ranked recipes and trials, a bounded number at a time.

Pages are counted from 1. A page beyond the last is empty; `total` says how many items there are on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.sql.selectable import GenerativeSelect

from frontrunner.results.outcome import Outcome
from frontrunner.results.ranking import (
    BYTES_PER_GB,
    ORDERED_COLUMNS,
    RankBy,
    RankedRecipe,
    ordering,
    resolve,
    to_ranked,
)
from frontrunner.results.recipe_filters import Filters, has
from frontrunner.results.records import CampaignSummary, Trial
from frontrunner.results.rows import outcomes_by_attempt, to_trial
from frontrunner.results.schema import AttemptRow, CampaignRow, StandingRow, TrialRow
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.results.summaries import Known, summaries
from frontrunner.spaces.errors import bad_value

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


def campaign_page(store: Store, *, page: int = 1, page_size: int = 50, known: Known | None = None) -> CampaignPage:
    """One page of the store's campaigns; for `known` see `frontrunner.results.summaries.summaries`."""
    query = select(CampaignRow.id, CampaignRow.updated_at).order_by(CampaignRow.id.desc())
    now = store.now()  # before a connection is taken, since a server is asked by one of its own
    with store.database.read() as connection:
        found = connection.execute(cut(query, page, page_size)).all()
        total = connection.execute(select(func.count()).select_from(CampaignRow)).scalar_one()
        items = summaries(connection, found, now=now, file=store.database.address.path, known=known)
        return CampaignPage(items=tuple(items), total=total)


def any_campaign(store: Store) -> str | None:
    """The name of one campaign of the store, None where it has none: the smallest question that reads its tables."""
    with store.database.read() as connection:
        name: str | None = connection.execute(select(CampaignRow.name).limit(1)).scalar()
        return name


def newest_names(store: Store, limit: int) -> list[str]:
    """The names of the campaigns that were created last, the newest first."""
    query = select(CampaignRow.name).order_by(CampaignRow.id.desc()).limit(limit)
    with store.database.read() as connection:
        return list(connection.execute(query).scalars())


def recipe_page(  # noqa: PLR0913 - a question's parts, each by its name
    store: Store,
    campaign: str | None,
    *,
    by: RankBy = RankBy.TOKENS,
    filters: Filters | None = None,
    max_memory_gb: float | None = None,
    page: int = 1,
    page_size: int = 50,
) -> RecipePage:
    """One page of a campaign's measured recipes that pass the filters, best first.

    Raises `InvalidInput` for a filter that is none.
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
    """One page of a campaign's trials, of one state or of all, in the order of their numbers or against it."""
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        wanted = [TrialRow.campaign_id == found.id] + ([] if state is None else [TrialRow.state == state])
        total = connection.execute(select(func.count()).select_from(TrialRow).where(*wanted)).scalar_one()
        query = select(TrialRow).where(*wanted).order_by(TrialRow.number.desc() if newest_first else TrialRow.number)
        rows = connection.execute(cut(query, page, page_size)).all()
        return TrialPage(items=_with_outcomes(connection, rows), total=total)


def outcomes_after(store: Store, campaign_id: int, after: int, limit: int) -> tuple[TrialOutcome, ...]:
    """Up to `limit` trials whose final outcome has a number above `after`, in the order of these."""
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
    wanted = [has(connection, name, value) for name, value in filters.items()]
    if max_memory_gb is not None:
        wanted.append(StandingRow.peak_memory_bytes_max_rank <= max_memory_gb * BYTES_PER_GB)
    return wanted


def cut(query: SelectT, page: int, page_size: int) -> SelectT:
    """The query for one page alone; raises `InvalidInput` for a page that is none."""
    if page < 1 or page_size < 1:
        raise bad_value("page, page_size", f"{page}, {page_size}", "numbers of at least 1")
    return query.limit(page_size).offset((page - 1) * page_size)
