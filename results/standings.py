"""Keeping each recipe's pooled measurements beside the measurements themselves."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from frontrunner.results.codec import pool
from frontrunner.results.from_columns import measurement_from_columns
from frontrunner.results.schema import AttemptRow, MeasurementRow, StandingRow, TrialRow


def rewrite(connection: Connection, trial_id: int) -> None:
    """Pool all measurements of a trial anew; it has at least one."""
    trial = connection.execute(select(TrialRow.campaign_id, TrialRow.recipe_id).where(TrialRow.id == trial_id)).one()
    attempts = select(AttemptRow.id).where(AttemptRow.trial_id == trial_id)
    rows = connection.execute(select(MeasurementRow).where(MeasurementRow.attempt_id.in_(attempts)))
    standing = pool([measurement_from_columns(row) for row in rows])
    remove(connection, trial_id)
    columns = {"trial_id": trial_id, "campaign_id": trial.campaign_id, "recipe_id": trial.recipe_id}
    connection.execute(insert(StandingRow).values(**columns, **asdict(standing)))


def exists(connection: Connection, trial_id: int) -> bool:
    """Whether the trial has a measurement that ranks."""
    return connection.execute(select(StandingRow.trial_id).where(StandingRow.trial_id == trial_id)).first() is not None


def remove(connection: Connection, trial_id: int) -> None:
    """Take the trial out of the rankings."""
    connection.execute(delete(StandingRow).where(StandingRow.trial_id == trial_id))
