"""Everything that a store holds about one recipe, and why it ranks where it does."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from frontrunner.notebook import Displayed
from frontrunner.results.outcome import Outcome, RecipeStats
from frontrunner.results.provenance import Provenance
from frontrunner.results.ranking import RankedRecipe, gap_percent, rank
from frontrunner.results.records import Attempt, Campaign, Trial
from frontrunner.results.rows import DamagedCell, provenance_by_attempt, read_attempts, values
from frontrunner.results.schema import AttemptRow, CampaignRow, StandingRow, TrialRow
from frontrunner.results.store import Store
from frontrunner.spaces.errors import NotFound, bad_value
from frontrunner.spaces.recipe import Recipe

MIN_PREFIX = 4
MOST_CANDIDATES = 8


@dataclass(frozen=True, kw_only=True)
class ExplainedAttempt:
    """One attempt, its outcome (None while it runs), and what its driver ran with."""

    attempt: Attempt
    outcome: Outcome | None
    provenance: Provenance | None


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """The recipe ranked next above or below.

    `gap_percent` is how much slower the slower of the two is; `within_spread` that this is no more than the larger
    of their spreads, so that another measurement could turn the order round.
    """

    recipe_id: str
    recipe: Recipe
    tokens_per_s: float
    gap_percent: float
    within_spread: bool


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """The recipe in one campaign. It ranks by tokens/s as `rank` of `ranked_recipes`, None where it does not."""

    campaign: Campaign
    trial: Trial
    attempts: tuple[ExplainedAttempt, ...]
    standing: RecipeStats | None
    rank: int | None
    ranked_recipes: int
    above: Neighbor | None
    below: Neighbor | None


@dataclass(frozen=True, kw_only=True)
class Explanation(Displayed):
    """A recipe and its appearances, the newest campaign first."""

    recipe_id: str
    recipe: Recipe
    appearances: tuple[Appearance, ...]


def explain(store: Store, recipe_id: str) -> Explanation:
    """Return what the store holds about the recipe with this id, or with a unique prefix of it.

    Raises `InvalidInput` for a short prefix, and `NotFound`, naming candidates, where no recipe or more than one
    begins so.
    """
    prefix = recipe_id.strip().lower()
    if len(prefix) < MIN_PREFIX:
        raise bad_value("recipe id", prefix, f"at least the first {MIN_PREFIX} characters of one")
    with store.database.read() as connection:
        full_id = _complete_id(connection, prefix)
        trials = values(connection, Trial, TrialRow.recipe_id == full_id, order=TrialRow.campaign_id.desc())
        appearances = tuple(_appearance(connection, trial) for trial in trials)
    return Explanation(recipe_id=full_id, recipe=appearances[0].trial.recipe, appearances=appearances)


def _complete_id(connection: Connection, prefix: str) -> str:
    alike = select(TrialRow.recipe_id).where(_begins(prefix)).distinct()
    found = connection.execute(alike.order_by(TrialRow.recipe_id).limit(MOST_CANDIDATES)).scalars().all()
    if len(found) == 1 or prefix in found:
        return prefix if prefix in found else found[0]
    if found:
        raise NotFound(f"more than one recipe id begins with {prefix!r}", hint=f"one of: {', '.join(found)}")
    # Only ids that begin alike are compared: comparing 100,000 takes seconds.
    alike = select(TrialRow.recipe_id).where(_begins(prefix[:2])).distinct()
    close = difflib.get_close_matches(prefix, connection.execute(alike.limit(1000)).scalars(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "list the measured ones: frontrunner best"
    raise NotFound(f"no recipe id begins with {prefix!r}", hint=hint)


def _begins(prefix: str) -> ColumnElement[bool]:
    """Return the condition that a recipe id has this prefix; SQLite uses the index for the bounds, but not for LIKE."""
    recipe_id = TrialRow.recipe_id  # "z" comes after every hexadecimal digit in the order of any database
    return and_(recipe_id >= prefix, recipe_id < prefix + "z", recipe_id.startswith(prefix, autoescape=True))


def _appearance(connection: Connection, trial: Trial) -> Appearance:
    campaigns = values(connection, Campaign, CampaignRow.id == trial.campaign_id)
    if not campaigns:
        raise DamagedCell(TrialRow, trial.id, "campaign_id", f"there is no campaign {trial.campaign_id}")
    mine = AttemptRow.trial_id == trial.id
    ran_with = provenance_by_attempt(connection, mine)
    ranked = select(func.count()).select_from(StandingRow).where(StandingRow.campaign_id == trial.campaign_id)
    row = connection.execute(select(StandingRow).where(StandingRow.trial_id == trial.id)).first()
    place, near = None, []
    if row is not None:
        speed, name = StandingRow.tokens_per_s, StandingRow.recipe_id
        # In this form the index by speed is walked.
        faster = and_(speed >= row.tokens_per_s, or_(speed > row.tokens_per_s, name < row.recipe_id))
        place = connection.execute(ranked.where(faster)).scalar_one() + 1
        near = rank(connection, campaigns[0], top=2 if place == 1 else 3, offset=max(0, place - 2))
    at = next((index for index, one in enumerate(near) if one.trial_number == trial.number), 0)
    return Appearance(
        campaign=campaigns[0],
        trial=trial,
        attempts=tuple(
            ExplainedAttempt(attempt=one.attempt, outcome=one.outcome, provenance=ran_with.get(one.attempt.id))
            for one in read_attempts(connection, mine)
        ),
        standing=near[at].standing if near else None,
        rank=place,
        ranked_recipes=connection.execute(ranked).scalar_one(),
        above=_neighbor(near[at - 1], near[at - 1], near[at]) if at else None,
        below=_neighbor(near[at + 1], near[at], near[at + 1]) if near[at + 1 :] else None,
    )


def _neighbor(other: RankedRecipe, faster: RankedRecipe, slower: RankedRecipe) -> Neighbor:
    gap = gap_percent(slower.standing.tokens_per_s, faster.standing.tokens_per_s)
    return Neighbor(
        recipe_id=other.recipe_id,
        recipe=other.recipe,
        tokens_per_s=other.standing.tokens_per_s,
        gap_percent=gap,
        within_spread=gap <= 100.0 * max(faster.standing.step_time_spread, slower.standing.step_time_spread),
    )
