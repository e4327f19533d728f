"""A campaign's trials with all of their attempts and what came of each."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from frontrunner.results.outcome import Outcome
from frontrunner.results.records import Attempt, AttemptOutcome, Trial
from frontrunner.results.rows import outcomes_by_attempt, to_attempt, to_trial
from frontrunner.results.schema import AttemptRow, TrialRow
from frontrunner.results.states import AttemptState
from frontrunner.results.store import Store


@dataclass(frozen=True, kw_only=True)
class TrialHistory:
    """A trial and its attempts in the order of their start; the outcome of one that still runs is None."""

    trial: Trial
    attempts: tuple[AttemptOutcome, ...]


def trial_histories(store: Store, campaign_id: int) -> list[TrialHistory]:
    """Every trial of the campaign, by its number."""
    mine = AttemptRow.campaign_id == campaign_id
    with store.database.read() as connection:
        query = select(TrialRow).where(TrialRow.campaign_id == campaign_id).order_by(TrialRow.number)
        trials = [to_trial(row) for row in connection.execute(query)]
        ended = select(AttemptRow.id).where(mine, AttemptRow.state != AttemptState.RUNNING)
        outcomes: dict[int, Outcome] = outcomes_by_attempt(connection, ended)
        rows = connection.execute(select(AttemptRow).where(mine).order_by(AttemptRow.id)).all()
    attempts: dict[int, list[AttemptOutcome]] = {}
    for attempt in map(to_attempt, rows):
        attempts.setdefault(attempt.trial_id, []).append(_with_outcome(attempt, outcomes))
    return [TrialHistory(trial=trial, attempts=tuple(attempts.get(trial.id, ()))) for trial in trials]


def _with_outcome(attempt: Attempt, outcomes: dict[int, Outcome]) -> AttemptOutcome:
    return AttemptOutcome(attempt=attempt, outcome=outcomes.get(attempt.id))
