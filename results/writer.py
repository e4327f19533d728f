"""Write side of a campaign, held by one driver at a time.

What makes its transactions safe is in `frontrunner.results.lease`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from frontrunner.results.columns import recipe_to_json
from frontrunner.results.database import Database
from frontrunner.results.lease import RELEASED, LeasedWriter, atomic, until
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, pool
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Attempt, Clock, Lease, Trial, timestamp
from frontrunner.results.rows import (
    failure_to_columns,
    finite_or_none,
    measurement_to_columns,
    storable,
    to_attempt,
    to_measurement,
    to_trial,
)
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    EndingRow,
    EventRow,
    FailureRow,
    MeasurementRow,
    ProvenanceRow,
    StandingRow,
    TrialRow,
)
from frontrunner.results.states import (
    CAMPAIGN_TRANSITIONS,
    AttemptState,
    CampaignState,
    IllegalTransition,
    TrialState,
)
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.recipe import Recipe


class CampaignWriter(LeasedWriter):
    """Writes to one campaign under one lease. Used by one thread.

    Each method is one transaction, on disk when it returns; inside `atomically` and `together()` they share one.
    Every method raises `AlreadyDriven` once the lease was taken over or released.
    """

    def __init__(self, database: Database, lease: Lease, clock: Clock) -> None:
        super().__init__(database, lease, clock)
        self._provenance_id: int | None = None

    @atomic
    def renew(self) -> None:
        """Hold the lease for another of its durations, from now."""
        self._raise_campaign(self._connection, lease_until=until(self._lease, self._clock()))

    @atomic
    def release(self, state: CampaignState, *, reason: str) -> None:
        """Leave the campaign in a state that is not `running`, and release the lease."""
        if state is CampaignState.RUNNING:
            raise IllegalTransition("a running campaign keeps its lease")
        connection = self._connection
        self._change_state(connection, state, reason)
        self._raise_campaign(connection, **RELEASED)

    @atomic
    def set_state(self, state: CampaignState, *, reason: str) -> None:
        """Change the campaign's state; raises `IllegalTransition` where it may not follow the present one."""
        self._change_state(self._connection, state, reason)

    @atomic
    def propose(self, recipe_id: str, recipe: Recipe) -> Trial:
        """Return the campaign's trial of this recipe: a new one in state `queued`, or the one that exists."""
        connection = self._connection
        mine = TrialRow.campaign_id == self._lease.campaign_id
        known = connection.execute(select(TrialRow).where(mine, TrialRow.recipe_id == recipe_id)).first()
        if known is not None:
            return to_trial(known)
        last = connection.execute(select(func.coalesce(func.max(TrialRow.number), 0)).where(mine)).scalar_one()
        made = insert(TrialRow).values(
            campaign_id=self._lease.campaign_id,
            number=last + 1,
            recipe_id=recipe_id,
            recipe_json=recipe_to_json(recipe),
            state=TrialState.QUEUED,
        )
        return to_trial(connection.execute(made.returning(TrialRow)).one())

    @atomic
    def repeat(self, trial: Trial) -> Trial:
        """Queue a measured trial for one more measurement; those that it has stay and rank."""
        connection = self._connection
        _move_trial(connection, trial.id, TrialState.MEASURED, TrialState.QUEUED)
        return replace(trial, state=TrialState.QUEUED)

    @atomic
    def start_attempt(self, trial: Trial, *, run_folder: str) -> Attempt:
        """Begin a try at a queued trial, which is `running` from then on."""
        connection = self._connection
        _move_trial(connection, trial.id, TrialState.QUEUED, TrialState.RUNNING)
        tries = select(func.coalesce(func.max(AttemptRow.number), 0)).where(AttemptRow.trial_id == trial.id)
        made = insert(AttemptRow).values(
            campaign_id=self._lease.campaign_id,
            trial_id=trial.id,
            number=connection.execute(tries).scalar_one() + 1,
            state=AttemptState.RUNNING,
            run_folder=run_folder,
            provenance_id=self._provenance_id,
            started_at=timestamp(self._clock()),
        )
        return to_attempt(connection.execute(made.returning(AttemptRow)).one())

    @atomic
    def finish_attempt(self, attempt: Attempt, outcome: Outcome, *, retry: bool) -> None:
        """Record the outcome of an attempt and charge its node-seconds to the campaign.

        With `retry` the trial is queued again, else its outcome is final. A second call for the same attempt
        changes nothing. Raises ValueError for a measurement with numbers that cannot be ranked.
        """
        connection = self._connection
        finished = connection.execute(
            update(AttemptRow)
            .where(AttemptRow.id == attempt.id, AttemptRow.campaign_id == self._lease.campaign_id)
            .where(AttemptRow.state == AttemptState.RUNNING)
            .values(state=_state_after(outcome), finished_at=timestamp(self._clock()))
        )
        if finished.rowcount == 0:
            return
        insert_outcome(connection, attempt.id, outcome)
        if isinstance(outcome, Measurement):
            rewrite_stats(connection, attempt.trial_id)
        self._conclude(connection, attempt.trial_id, outcome, retry=retry)

    @atomic
    def event(self, kind: str, **data: str | int | float | None) -> None:
        """Add an event to the campaign's history; numbers that are not finite are stored as None."""
        connection = self._connection
        kept = {key: finite_or_none(value) if isinstance(value, float) else value for key, value in data.items()}
        values = {"campaign_id": self._lease.campaign_id, "at": timestamp(self._clock()), "kind": kind}
        connection.execute(insert(EventRow).values(**values, data_json=canonical_json(kept)))

    @atomic
    def add_driver_seconds(self, seconds: float) -> None:
        """Charge the driver's own time to the campaign; the sum goes over all its runs."""
        if not seconds >= 0 or math.isinf(seconds):
            raise ValueError(f"seconds = {seconds!r}: expected a finite number of at least 0")
        connection = self._connection
        self._change_campaign(connection, driver_seconds=CampaignRow.driver_seconds + seconds)

    @atomic
    def record_provenance(self, provenance: Provenance) -> None:
        """Store what this run of the driver runs with; attempts started from now on refer to it."""
        connection = self._connection
        made = insert(ProvenanceRow).values(
            campaign_id=self._lease.campaign_id,
            recorded_at=timestamp(self._clock()),
            provenance_json=canonical_json(asdict(provenance)),
        )
        self._provenance_id = connection.execute(made.returning(ProvenanceRow.id)).scalar_one()

    def _change_campaign(self, connection: Connection, **changes: object) -> Any:
        """Apply the changes to the campaign's row, and return it."""
        change = update(CampaignRow).where(CampaignRow.id == self._lease.campaign_id).values(**changes)
        return connection.execute(change.returning(CampaignRow)).one()

    def _change_state(self, connection: Connection, state: CampaignState, reason: str) -> None:
        mine = select(CampaignRow.state).where(CampaignRow.id == self._lease.campaign_id)
        now = CampaignState(connection.execute(mine).scalar_one())
        if state is not now and state not in CAMPAIGN_TRANSITIONS[now]:
            raise IllegalTransition(f"campaign {self._lease.campaign_name}: {now} -> {state}")
        self._change_campaign(connection, state=state, state_reason=storable(reason))

    def _conclude(self, connection: Connection, trial_id: int, outcome: Outcome, *, retry: bool) -> None:
        """Move the trial on after an attempt, and charge the campaign.

        A failure that does not count against the recipe leaves a trial that was measured before as measured. One that
        does makes it failed: a recipe that fits or survives only now and then is not to be recommended.
        """
        spent = CampaignRow.node_seconds_spent + outcome.node_seconds
        if retry:
            self._change_campaign(connection, node_seconds_spent=spent)
            _move_trial(connection, trial_id, TrialState.RUNNING, TrialState.QUEUED)
            return
        row = self._change_campaign(connection, node_seconds_spent=spent, outcomes=CampaignRow.outcomes + 1)
        spared = isinstance(outcome, Failure) and not outcome.policy.counts_against_recipe
        if isinstance(outcome, Measurement) or (spared and _has_stats(connection, trial_id)):
            state = TrialState.MEASURED
        else:
            state = TrialState.FAILED
            connection.execute(delete(StandingRow).where(StandingRow.trial_id == trial_id))
        _move_trial(connection, trial_id, TrialState.RUNNING, state, outcome_number=row.outcomes)


def _move_trial(
    connection: Connection, trial_id: int, before: TrialState, after: TrialState, *, outcome_number: int | None = None
) -> None:
    """Change a trial's state; raises `IllegalTransition` where it is not in state `before`."""
    change = update(TrialRow).where(TrialRow.id == trial_id, TrialRow.state == before)
    moved = connection.execute(change.values(state=after, outcome_number=outcome_number))
    if moved.rowcount == 0:
        raise IllegalTransition(f"trial {trial_id} is not {before}, so it cannot become {after}")


def _state_after(outcome: Outcome) -> AttemptState:
    if isinstance(outcome, Measurement):
        return AttemptState.MEASURED
    return AttemptState.LOST if outcome.kind is FailureKind.LOST else AttemptState.FAILED


def insert_outcome(connection: Connection, attempt_id: int, outcome: Outcome) -> None:
    """Store the outcome of an attempt; raises ValueError for one with numbers that cannot be ranked."""
    if isinstance(outcome, Failure):
        connection.execute(insert(FailureRow).values(attempt_id=attempt_id, **failure_to_columns(outcome)))
        return
    connection.execute(insert(MeasurementRow).values(attempt_id=attempt_id, **measurement_to_columns(outcome)))
    if outcome.ended is not None:
        connection.execute(insert(EndingRow).values(attempt_id=attempt_id, ended=outcome.ended.value))


def rewrite_stats(connection: Connection, trial_id: int) -> None:
    """Pool all measurements of a trial, of which it has at least one, and store the result."""
    trial = connection.execute(select(TrialRow.campaign_id, TrialRow.recipe_id).where(TrialRow.id == trial_id)).one()
    attempts = select(AttemptRow.id).where(AttemptRow.trial_id == trial_id)
    rows = connection.execute(select(MeasurementRow).where(MeasurementRow.attempt_id.in_(attempts)))
    stats = pool([to_measurement(row) for row in rows])
    connection.execute(delete(StandingRow).where(StandingRow.trial_id == trial_id))
    columns = {"trial_id": trial_id, "campaign_id": trial.campaign_id, "recipe_id": trial.recipe_id}
    connection.execute(insert(StandingRow).values(**columns, **asdict(stats)))


def _has_stats(connection: Connection, trial_id: int) -> bool:
    return connection.execute(select(StandingRow.trial_id).where(StandingRow.trial_id == trial_id)).first() is not None
