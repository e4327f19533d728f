"""Attempts of a campaign with their trials and outcomes: all of them, by trial or in the order in which they ended."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from frontrunner.results.outcome import Outcome
from frontrunner.results.ranking import resolve
from frontrunner.results.records import Attempt, AttemptOutcome, Campaign, Trial
from frontrunner.results.rows import outcome_of, outcomes_by_attempt, to_attempt, to_trial, trial_of
from frontrunner.results.schema import AttemptRow, TrialRow
from frontrunner.results.states import AttemptState
from frontrunner.results.store import Store


@dataclass(frozen=True, kw_only=True)
class TrialHistory:
    """A trial and its attempts in the order of their start; the outcome of a running one is None."""

    trial: Trial
    attempts: tuple[AttemptOutcome, ...]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One finished attempt with its trial and outcome."""

    trial: Trial
    attempt: Attempt
    outcome: Outcome


def trial_histories(store: Store, campaign_id: int) -> list[TrialHistory]:
    """Return every trial of the campaign with its attempts, by number."""
    mine = AttemptRow.campaign_id == campaign_id
    with store.database.read() as connection:
        trials = trials_by_id(connection, campaign_id)
        ended = select(AttemptRow.id).where(mine, AttemptRow.state != AttemptState.RUNNING)
        outcomes = outcomes_by_attempt(connection, ended)
        rows = connection.execute(select(AttemptRow).where(mine).order_by(AttemptRow.id)).all()
        attempts: dict[int, list[AttemptOutcome]] = {}
        for attempt in map(to_attempt, rows):
            found = AttemptOutcome(attempt=attempt, outcome=outcomes.get(attempt.id))
            attempts.setdefault(attempt.trial_id, []).append(found)
    return [TrialHistory(trial=trial, attempts=tuple(attempts.get(trial.id, ()))) for trial in trials.values()]


def probed(store: Store, campaign: Campaign | str | None) -> list[Probed]:
    """Return every finished attempt of the campaign (None: the newest), in the order in which they ended."""
    with store.database.read() as connection:
        found = finished_attempts(connection, resolve(connection, store, campaign))
    return sorted(found, key=lambda one: (one.attempt.finished_at or "", one.attempt.id))


def finished_attempts(connection: Connection, campaign: Campaign) -> list[Probed]:
    """Return every finished attempt of the campaign, in the order of their start."""
    finished = (AttemptRow.campaign_id == campaign.id, AttemptRow.state != AttemptState.RUNNING)
    trials = trials_by_id(connection, campaign.id)
    outcomes = outcomes_by_attempt(connection, select(AttemptRow.id).where(*finished))
    return [
        Probed(trial=trial_of(trials, row), attempt=to_attempt(row), outcome=outcome_of(outcomes, row))
        for row in connection.execute(select(AttemptRow).where(*finished).order_by(AttemptRow.id))
    ]


def trials_by_id(connection: Connection, campaign_id: int) -> dict[int, Trial]:
    """Return the campaign's trials by id, in the order of their numbers."""
    query = select(TrialRow).where(TrialRow.campaign_id == campaign_id).order_by(TrialRow.number)
    return {row.id: to_trial(row) for row in connection.execute(query)}
