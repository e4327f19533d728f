"""Final outcomes of a store's campaigns, for campaigns that come after them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from frontrunner.results.columns import LaterVersion
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Campaign, Event
from frontrunner.results.rows import DamagedCell, cell, interpreted, outcome_of, outcomes_by_attempt, to_event
from frontrunner.results.schema import AttemptRow, EventRow, ProvenanceRow, TrialRow
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe

REUSED = "reused"
"""The event of a trial whose outcome is an earlier campaign's; its data names the `trial` by its number."""


CUT = "cut"
"""The event of an attempt whose nodes were taken away, or not had yet; its data names the `trial` by its number."""


@dataclass(frozen=True, kw_only=True)
class PriorResult:
    """One recipe of a campaign with its final outcome: its measurements, the oldest first, or one failure.

    `provenance` is what its newest attempt ran with, None where it was not recorded; `finished_at` when that ended.
    `damage` states what of that record cannot be read: the outcome itself can.
    """

    recipe_id: str
    recipe: Recipe
    trial_number: int
    outcomes: tuple[Measurement, ...] | Failure
    provenance: Provenance | None
    damage: str | None
    finished_at: str
    run_folder: str


def campaign_results(store: Store, campaign_id: int) -> list[PriorResult]:
    """Return the recipes of a campaign with a final outcome, without those reused from an earlier campaign."""
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
        return [_prior_result(attempts, outcomes) for attempts in by_trial.values()]


def reused_trials(store: Store, campaign_id: int) -> set[int]:
    """Return the numbers of the campaign's trials whose outcomes were reused from earlier campaigns."""
    return set(_trials_of_events(store, campaign_id, REUSED))


def cuts_by_trial(store: Store, campaign_id: int) -> Counter[int]:
    """Count the attempts of each of the campaign's trials, by number, whose nodes were taken away."""
    return Counter(_trials_of_events(store, campaign_id, CUT))


def _trials_of_events(store: Store, campaign_id: int, kind: str) -> list[int]:
    query = select(EventRow).where(EventRow.campaign_id == campaign_id, EventRow.kind == kind)
    with store.database.read() as connection:
        events = [to_event(row) for row in connection.execute(query)]
        return [_trial_number(event) for event in events]


def _trial_number(event: Event) -> int:
    return interpreted(EventRow, event.id, "data_json", lambda: int(str(event.data["trial"])))


def probes_made(store: Store, campaign: Campaign) -> int:
    """Count the outcomes that are charged to a budget of probes: all but those reused from earlier campaigns.

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


def _prior_result(attempts: list[Any], outcomes: dict[int, Measurement | Failure]) -> PriorResult:
    """Combine a trial's attempts, the oldest first."""
    last = attempts[-1]
    found = [outcome_of(outcomes, row) for row in attempts]
    provenance, damage = _provenance(last)
    measured = tuple(outcome for outcome in found if isinstance(outcome, Measurement))
    failed = [outcome for outcome in found if isinstance(outcome, Failure)]
    has_failed = bool(failed) and last.trial_state == TrialState.FAILED
    if not (measured or has_failed):
        raise DamagedCell(TrialRow, last.trial_id, "state", f"it is {last.trial_state}, and no such outcome is stored")
    return PriorResult(
        recipe_id=last.recipe_id,
        recipe=cell(TrialRow.recipe_json, last.recipe_json, last.trial_id),
        trial_number=last.trial_number,
        outcomes=failed[-1] if has_failed else measured,
        provenance=provenance,
        damage=damage,
        finished_at=cell(AttemptRow.finished_at, last.finished_at, last.id),
        run_folder=last.run_folder,
    )


def _provenance(attempt: Any) -> tuple[Provenance | None, str | None]:
    """Return what an attempt ran with, or how that is damaged: another campaign does not need it."""
    if attempt.provenance_json is None:
        return None, None
    try:
        return cell(ProvenanceRow.provenance_json, attempt.provenance_json, attempt.provenance_id), None
    except (DamagedCell, LaterVersion) as error:
        return None, error.finding
