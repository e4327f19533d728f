"""Campaigns made of outcomes that others measured, one per problem of an imported table.

The state of such a campaign is `finished`, and its strategy and figures are `imported`. Rows of one
recipe are attempts of one trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, insert, select

from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.results.process_identity import acting_user
from frontrunner.results.records import IMPORTED, USER, timestamp
from frontrunner.results.rows import (
    finished_attempts,
)
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    EventRow,
    TrialRow,
    recipe_to_json,
)
from frontrunner.results.states import (
    AttemptState,
    CampaignState,
    TrialState,
)
from frontrunner.results.store import Store
from frontrunner.results.writer import insert_outcome, rewrite_stats
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import free_among
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ImportedOutcome:
    """One row of a table: the outcome of a recipe, and where it comes from, as `sweep.csv row
    17`.
    """

    recipe_id: str
    recipe: Recipe
    outcome: Outcome
    origin: str


@dataclass(frozen=True, kw_only=True)
class ImportedCampaign:
    """The rows of one problem; `name` is what the campaign is called unless another has that
    name.
    """

    name: str
    spec_json: str
    problem_summary: Mapping[str, object]
    outcomes: tuple[ImportedOutcome, ...]


def add_imported(
    store: Store,
    campaigns: Sequence[ImportedCampaign],
    *,
    about: Mapping[str, str | int],
    preview: bool = False,
) -> tuple[ImportedCampaign, ...]:
    """Store imported rows that are not stored yet, all or, on an error, none; return them under the
    campaigns' names.

    `about` becomes an event of each campaign: the file and what became of its rows. A preview
    writes nothing.
    """
    now, kept = timestamp(store.now()), []
    with store.database.read() if preview else store.database.write(whole_store=True) as connection:
        known = _known(connection)
        taken = set(connection.execute(select(CampaignRow.name)).scalars())
        for campaign in campaigns:
            new = tuple(
                row
                for row in campaign.outcomes
                if _identity(row.recipe_id, row.outcome) not in known
            )
            if new:
                kept.append(replace(campaign, name=free_among(taken, campaign.name), outcomes=new))
                taken.add(kept[-1].name)
        for campaign in [] if preview else kept:
            _add_campaign(connection, campaign, now=now, about=about)
    return tuple(kept)


def _known(connection: Connection) -> set[tuple[str, str]]:
    imported = AttemptRow.campaign_id.in_(
        select(CampaignRow.id).where(CampaignRow.strategy == IMPORTED)
    )
    return {
        _identity(one.trial.recipe_id, one.outcome)
        for one in finished_attempts(connection, imported)
    }


def _identity(recipe_id: str, outcome: Outcome) -> tuple[str, str]:
    """Return a recipe's id with its outcome, without derived figures and a failure's message, which
    names its row.
    """
    if isinstance(outcome, Measurement):
        # Earlier versions stored the peak once for each rank.
        peak = outcome.peak_memory_bytes_max_rank
        return recipe_id, canonical_json([outcome.step_times_s, peak])
    return recipe_id, outcome.kind.value


def _add_campaign(
    connection: Connection, campaign: ImportedCampaign, *, now: str, about: Mapping[str, str | int]
) -> None:
    by_recipe: dict[str, list[ImportedOutcome]] = {}
    for outcome in campaign.outcomes:
        by_recipe.setdefault(outcome.recipe_id, []).append(outcome)
    made = insert(CampaignRow).values(
        name=campaign.name,
        state=CampaignState.FINISHED,
        state_reason=f"imported from {about['file']}",
        strategy=IMPORTED,
        spec_json=campaign.spec_json,
        problem_json=canonical_json({**campaign.problem_summary, "figures": IMPORTED}),
        legal_recipes=len(by_recipe),
        outcomes=len(by_recipe),
        created_at=now,
        updated_at=now,
    )
    campaign_id = connection.execute(made.returning(CampaignRow.id)).scalar_one()
    for number, rows in enumerate(by_recipe.values(), start=1):
        _add_trial(connection, campaign_id, number, rows, now=now)
    event = {
        "campaign_id": campaign_id,
        "at": now,
        "kind": IMPORTED,
        "data_json": canonical_json({**about, USER: acting_user()}),
    }
    connection.execute(insert(EventRow).values(**event))


def _add_trial(
    connection: Connection,
    campaign_id: int,
    number: int,
    rows: Sequence[ImportedOutcome],
    *,
    now: str,
) -> None:
    """Add one recipe with its rows: measured where any row was."""
    # The last attempt of a trial decides, so measurements come after failures.
    in_order = sorted(rows, key=lambda row: isinstance(row.outcome, Measurement))
    is_measured = isinstance(in_order[-1].outcome, Measurement)
    made = insert(TrialRow).values(
        campaign_id=campaign_id,
        number=number,
        recipe_id=rows[0].recipe_id,
        recipe_json=recipe_to_json(rows[0].recipe),
        state=TrialState.MEASURED if is_measured else TrialState.FAILED,
        outcome_number=number,
    )
    trial_id = connection.execute(made.returning(TrialRow.id)).scalar_one()
    for place, row in enumerate(in_order, start=1):
        attempt = insert(AttemptRow).values(
            campaign_id=campaign_id,
            trial_id=trial_id,
            number=place,
            state=(
                AttemptState.MEASURED
                if isinstance(row.outcome, Measurement)
                else AttemptState.FAILED
            ),
            run_folder=row.origin,
            started_at=now,
            finished_at=now,
        )
        insert_outcome(
            connection,
            connection.execute(attempt.returning(AttemptRow.id)).scalar_one(),
            row.outcome,
        )
    if is_measured:
        rewrite_stats(connection, trial_id)
