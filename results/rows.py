"""Rows to records, and the reads that several questions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, func, or_, select

from frontrunner.results import stored_json
from frontrunner.results.cells import Cells, DamagedCell, whole
from frontrunner.results.codec import recipe_from_json
from frontrunner.results.from_columns import failure_from_columns, measurement_from_columns, standing_from_columns
from frontrunner.results.later_tables import is_there
from frontrunner.results.outcome import Outcome, ProbeEnding
from frontrunner.results.records import Attempt, Campaign, Event, Trial
from frontrunner.results.schema import (
    AttemptRow,
    Base,
    CampaignRow,
    EndingRow,
    EventRow,
    FailureRow,
    MeasurementRow,
    StandingRow,
    TrialRow,
)
from frontrunner.results.states import AttemptState, CampaignState, TrialState


def to_campaign(row: Any) -> Campaign:
    """A row of `campaigns`."""
    cells = whole(CampaignRow, row)
    cells.read("spec_json", stored_json.table)
    return Campaign(
        id=row.id,
        name=row.name,
        state=cells.word("state", CampaignState),
        state_reason=row.state_reason,
        strategy=row.strategy,
        spec_json=row.spec_json,
        problem_summary=cells.read("problem_json", stored_json.table),
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
    cells = whole(TrialRow, row)
    return Trial(
        id=row.id,
        campaign_id=row.campaign_id,
        number=row.number,
        recipe_id=row.recipe_id,
        recipe=cells.read("recipe_json", recipe_from_json),
        state=cells.word("state", TrialState),
    )


def to_attempt(row: Any) -> Attempt:
    """A row of `attempts`."""
    cells = whole(AttemptRow, row)
    return Attempt(
        id=row.id,
        campaign_id=row.campaign_id,
        trial_id=row.trial_id,
        number=row.number,
        state=cells.word("state", AttemptState),
        run_folder=row.run_folder,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def to_event(row: Any) -> Event:
    """A row of `events`."""
    data = whole(EventRow, row).read("data_json", stored_json.table)
    return Event(id=row.id, campaign_id=row.campaign_id, at=row.at, kind=row.kind, data=data)


def to_ending(row: Any) -> ProbeEnding:
    """A row of `endings`."""
    return whole(EndingRow, row).word("ended", ProbeEnding)


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
    return {row.attempt_id: to_ending(row) for row in rows}


def outcome_of(outcomes: Mapping[int, Outcome], attempt: Any) -> Outcome:
    """What came of an attempt that has ended, by its row; raises `DamagedCell` where nothing is stored of it."""
    try:
        return outcomes[attempt.id]
    except KeyError:
        raise DamagedCell(AttemptRow, attempt.id, "state", "it has ended, and no outcome of it is stored") from None


def trial_of(trials: Mapping[int, Trial], attempt: Any) -> Trial:
    """The trial of an attempt, whose row is given; raises `DamagedCell` where it is none of its campaign's."""
    try:
        return trials[attempt.trial_id]
    except KeyError:
        why = f"its campaign has no trial with the id {attempt.trial_id}"
        raise DamagedCell(AttemptRow, attempt.id, "trial_id", why) from None


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
        select(TrialRow.state, func.count().label("trials"), func.min(TrialRow.id).label("first"))
        .where(TrialRow.campaign_id == campaign_id)
        .group_by(TrialRow.state)
    )
    found = {Cells(TrialRow, row, row.first).word("state", TrialState): row.trials for row in counted}
    return dict.fromkeys(TrialState, 0) | found


READERS: Mapping[type[Base], Callable[[Any], object]] = {
    CampaignRow: to_campaign,
    TrialRow: to_trial,
    AttemptRow: to_attempt,
    MeasurementRow: measurement_from_columns,
    EndingRow: to_ending,
    FailureRow: failure_from_columns,
    StandingRow: standing_from_columns,
    EventRow: to_event,
}
"""What a row of each table is read by."""


def refuse_damaged_rows(connection: Connection) -> None:
    """Read every row; raises `DamagedCell` for the first that cannot be."""
    for table, reader in READERS.items():
        for row in connection.execute(select(table)) if is_there(connection, table) else ():
            reader(row)
