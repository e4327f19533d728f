"""When a campaign's attempts ran, without what they measured: for drawing many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from frontrunner.results.cells import Cells
from frontrunner.results.codec import recipe_from_json
from frontrunner.results.schema import AttemptRow, FailureRow, TrialRow
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe


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
    """Up to `limit` attempts of a campaign: those that were begun last."""
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
    cells = Cells(AttemptRow, row, row.id)
    cells.time("started_at")
    if row.finished_at is not None:
        cells.time("finished_at")
    return AttemptSpan(
        trial_number=row.trial,
        number=row.number,
        recipe_id=row.recipe_id,
        recipe=Cells(TrialRow, row, row.trial_id).read("recipe_json", recipe_from_json),
        ended=row.kind or row.state,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )
