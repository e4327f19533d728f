"""Outcomes that others measured, kept as campaigns of their own: one per problem of an imported table.

Such a campaign was never driven. Its state is `finished`, its strategy `imported`, and so are its figures, so that no
view shows them as measurements of this store's own campaigns. Rows of one recipe are attempts of one trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection, insert, select

from frontrunner.results.columns import recipe_to_json
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.results.records import IMPORTED, timestamp
from frontrunner.results.rows import finished_attempts
from frontrunner.results.schema import AttemptRow, CampaignRow, EventRow, TrialRow
from frontrunner.results.states import AttemptState, CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.results.writer import insert_outcome, rewrite_stats
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe

MOST_NAMES = 10_000


@dataclass(frozen=True, kw_only=True)
class ImportedOutcome:
    """One row of a table: the outcome of a recipe, and where it comes from, as `sweep.csv row 17`."""

    recipe_id: str
    recipe: Recipe
    outcome: Outcome
    origin: str

    @property
    def content(self) -> tuple[str, str]:
        """The identity of a row: the recipe's id, and the outcome as text."""
        return self.recipe_id, _content(self.outcome)


@dataclass(frozen=True, kw_only=True)
class ImportedCampaign:
    """The rows of one problem; `name` is what the campaign is called unless another has that name."""

    name: str
    spec_json: str
    problem_summary: Mapping[str, object]
    outcomes: tuple[ImportedOutcome, ...]


def without_known(store: Store, campaigns: Sequence[ImportedCampaign]) -> tuple[ImportedCampaign, ...]:
    """Drop rows that are already stored, and campaigns of which no row is left."""
    with store.database.read() as connection:
        return _without_known(connection, campaigns)


def add_imported(
    store: Store, campaigns: Sequence[ImportedCampaign], *, about: Mapping[str, str | int]
) -> tuple[ImportedCampaign, ...]:
    """Store imported rows that are not stored yet, all of them or, on an error, none.

    `about` becomes an event of each campaign: the file and what became of its rows. Returns what was stored, under the
    names that the campaigns were given.
    """
    now = timestamp(store.now())
    with store.database.write(whole_store=True) as connection:
        taken = set(connection.execute(select(CampaignRow.name)).scalars())
        kept = []
        for campaign in _without_known(connection, campaigns):
            named = replace(campaign, name=_free_name(campaign.name, taken))
            taken.add(named.name)
            kept.append(named)
            _add_campaign(connection, named, now=now, about=about)
    return tuple(kept)


def _without_known(connection: Connection, campaigns: Sequence[ImportedCampaign]) -> tuple[ImportedCampaign, ...]:
    known = _known_content(connection)
    left = (
        replace(campaign, outcomes=tuple(row for row in campaign.outcomes if row.content not in known))
        for campaign in campaigns
    )
    return tuple(campaign for campaign in left if campaign.outcomes)


def _known_content(connection: Connection) -> set[tuple[str, str]]:
    """Return the `content` of every row that was imported before."""
    imported = AttemptRow.campaign_id.in_(select(CampaignRow.id).where(CampaignRow.strategy == IMPORTED))
    return {(one.trial.recipe_id, _content(one.outcome)) for one in finished_attempts(connection, imported)}


def _free_name(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    for number in range(2, MOST_NAMES):
        name = f"{wanted[:58]}-{number}"  # names have at most 64 characters
        if name not in taken:
            return name
    raise InvalidInput(f"{MOST_NAMES} campaigns have names like {wanted}", hint="give one with --name")


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
    event = {"campaign_id": campaign_id, "at": now, "kind": IMPORTED, "data_json": canonical_json(dict(about))}
    connection.execute(insert(EventRow).values(**event))


def _add_trial(
    connection: Connection, campaign_id: int, number: int, rows: Sequence[ImportedOutcome], *, now: str
) -> None:
    """Add one recipe with its rows: measured where any row was, since a repeat ran what another could not."""
    measured = any(isinstance(row.outcome, Measurement) for row in rows)
    made = insert(TrialRow).values(
        campaign_id=campaign_id,
        number=number,
        recipe_id=rows[0].recipe_id,
        recipe_json=recipe_to_json(rows[0].recipe),
        state=TrialState.MEASURED if measured else TrialState.FAILED,
        outcome_number=number,
    )
    trial_id = connection.execute(made.returning(TrialRow.id)).scalar_one()
    # The last attempt of a trial decides, so measurements come after failures.
    in_order = sorted(rows, key=lambda row: isinstance(row.outcome, Measurement))
    for place, row in enumerate(in_order, start=1):
        _add_attempt(connection, {"campaign_id": campaign_id, "trial_id": trial_id, "number": place}, row, now=now)
    if measured:
        rewrite_stats(connection, trial_id)


def _add_attempt(connection: Connection, columns: Mapping[str, int], row: ImportedOutcome, *, now: str) -> None:
    state = AttemptState.MEASURED if isinstance(row.outcome, Measurement) else AttemptState.FAILED
    made = insert(AttemptRow).values(**columns, state=state, run_folder=row.origin, started_at=now, finished_at=now)
    insert_outcome(connection, connection.execute(made.returning(AttemptRow.id)).scalar_one(), row.outcome)


def _content(outcome: Outcome) -> str:
    """Return an outcome as text, without derived figures, and without a failure's message, which names its row."""
    if isinstance(outcome, Measurement):
        return canonical_json([outcome.step_times_s, outcome.peak_memory_bytes])
    return canonical_json(asdict(outcome)["kind"])
