"""Write side of a campaign, held by one driver at a time.

Every transaction of a driver begins by updating the campaign's row under its lease's epoch, so that
a driver that was paused, or believed dead, is refused with `AlreadyDriven`. The time that it writes
there also shows, after a connection broke at the commit, whether the server had committed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, delete, func, insert, select, update

from frontrunner.results.database import RECONNECT_S, ConnectionLost, Database
from frontrunner.results.lease import RELEASED, until
from frontrunner.results.nodes import AttemptNodes
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, pool
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Attempt, Lease, Trial, timestamp
from frontrunner.results.redaction import without_secrets
from frontrunner.results.rows import (
    TABLES,
    outcome_to_columns,
    outcomes_by_attempt,
    storable,
    value_of,
)
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    EndingRow,
    EventRow,
    NodesRow,
    ProvenanceRow,
    StandingRow,
    TelemetryRow,
    TrialRow,
    recipe_to_json,
)
from frontrunner.results.states import (
    AttemptState,
    CampaignState,
    IllegalTransition,
    TrialState,
    may_follow,
)
from frontrunner.spaces.document import canonical_json, finite_or_none
from frontrunner.spaces.errors import AlreadyDriven
from frontrunner.spaces.recipe import Recipe

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


def atomic(method: M) -> M:
    """Make a method of a writer a transaction of its own, or a part of the current one."""

    @wraps(method)
    def transaction(self: CampaignWriter, *arguments: Any, **named: Any) -> Any:
        return self.atomically(lambda: method(self, *arguments, **named))

    return cast(M, transaction)


class CampaignWriter:
    """Writes to one campaign under one lease. Used by one thread.

    Each method is one transaction, on disk when it returns; inside `atomically` and `together()`
    they share one. Every method raises `AlreadyDriven` once the lease was taken over or released.
    """

    def __init__(self, database: Database, lease: Lease) -> None:
        self._database = database
        self._lease = lease
        self._shared: Connection | None = None
        self._now = datetime.min
        self._provenance_id: int | None = None

    def atomically(self, work: Callable[[], T]) -> T:
        """Make the calls of `work` one transaction: all of them are written, or, on an exception,
        none.

        Where the connection to a database server breaks, `work` is called again, until
        `RECONNECT_S` have passed; so it should do nothing but call this writer. What it writes is
        written once.
        """
        if self._shared is not None:
            return work()
        give_up = time.monotonic() + RECONNECT_S
        unsure: list[T] = []  # what a call returned whose commit may have been made
        while True:
            try:
                with self._database.write() as connection:
                    if unsure and self._was_written(connection):
                        return unsure[0]
                    unsure = []
                    with self._under_lease(connection):
                        unsure = [work()]
                return unsure[0]
            except ConnectionLost:
                if time.monotonic() > give_up:
                    raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the calls inside one transaction, as `atomically` does; not repeated if a connection
        breaks.
        """
        with self._database.write() as connection, self._under_lease(connection):
            yield

    @contextmanager
    def _under_lease(self, connection: Connection) -> Iterator[None]:
        """Update the campaign's row, and have the methods write by this connection.

        Raises `AlreadyDriven`, and so undoes the transaction, where the lease is not the campaign's
        current one.
        """
        self._now = self._database.now(connection)
        lease, mine = self._lease, CampaignRow.id == self._lease.campaign_id
        current = (mine, CampaignRow.epoch == lease.epoch, CampaignRow.lease_until.is_not(None))
        changed = connection.execute(
            update(CampaignRow).where(*current).values(updated_at=timestamp(self._now))
        )
        if changed.rowcount == 0:
            row = connection.execute(select(CampaignRow).where(mine)).first()
            name, holder = lease.campaign_name, f"{lease.host}:{lease.pid}"
            if row is None:
                raise AlreadyDriven(
                    f"campaign {name} was deleted; {holder} may no longer write to it"
                )
            if row.driver_host is None:
                hint = f"frontrunner resume {name}"
                raise AlreadyDriven(
                    f"campaign {name}: the lease of {holder} was given back", hint=hint
                )
            raise AlreadyDriven(
                f"campaign {name} was taken over by {row.driver_host}:{row.driver_pid} at"
                f" {row.driven_since}; {holder} may no longer write to it"
            )
        self._shared = connection
        try:
            yield
        finally:
            self._shared = None

    def _was_written(self, connection: Connection) -> bool:
        """Return whether the campaign's row was last written by this writer's last transaction.

        The row is locked first, so that a transaction of a broken connection which still runs has
        ended.
        """
        query = select(CampaignRow.epoch, CampaignRow.updated_at).where(
            CampaignRow.id == self._lease.campaign_id
        )
        row = connection.execute(query.with_for_update()).one()
        return bool(row.epoch == self._lease.epoch and row.updated_at == timestamp(self._now))

    @property
    def _connection(self) -> Connection:
        if self._shared is None:
            raise RuntimeError("a write of the campaign outside of a transaction")
        return self._shared

    @atomic
    def renew(self) -> None:
        """Hold the lease for another of its durations, from now."""
        self._change_campaign(lease_until=until(self._lease, self._now))

    @atomic
    def release(self, state: CampaignState, *, reason: str) -> None:
        """Leave the campaign in a state that is not `running`, and release the lease."""
        if state is CampaignState.RUNNING:
            raise IllegalTransition("a running campaign keeps its lease")
        self.set_state(state, reason=reason)
        self._change_campaign(**RELEASED)

    @atomic
    def set_state(self, state: CampaignState, *, reason: str) -> None:
        """Change the campaign's state; raises `IllegalTransition` where it may not follow the
        present one.
        """
        mine = select(CampaignRow.state).where(CampaignRow.id == self._lease.campaign_id)
        now = CampaignState(self._connection.execute(mine).scalar_one())
        if not may_follow(now, state):
            raise IllegalTransition(f"campaign {self._lease.campaign_name}: {now} -> {state}")
        self._change_campaign(state=state, state_reason=storable(reason))

    @atomic
    def propose(self, recipe_id: str, recipe: Recipe, *, number: int | None = None) -> Trial:
        """Return the campaign's trial of this recipe: a new one in state `queued`, or the one that
        exists. A new one has this `number` if no other has it, else the next one.
        """
        connection = self._connection
        mine = TrialRow.campaign_id == self._lease.campaign_id
        known = connection.execute(
            select(TrialRow).where(mine, TrialRow.recipe_id == recipe_id)
        ).first()
        if known is not None:
            return value_of(Trial, known)
        is_taken = connection.execute(select(TrialRow.id).where(mine, TrialRow.number == number))
        if number is None or is_taken.first() is not None:
            last = select(func.coalesce(func.max(TrialRow.number), 0)).where(mine)
            number = connection.execute(last).scalar_one() + 1
        made = insert(TrialRow).values(
            campaign_id=self._lease.campaign_id,
            number=number,
            recipe_id=recipe_id,
            recipe_json=recipe_to_json(recipe),
            state=TrialState.QUEUED,
        )
        return value_of(Trial, connection.execute(made.returning(TrialRow)).one())

    @atomic
    def repeat(self, trial: Trial) -> Trial:
        """Queue a trial that has ended for one more measurement; those that it has stay and
        rank.
        """
        ended = TrialState.FAILED if trial.state is TrialState.FAILED else TrialState.MEASURED
        self._move_trial(trial.id, ended, TrialState.QUEUED)
        return replace(trial, state=TrialState.QUEUED)

    @atomic
    def start_attempt(
        self, trial: Trial, *, run_folder: str, started_at: str | None = None
    ) -> Attempt:
        """Begin a try at a queued trial, which is `running` from then on.

        `started_at` is the time at which it began, by default now.
        """
        self._move_trial(trial.id, TrialState.QUEUED, TrialState.RUNNING)
        tries = select(func.coalesce(func.max(AttemptRow.number), 0)).where(
            AttemptRow.trial_id == trial.id
        )
        made = insert(AttemptRow).values(
            campaign_id=self._lease.campaign_id,
            trial_id=trial.id,
            number=self._connection.execute(tries).scalar_one() + 1,
            state=AttemptState.RUNNING,
            run_folder=run_folder,
            provenance_id=self._provenance_id,
            started_at=started_at or timestamp(self._now),
        )
        return value_of(Attempt, self._connection.execute(made.returning(AttemptRow)).one())

    @atomic
    def finish_attempt(
        self,
        attempt: Attempt,
        outcome: Outcome,
        *,
        retry: bool,
        nodes: AttemptNodes | None = None,
        finished_at: str | None = None,
    ) -> str:
        """Record the outcome of an attempt and charge its node-seconds to the campaign; a second
        call changes nothing.

        Return the time of its end: `finished_at`, by default now.

        With `retry` the trial is queued again, else its outcome is final. A failure that does not
        count against the recipe leaves a trial that was measured before as measured. One that does
        makes it failed: a recipe that fits or survives only now and then is not to be recommended.
        """
        connection, trial_id = self._connection, attempt.trial_id
        is_lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.LOST
        failed_as = AttemptState.LOST if is_lost else AttemptState.FAILED
        is_measured = isinstance(outcome, Measurement)
        ended_at = finished_at or timestamp(self._now)
        finished = connection.execute(
            update(AttemptRow)
            .where(AttemptRow.id == attempt.id, AttemptRow.campaign_id == self._lease.campaign_id)
            .where(AttemptRow.state == AttemptState.RUNNING)
            .values(state=AttemptState.MEASURED if is_measured else failed_as, finished_at=ended_at)
        )
        if finished.rowcount == 0:
            return ended_at
        insert_outcome(connection, attempt.id, outcome)
        if nodes is not None:
            troubles = {
                name: storable(without_secrets(why)) for name, why in nodes.troubles.items()
            }
            held = {
                "names_json": canonical_json(nodes.names),
                "troubles_json": canonical_json(troubles),
            }
            connection.execute(insert(NodesRow).values(attempt_id=attempt.id, **held))
        if is_measured:
            rewrite_stats(connection, trial_id)
        spent = CampaignRow.node_seconds_spent + outcome.node_seconds
        if retry:
            self._change_campaign(node_seconds_spent=spent)
            self._move_trial(trial_id, TrialState.RUNNING, TrialState.QUEUED)
            return ended_at
        row = self._change_campaign(node_seconds_spent=spent, outcomes=CampaignRow.outcomes + 1)
        state, standing = TrialState.MEASURED, StandingRow.trial_id == trial_id
        if isinstance(outcome, Failure):
            ranks = (
                connection.execute(select(StandingRow.trial_id).where(standing)).first() is not None
            )
            if outcome.policy.counts_against_recipe or not ranks:
                state = TrialState.FAILED
                connection.execute(delete(StandingRow).where(standing))
        self._move_trial(trial_id, TrialState.RUNNING, state, outcome_number=row.outcomes)
        return ended_at

    @atomic
    def event(self, kind: str, **data: str | int | float | None) -> None:
        """Add an event to the campaign's history; numbers that are not finite are stored as
        None.
        """
        kept = {
            key: finite_or_none(value) if isinstance(value, float) else value
            for key, value in data.items()
        }
        values = {"campaign_id": self._lease.campaign_id, "at": timestamp(self._now), "kind": kind}
        self._connection.execute(insert(EventRow).values(**values, data_json=canonical_json(kept)))

    @atomic
    def add_driver_seconds(self, seconds: float) -> None:
        """Charge the driver's own time to the campaign."""
        if not seconds >= 0 or math.isinf(seconds):
            raise ValueError(f"seconds = {seconds!r}: expected a finite number of at least 0")
        self._change_campaign(driver_seconds=CampaignRow.driver_seconds + seconds)

    @atomic
    def record_provenance(self, provenance: Provenance) -> None:
        """Store what this run of the driver runs with; attempts started from now on refer to it."""
        made = insert(ProvenanceRow).values(
            campaign_id=self._lease.campaign_id,
            recorded_at=timestamp(self._now),
            provenance_json=canonical_json(asdict(provenance)),
        )
        self._provenance_id = self._connection.execute(
            made.returning(ProvenanceRow.id)
        ).scalar_one()

    def _change_campaign(self, **changes: object) -> Any:
        change = (
            update(CampaignRow).where(CampaignRow.id == self._lease.campaign_id).values(**changes)
        )
        return self._connection.execute(change.returning(CampaignRow)).one()

    def _move_trial(
        self,
        trial_id: int,
        before: TrialState,
        after: TrialState,
        *,
        outcome_number: int | None = None,
    ) -> None:
        """Change a trial's state; raises `IllegalTransition` where it is not in state `before`."""
        change = update(TrialRow).where(TrialRow.id == trial_id, TrialRow.state == before)
        moved = self._connection.execute(change.values(state=after, outcome_number=outcome_number))
        if moved.rowcount == 0:
            raise IllegalTransition(
                f"trial {trial_id} is not {before}, so it cannot become {after}"
            )


def insert_outcome(connection: Connection, attempt_id: int, outcome: Outcome) -> None:
    """Store the outcome of an attempt."""
    made = insert(TABLES[type(outcome)])
    connection.execute(made.values(attempt_id=attempt_id, **outcome_to_columns(outcome)))
    if isinstance(outcome, Measurement) and outcome.ended is not None:
        connection.execute(
            insert(EndingRow).values(attempt_id=attempt_id, ended=outcome.ended.value)
        )
    if isinstance(outcome, Measurement) and outcome.telemetry is not None:
        text = canonical_json(vars(outcome.telemetry))
        connection.execute(insert(TelemetryRow).values(attempt_id=attempt_id, telemetry_json=text))


def rewrite_stats(connection: Connection, trial_id: int) -> None:
    """Pool all measurements of a trial and store the result."""
    trial = connection.execute(
        select(TrialRow.campaign_id, TrialRow.recipe_id).where(TrialRow.id == trial_id)
    ).one()
    attempts = select(AttemptRow.id).where(AttemptRow.trial_id == trial_id)
    outcomes = (outcome for _, outcome in sorted(outcomes_by_attempt(connection, attempts).items()))
    stats = pool([outcome for outcome in outcomes if isinstance(outcome, Measurement)])
    connection.execute(delete(StandingRow).where(StandingRow.trial_id == trial_id))
    columns = {
        "trial_id": trial_id,
        "campaign_id": trial.campaign_id,
        "recipe_id": trial.recipe_id,
        **vars(stats),
    }
    columns["peak_memory_bytes_max_rank"] = stats.peak_memory_bytes_max_rank or 0
    connection.execute(insert(StandingRow).values(**columns))
