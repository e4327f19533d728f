"""What the campaigns of a store found out about recipes, for campaigns that come after them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from frontrunner.results import stored_json
from frontrunner.results.cells import Cells, DamagedCell, LaterVersion
from frontrunner.results.codec import recipe_from_json
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Campaign
from frontrunner.results.rows import outcome_of, outcomes_by_attempt
from frontrunner.results.schema import AttemptRow, EventRow, ProvenanceRow, TrialRow
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe

REUSED = "reused"
"""The event of a trial whose outcome is an earlier campaign's; its data names the `trial` by its number."""


CUT = "cut"
"""The event of an attempt whose nodes were taken away, or not had yet; its data names the `trial` by its number."""


@dataclass(frozen=True, kw_only=True)
class KnownRecipe:
    """One recipe of a campaign with its final outcome: its measurements, the oldest first, or one failure.

    `provenance` is what its newest attempt ran with, None where nobody recorded it; `finished_at` when that ended.
    `damage` says what of that record cannot be read: the outcome itself can.
    """

    recipe_id: str
    recipe: Recipe
    trial_number: int
    outcomes: tuple[Measurement, ...] | Failure
    provenance: Provenance | None
    damage: str | None
    finished_at: str
    run_folder: str


def known_recipes(store: Store, campaign_id: int) -> list[KnownRecipe]:
    """The recipes of a campaign whose outcome is final, without those that an earlier campaign had answered."""
    final = TrialRow.state.in_((TrialState.MEASURED, TrialState.FAILED))
    mine = (AttemptRow.campaign_id == campaign_id, final)
    ended = AttemptRow.state.in_((AttemptState.MEASURED, AttemptState.FAILED))
    query = (
        select(*_columns())
        .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
        .outerjoin(ProvenanceRow, ProvenanceRow.id == AttemptRow.provenance_id)
        .where(*mine, ended)
        .order_by(TrialRow.number, AttemptRow.number)
    )
    ids = select(AttemptRow.id).join(TrialRow, TrialRow.id == AttemptRow.trial_id).where(*mine, ended)
    reused = reused_trials(store, campaign_id)
    with store.database.read() as connection:
        outcomes = outcomes_by_attempt(connection, ids)
        rows = connection.execute(query).all()
        by_trial: dict[int, list[Any]] = {}
        for row in rows:
            if row.trial_number not in reused:
                by_trial.setdefault(row.trial_number, []).append(row)
        return [_known(attempts, outcomes) for attempts in by_trial.values()]


def reused_trials(store: Store, campaign_id: int) -> set[int]:
    """The numbers of the campaign's trials whose outcomes are those of earlier campaigns."""
    return set(_trials_of_events(store, campaign_id, REUSED))


def cuts_by_trial(store: Store, campaign_id: int) -> Counter[int]:
    """How many attempts of each of the campaign's trials, by number, were cut."""
    return Counter(_trials_of_events(store, campaign_id, CUT))


def _trials_of_events(store: Store, campaign_id: int, kind: str) -> list[int]:
    query = select(EventRow.id, EventRow.data_json).where(EventRow.campaign_id == campaign_id, EventRow.kind == kind)
    with store.database.read() as connection:
        rows = connection.execute(query)
        return [Cells(EventRow, row, row.id).read("data_json", _trial_of_event) for row in rows]


def _trial_of_event(text: str) -> int:
    return int(stored_json.table(text)["trial"])


def probes_made(store: Store, campaign: Campaign) -> int:
    """The outcomes that count against a budget of probes: all but those of earlier campaigns.

    `campaign` is as it was read; what was recorded since is not counted.
    """
    return max(0, campaign.outcomes - len(reused_trials(store, campaign.id)))


def _columns() -> tuple[Any, ...]:
    return (
        AttemptRow.id,
        AttemptRow.trial_id,
        AttemptRow.provenance_id,
        AttemptRow.run_folder,
        AttemptRow.finished_at,
        TrialRow.number.label("trial_number"),
        TrialRow.recipe_id,
        TrialRow.recipe_json,
        TrialRow.state.label("trial_state"),
        ProvenanceRow.provenance_json,
    )


def _known(attempts: list[Any], outcomes: dict[int, Measurement | Failure]) -> KnownRecipe:
    """A trial's attempts, the oldest first, as one."""
    last = attempts[-1]
    Cells(AttemptRow, last, last.id).time("finished_at")
    found = [outcome_of(outcomes, row) for row in attempts]
    provenance, damage = _provenance(last)
    measured = tuple(outcome for outcome in found if isinstance(outcome, Measurement))
    failed = [outcome for outcome in found if isinstance(outcome, Failure)]
    has_failed = bool(failed) and last.trial_state == TrialState.FAILED
    if not (measured or has_failed):
        raise DamagedCell(TrialRow, last.trial_id, "state", f"it is {last.trial_state}, and no such outcome is stored")
    return KnownRecipe(
        recipe_id=last.recipe_id,
        recipe=Cells(TrialRow, last, last.trial_id).read("recipe_json", recipe_from_json),
        trial_number=last.trial_number,
        outcomes=failed[-1] if has_failed else measured,
        provenance=provenance,
        damage=damage,
        finished_at=last.finished_at,
        run_folder=last.run_folder,
    )


def _provenance(attempt: Any) -> tuple[Provenance | None, str | None]:
    """What an attempt ran with, or what is damaged about that: another campaign can do without."""
    try:
        return Cells(ProvenanceRow, attempt, attempt.provenance_id).read("provenance_json", provenance_from_json), None
    except (DamagedCell, LaterVersion) as error:
        return None, error.finding


def provenance_from_json(text: str | None) -> Provenance | None:
    """The provenance that a driver recorded, or None where it recorded none; raises ValueError for other text."""
    return None if text is None else Provenance(**stored_json.fields_of(Provenance, stored_json.table(text)))
