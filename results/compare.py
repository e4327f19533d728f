"""Two campaigns side by side."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select
from sqlalchemy.orm import aliased

from frontrunner.results.cells import Cells
from frontrunner.results.codec import recipe_from_json
from frontrunner.results.pages import cut
from frontrunner.results.ranking import RankedRecipe, rank, resolve
from frontrunner.results.records import Campaign, CampaignSummary
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.store import Store
from frontrunner.results.summaries import summaries
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two campaigns, with its best recipe, None before the first measurement."""

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
    """The two named campaigns; raises `NotFound` where there is no such campaign."""
    one, its_trial, other = StandingRow, aliased(TrialRow), aliased(StandingRow)
    now = store.now()  # before a connection is taken, since a server is asked by one of its own
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
                recipe=Cells(TrialRow, row, row.id).read("recipe_json", recipe_from_json),
                first_tokens_per_s=row.tokens_per_s,
                second_tokens_per_s=row.second,
            )
            for row in rows
        )
    return Comparison(first=sides[0], second=sides[1], shared=shared, total=total)


def _side(connection: Connection, campaign: Campaign, summary: CampaignSummary) -> Side:
    fastest = rank(connection, campaign, top=1)
    return Side(campaign=summary, best=fastest[0] if fastest else None)
