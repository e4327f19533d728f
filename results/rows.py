"""Rows to records, and the reads that several questions share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, func, or_, select

from frontrunner.results.codec import (
    failure_from_columns,
    measurement_from_columns,
    recipe_from_json,
)
from frontrunner.results.later_tables import is_there
from frontrunner.results.outcome import Outcome, ProbeEnding
from frontrunner.results.records import Attempt, Campaign, Event, Trial
from frontrunner.results.schema import AttemptRow, EndingRow, FailureRow, MeasurementRow, TrialRow
from frontrunner.results.states import AttemptState, CampaignState, TrialState


def to_campaign(row: Any) -> Campaign:
    """A row of `campaigns`."""
    return Campaign(
        id=row.id,
        name=row.name,
        state=CampaignState(row.state),
        state_reason=row.state_reason,
        strategy=row.strategy,
        spec_json=row.spec_json,
        problem_summary=json.loads(row.problem_json),
        legal_recipes=row.legal_recipes,
        outcomes=row.outcomes,
        driver_seconds=row.driver_seconds,
        node_seconds_spent=row.node_seconds_spent,
        epoch=row.epoch,
        driver=None if row.driver_host is None else f"{row.driver_host}:{row.driver_pid}",
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def to_trial(row: Any) -> Trial:
    """A row of `trials`."""
    return Trial(
        id=row.id,
        campaign_id=row.campaign_id,
        number=row.number,
        recipe_id=row.recipe_id,
        recipe=recipe_from_json(row.recipe_json),
        state=TrialState(row.state),
    )


def to_attempt(row: Any) -> Attempt:
    """A row of `attempts`."""
    return Attempt(
        id=row.id,
        campaign_id=row.campaign_id,
        trial_id=row.trial_id,
        number=row.number,
        state=AttemptState(row.state),
        run_folder=row.run_folder,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def to_event(row: Any) -> Event:
    """A row of `events`."""
    return Event(id=row.id, campaign_id=row.campaign_id, at=row.at, kind=row.kind, data=json.loads(row.data_json))


def outcomes_by_attempt(connection: Connection, attempts: Select[int]) -> dict[int, Outcome]:
    """The outcomes of the attempts whose ids the query selects, by attempt id; running and lost ones may have none."""
    found: dict[int, Outcome] = {}
    endings = _endings(connection, attempts)
    for measured in connection.execute(select(MeasurementRow).where(MeasurementRow.attempt_id.in_(attempts))):
        measurement = measurement_from_columns(measured)
        found[measured.attempt_id] = replace(measurement, ended=endings.get(measured.attempt_id))
    for failed in connection.execute(select(FailureRow).where(FailureRow.attempt_id.in_(attempts))):
        found[failed.attempt_id] = failure_from_columns(failed)
    return found


def _endings(connection: Connection, attempts: Select[int]) -> dict[int, ProbeEnding]:
    """How the attempts ended, where that is known. A store of an earlier version that nobody may write has no table."""
    if not is_there(connection, EndingRow):
        return {}
    rows = connection.execute(select(EndingRow).where(EndingRow.attempt_id.in_(attempts)))
    return {row.attempt_id: ProbeEnding(row.ended) for row in rows}


def final_outcomes(campaign_id: int) -> Select[int]:
    """The ids of a campaign's attempts that were measured, and of the last that failed of each failed trial."""
    mine = AttemptRow.campaign_id == campaign_id
    failed = (
        select(func.max(AttemptRow.id))
        .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
        .where(mine, AttemptRow.state == AttemptState.FAILED, TrialRow.state == TrialState.FAILED)
        .group_by(AttemptRow.trial_id)
    )
    measured = AttemptRow.state == AttemptState.MEASURED
    return select(AttemptRow.id).where(mine, or_(measured, AttemptRow.id.in_(failed)))


def trials_by_state(connection: Connection, campaign_id: int) -> Mapping[TrialState, int]:
    """How many of a campaign's trials are in each state, zeros included."""
    counted = connection.execute(
        select(TrialRow.state, func.count()).where(TrialRow.campaign_id == campaign_id).group_by(TrialRow.state)
    )
    return dict.fromkeys(TrialState, 0) | {TrialState(state): count for state, count in counted}
