"""Status of a campaign, its failures, and the drivers that leases name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from frontrunner.notebook import Displayed
from frontrunner.results.lease import holder_identity, is_held
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.predictions import OUTLOOK, PREDICTION, newest_outlooks
from frontrunner.results.process_identity import boot_id, is_on_this_host
from frontrunner.results.ranking import RankedRecipe, rank
from frontrunner.results.records import Campaign, Event, Trial, state_in_words
from frontrunner.results.rows import attempts_by_trial, cell, read_attempts, trials_by_state, values
from frontrunner.results.schema import AttemptRow, CampaignRow, EventRow, FailureRow, TrialRow
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store

LAST_EVENTS = 10


@dataclass(frozen=True, kw_only=True)
class Status(Displayed):
    """A campaign at one moment.

    `trials` and `failures` count trials by state and failed attempts by kind. `driver_is_live` is False for a
    campaign that was cut off. `outlook` is the newest estimate of what is left to gain
    (`frontrunner.results.predictions`); `last_events` are the newest others, oldest first.
    """

    campaign: Campaign
    driver_is_live: bool
    trials: Mapping[TrialState, int]
    failures: Mapping[FailureKind, int]
    best: RankedRecipe | None
    outlook: Event | None
    last_events: tuple[Event, ...]

    @property
    def state_in_words(self) -> str:
        """The campaign's state, or `CUT_OFF`."""
        return state_in_words(self.campaign.state, is_driven=self.driver_is_live)


@dataclass(frozen=True, kw_only=True)
class ActiveDriver:
    """Holder of a campaign's lease.

    `is_here`: its process id is one of this host. Where `is_certain`, a live one that is here is the process itself,
    not one that was given its id later.
    """

    campaign: str
    host: str
    pid: int
    since: str
    is_here: bool
    is_certain: bool
    is_live: bool
    heartbeat_age_s: float


@dataclass(frozen=True, kw_only=True)
class FailedTrial:
    """A trial whose final outcome is a failure: the last attempt's, of `attempts` in all."""

    trial: Trial
    failure: Failure
    attempts: int
    run_folder: str


class FailureList(list[FailedTrial], Displayed):
    """Failed trials as a list that a notebook shows as a table."""


def status(store: Store, campaign: Campaign | str | None) -> Status:
    """Return the status of the campaign (None: the newest)."""
    with store.read(campaign) as (connection, found):
        lease = connection.execute(select(CampaignRow).where(CampaignRow.id == found.id)).one()
        others = (EventRow.campaign_id == found.id, EventRow.kind.not_in((OUTLOOK, PREDICTION)))
        newest = values(connection, Event, *others, order=EventRow.id.desc(), limit=LAST_EVENTS)
        return Status(
            campaign=found,
            driver_is_live=is_held(store.database, connection, lease),
            trials=trials_by_state(connection, [found.id])[found.id],
            failures=_failures_by_kind(connection, found.id),
            best=next(iter(rank(connection, found, top=1)), None),
            outlook=next(iter(newest_outlooks(connection, found.id, 1)), None),
            last_events=tuple(reversed(newest)),
        )


def _failures_by_kind(connection: Connection, campaign_id: int) -> Mapping[FailureKind, int]:
    counted = connection.execute(
        select(FailureRow.kind, func.count().label("attempts"), func.min(FailureRow.attempt_id).label("first"))
        .join(AttemptRow, AttemptRow.id == FailureRow.attempt_id)
        .where(AttemptRow.campaign_id == campaign_id)
        .group_by(FailureRow.kind)
        .order_by(func.count().desc(), FailureRow.kind)
    )
    return {cell(FailureRow.kind, row.kind, row.first): row.attempts for row in counted}


def active_drivers(store: Store) -> list[ActiveDriver]:
    """Return the holders of all leases that were not released, by campaign, the newest first."""
    query = select(CampaignRow).where(CampaignRow.lease_until.is_not(None)).order_by(CampaignRow.id.desc())
    found = []
    with store.database.read() as connection:
        now = store.database.now(connection)
        for row in connection.execute(query).all():
            identity = holder_identity(connection, row)
            written_at = datetime.fromisoformat(cell(CampaignRow.updated_at, row.updated_at, row.id))
            driver = ActiveDriver(
                campaign=row.name,
                host=row.driver_host,
                pid=row.driver_pid,
                since=row.driven_since,
                is_here=is_on_this_host(row.driver_host, identity),
                is_certain=identity is not None and boot_id() is not None,
                is_live=is_held(store.database, connection, row),
                heartbeat_age_s=max(0.0, (now - written_at).total_seconds()),
            )
            found.append(driver)
    return found


def version_of(store: Store, campaign: str) -> tuple[str, bool]:
    """Return text that changes with every write of a campaign's drivers, and whether one holds the campaign."""
    with store.read(campaign) as (connection, found):
        row = connection.execute(select(CampaignRow).where(CampaignRow.id == found.id)).one()
        return f"{found.updated_at} {found.epoch} {found.outcomes}", is_held(store.database, connection, row)


def failures(
    store: Store, campaign: Campaign | str | None, *, limit: int | None = None, offset: int = 0
) -> list[FailedTrial]:
    """Return the campaign's failed trials in the order of recording: up to `limit`, after `offset` others."""
    with store.read(campaign) as (connection, found):
        failed = (
            select(TrialRow.id)
            .where(TrialRow.campaign_id == found.id, TrialRow.state == TrialState.FAILED)
            .order_by(TrialRow.outcome_number)
            .limit(limit)
            .offset(offset)
        )
        tries = attempts_by_trial(connection, AttemptRow.trial_id.in_(failed))
        listed = [tries[trial_id] for trial_id in connection.execute(failed).scalars() if trial_id in tries]
    return [
        FailedTrial(trial=last.trial, failure=last.outcome, attempts=len(of_trial), run_folder=last.attempt.run_folder)
        for of_trial in listed
        if isinstance((last := of_trial[-1]).outcome, Failure)
    ]


def last_failure(store: Store, campaign: str | None, trial_number: int) -> Failure | None:
    """Return the newest failure among a trial's attempts; None where there is no failure or no such trial."""
    with store.read(campaign) as (connection, found):
        trial = select(TrialRow.id).where(TrialRow.campaign_id == found.id, TrialRow.number == trial_number)
        tries = read_attempts(connection, AttemptRow.trial_id.in_(trial))
    return next((one.outcome for one in reversed(tries) if isinstance(one.outcome, Failure)), None)
