"""Why one trial failed."""

from __future__ import annotations

from sqlalchemy import select

from frontrunner.results.from_columns import failure_from_columns
from frontrunner.results.outcome import Failure
from frontrunner.results.ranking import resolve
from frontrunner.results.schema import AttemptRow, FailureRow, TrialRow
from frontrunner.results.store import Store


def last_failure(store: Store, campaign: str | None, trial_number: int) -> Failure | None:
    """The newest failure among a trial's attempts; None for a trial without one, or that is not there."""
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        query = (
            select(FailureRow)
            .join(AttemptRow, AttemptRow.id == FailureRow.attempt_id)
            .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
            .where(TrialRow.campaign_id == found.id, TrialRow.number == trial_number)
            .order_by(AttemptRow.id.desc())
            .limit(1)
        )
        row = connection.execute(query).first()
        return None if row is None else failure_from_columns(row)
