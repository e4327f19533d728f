"""A campaign's finished attempts in the order in which they ended: what its history and its accounts are made of."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from frontrunner.results.outcome import Outcome
from frontrunner.results.ranking import resolve
from frontrunner.results.records import Attempt, Campaign, Trial
from frontrunner.results.rows import outcome_of, outcomes_by_attempt, to_attempt, to_trial, trial_of
from frontrunner.results.schema import AttemptRow, TrialRow
from frontrunner.results.states import AttemptState
from frontrunner.results.store import Store


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One finished attempt with its trial and what came of it."""

    trial: Trial
    attempt: Attempt
    outcome: Outcome


def probed(store: Store, campaign: Campaign | str | None) -> list[Probed]:
    """Every finished attempt of the campaign (None: the newest), in the order in which they ended."""
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        finished = (AttemptRow.campaign_id == found.id, AttemptRow.state != AttemptState.RUNNING)
        proposed = connection.execute(select(TrialRow).where(TrialRow.campaign_id == found.id))
        trials = {row.id: to_trial(row) for row in proposed}
        outcomes = outcomes_by_attempt(connection, select(AttemptRow.id).where(*finished))
        in_order = select(AttemptRow).where(*finished).order_by(AttemptRow.finished_at, AttemptRow.id)
        return [
            Probed(trial=trial_of(trials, row), attempt=to_attempt(row), outcome=outcome_of(outcomes, row))
            for row in connection.execute(in_order)
        ]
