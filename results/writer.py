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

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from frontrunner.results.database import RECONNECT_S, ConnectionLost, Database
from frontrunner.results.lease import RELEASED, until
from frontrunner.results.nodes import AttemptNodes
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    RecipeStats,
    pool,
)
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
    Base,
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

CAMPAIGNS = Base.metadata.tables[CampaignRow.__tablename__]
TRIALS = Base.metadata.tables[TrialRow.__tablename__]
ATTEMPTS = Base.metadata.tables[AttemptRow.__tablename__]
STANDINGS = Base.metadata.tables[StandingRow.__tablename__]

# The statements of each trial are made once: to make one takes longer than to run it.
UPDATE_UNDER_LEASE = (
    update(CAMPAIGNS)
    .where(
        CAMPAIGNS.c.id == bindparam("campaign"),
        CAMPAIGNS.c.epoch == bindparam("current_epoch"),
        CAMPAIGNS.c.lease_until.is_not(None),
    )
    .values(updated_at=bindparam("now"))
)
CHARGE_CAMPAIGN = (
    update(CAMPAIGNS)
    .where(CAMPAIGNS.c.id == bindparam("campaign"))
    .values(
        node_seconds_spent=CAMPAIGNS.c.node_seconds_spent + bindparam("node_seconds"),
        outcomes=CAMPAIGNS.c.outcomes + bindparam("final_outcomes"),
    )
    .returning(CAMPAIGNS.c.outcomes)
)
TRIAL_OF_RECIPE = select(TRIALS).where(
    TRIALS.c.campaign_id == bindparam("campaign"), TRIALS.c.recipe_id == bindparam("recipe")
)
TRIAL_OF_NUMBER = select(TRIALS.c.id).where(
    TRIALS.c.campaign_id == bindparam("campaign"), TRIALS.c.number == bindparam("trial_number")
)
INSERT_TRIAL = insert(TRIALS).returning(TRIALS.c.id, TRIALS.c.number)
INSERT_NEXT_TRIAL = INSERT_TRIAL.values(
    number=select(func.coalesce(func.max(TRIALS.c.number), 0) + 1)
    .where(TRIALS.c.campaign_id == bindparam("campaign"))
    .scalar_subquery()
)
MOVE_TRIAL = (
    update(TRIALS)
    .where(TRIALS.c.id == bindparam("trial"), TRIALS.c.state == bindparam("state_before"))
    .values(state=bindparam("state_after"), outcome_number=bindparam("number_of_outcome"))
)
INSERT_ATTEMPT = (
    insert(ATTEMPTS)
    .values(
        number=select(func.coalesce(func.max(ATTEMPTS.c.number), 0) + 1)
        .where(ATTEMPTS.c.trial_id == bindparam("trial"))
        .scalar_subquery()
    )
    .returning(ATTEMPTS)
)
INSERT_STANDING = insert(STANDINGS).values(
    {
        name: select(TRIALS.c[name]).where(TRIALS.c.id == bindparam("trial")).scalar_subquery()
        for name in ("campaign_id", "recipe_id")
    }
)
FINISH_ATTEMPT = (
    update(ATTEMPTS)
    .where(
        ATTEMPTS.c.id == bindparam("attempt"),
        ATTEMPTS.c.campaign_id == bindparam("campaign"),
        ATTEMPTS.c.state == AttemptState.RUNNING,
    )
    .values(state=bindparam("state_after"), finished_at=bindparam("ended_at"))
)


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
        lease = self._lease
        current = {
            "campaign": lease.campaign_id,
            "current_epoch": lease.epoch,
            "now": timestamp(self._now),
        }
        changed = connection.execute(UPDATE_UNDER_LEASE, current)
        if changed.rowcount == 0:
            mine = CampaignRow.id == lease.campaign_id
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
        connection, campaign_id = self._connection, self._lease.campaign_id
        of_recipe = {"campaign": campaign_id, "recipe": recipe_id}
        known = connection.execute(TRIAL_OF_RECIPE, of_recipe).first()
        if known is not None:
            return value_of(Trial, known)
        columns = {
            "campaign_id": campaign_id,
            "recipe_id": recipe_id,
            "recipe_json": recipe_to_json(recipe),
            "state": TrialState.QUEUED,
        }
        if number is not None and self._is_free(number):
            row = connection.execute(INSERT_TRIAL, columns | {"number": number}).one()
        else:
            row = connection.execute(INSERT_NEXT_TRIAL, columns | {"campaign": campaign_id}).one()
        return Trial(
            id=row.id,
            campaign_id=campaign_id,
            number=row.number,
            recipe_id=recipe_id,
            recipe=recipe,
            state=TrialState.QUEUED,
        )

    def _is_free(self, number: int) -> bool:
        of_number = {"campaign": self._lease.campaign_id, "trial_number": number}
        return self._connection.execute(TRIAL_OF_NUMBER, of_number).first() is None

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
        columns = {
            "campaign_id": self._lease.campaign_id,
            "trial_id": trial.id,
            "state": AttemptState.RUNNING,
            "run_folder": run_folder,
            "provenance_id": self._provenance_id,
            "started_at": started_at or timestamp(self._now),
        }
        made = self._connection.execute(INSERT_ATTEMPT, columns | {"trial": trial.id})
        return value_of(Attempt, made.one())

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
        end = {
            "attempt": attempt.id,
            "campaign": self._lease.campaign_id,
            "state_after": AttemptState.MEASURED if is_measured else failed_as,
            "ended_at": ended_at,
        }
        finished = connection.execute(FINISH_ATTEMPT, end)
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
        if isinstance(outcome, Measurement) and attempt.number == 1:
            _insert_stats(connection, trial_id, pool([outcome]))
        elif is_measured:
            rewrite_stats(connection, trial_id)
        charge = {
            "campaign": self._lease.campaign_id,
            "node_seconds": outcome.node_seconds,
            "final_outcomes": 0 if retry else 1,
        }
        row = connection.execute(CHARGE_CAMPAIGN, charge).one()
        if retry:
            self._move_trial(trial_id, TrialState.RUNNING, TrialState.QUEUED)
            return ended_at
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
        """Charge the driver's own time to the campaign; below 0, give back what was charged in
        advance.
        """
        if not math.isfinite(seconds):
            raise ValueError(f"seconds = {seconds!r}: expected a finite number")
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
        move = {
            "trial": trial_id,
            "state_before": before,
            "state_after": after,
            "number_of_outcome": outcome_number,
        }
        if self._connection.execute(MOVE_TRIAL, move).rowcount == 0:
            raise IllegalTransition(
                f"trial {trial_id} is not {before}, so it cannot become {after}"
            )


def insert_outcome(connection: Connection, attempt_id: int, outcome: Outcome) -> None:
    """Store the outcome of an attempt."""
    columns = {"attempt_id": attempt_id} | outcome_to_columns(outcome)
    connection.execute(insert(Base.metadata.tables[TABLES[type(outcome)].__tablename__]), columns)
    if isinstance(outcome, Measurement) and outcome.ended is not None:
        connection.execute(
            insert(EndingRow).values(attempt_id=attempt_id, ended=outcome.ended.value)
        )
    if isinstance(outcome, Measurement) and outcome.telemetry is not None:
        text = canonical_json(vars(outcome.telemetry))
        connection.execute(insert(TelemetryRow).values(attempt_id=attempt_id, telemetry_json=text))


def rewrite_stats(connection: Connection, trial_id: int) -> None:
    """Pool all measurements of a trial and store the result."""
    attempts = select(AttemptRow.id).where(AttemptRow.trial_id == trial_id)
    outcomes = (outcome for _, outcome in sorted(outcomes_by_attempt(connection, attempts).items()))
    stats = pool([outcome for outcome in outcomes if isinstance(outcome, Measurement)])
    connection.execute(delete(StandingRow).where(StandingRow.trial_id == trial_id))
    _insert_stats(connection, trial_id, stats)


def _insert_stats(connection: Connection, trial_id: int, stats: RecipeStats) -> None:
    columns = {"trial": trial_id, "trial_id": trial_id, **vars(stats)}
    columns["peak_memory_bytes_max_rank"] = stats.peak_memory_bytes_max_rank or 0
    connection.execute(INSERT_STANDING, columns)
