"""The store: opening it, creating campaigns, and reading.

One process writes to a campaign at a time: the driver that holds its lease, through the `CampaignWriter`
that `Store.drive` gives out. Everything else here reads, from any number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from sqlalchemy import func, insert, select

from frontrunner.results.address import damaged
from frontrunner.results.database import Database
from frontrunner.results.lease import Request, acquire
from frontrunner.results.opening import open_database
from frontrunner.results.outcome import Outcome
from frontrunner.results.records import Attempt, Campaign, CampaignSummary, Clock, Event, Lease, Trial, timestamp
from frontrunner.results.rows import (
    DamagedCell,
    cell,
    final_attempts,
    find_campaign,
    outcome_of,
    outcomes_by_attempt,
    to_attempt,
    to_campaign,
    to_event,
    to_trial,
)
from frontrunner.results.schema import AttemptRow, CampaignRow, EventRow, TrialRow
from frontrunner.results.states import AttemptState, CampaignState
from frontrunner.results.summaries import summaries
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import InvalidInput, StoreUnusable, require_campaign_name
from frontrunner.spaces.recipe import Recipe

BUSY_TIMEOUT_S = 90.0
"""A program that holds an SQLite store's lock for a minute, as to copy it, is waited for."""


def open_store(
    url: str,
    *,
    create: bool = True,
    read_only: bool = False,
    clock: Clock | None = None,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> Store:
    """Open the store at a path or URL, creating it where `create` is set and nothing is there.

    `clock` is by default that of the machine that holds the database. `busy_timeout_s` is how long to wait for another
    program's write lock. A read-only store changes no file,
    except that reading beside a live driver uses the files that SQLite keeps for it.

    Raises:
        InvalidInput: the URL cannot be read.
        NotFound: there is no store, and none is to be created.
        StoreUnusable: what lies there is not a store, is damaged, or has another schema version. It is left as it is.
    """
    database = open_database(url, create=create, read_only=read_only, clock=clock, busy_timeout_s=busy_timeout_s)
    return Store(database, clock or database.clock)


class Store:
    """An open store. Reads may be made from several threads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @property
    def url(self) -> str:
        """Return the file's path, or the URL with its password hidden."""
        return str(self._database.address)

    @property
    def database(self) -> Database:
        """The database that the queries in this package read."""
        return self._database

    def now(self) -> datetime:
        """Return the time by the store's clock."""
        return self._clock()

    def close(self) -> None:
        """Close every connection; the store cannot be used afterwards."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, DamagedCell):  # of what was read and understood only later, as a specification
            raise self.damaged(error) from error

    def damaged(self, cell: DamagedCell) -> StoreUnusable:
        """Return the error for a damaged cell of this store, with its newest backup."""
        return damaged(self._database.address, cell.finding)

    def create_campaign(
        self, *, name: str, spec_json: str, legal_recipes: int, problem_summary: Mapping[str, object]
    ) -> Campaign:
        """Add a campaign in state `created`. Its strategy is read from the spec's `search.strategy`.

        Raises `InvalidInput` for a name that is taken or not of the form [a-z0-9][a-z0-9._-]{0,63}.
        """
        require_campaign_name("campaign.name", name)
        now = timestamp(self._clock())
        with self._database.write(whole_store=True) as connection:
            if connection.execute(select(CampaignRow.id).where(CampaignRow.name == name)).first():
                raise InvalidInput(
                    f"campaign {name!r} exists already in {self.url}",
                    hint=f"run: frontrunner resume {name}, or choose another name",
                )
            made = insert(CampaignRow).values(
                name=name,
                state=CampaignState.CREATED,
                strategy=str(json.loads(spec_json).get("search", {}).get("strategy", "")),
                spec_json=spec_json,
                problem_json=canonical_json(dict(problem_summary)),
                legal_recipes=legal_recipes,
                created_at=now,
                updated_at=now,
            )
            return to_campaign(connection.execute(made.returning(CampaignRow)).one())

    def campaign(self, name: str | None) -> Campaign:
        """Return the named campaign, or for None the one created last; `NotFound` where there is none."""
        with self._database.read() as connection:
            return find_campaign(connection, name, store=self.url)

    def campaigns(self) -> list[CampaignSummary]:
        """Return every campaign, the newest first."""
        query = select(CampaignRow.id, CampaignRow.updated_at).order_by(CampaignRow.id.desc())
        now = self._clock()
        with self._database.read() as connection:
            found = connection.execute(query).all()
            return summaries(connection, found, now=now, file=self._database.address.path)

    def trials(self, campaign_id: int) -> list[Trial]:
        """Return the campaign's trials in the order in which they were proposed."""
        query = select(TrialRow).where(TrialRow.campaign_id == campaign_id).order_by(TrialRow.number)
        with self._database.read() as connection:
            return [to_trial(row) for row in connection.execute(query)]

    def final_outcomes(self, campaign_id: int) -> list[tuple[Recipe, Outcome]]:
        """Return all measurements, and the failures that ended a trial, in the order of recording.

        A recipe that was measured again is there as often. Lost attempts say nothing about their recipe, and failures
        that were followed by another attempt nothing final.
        """
        with self._database.read() as connection:
            final = final_attempts(campaign_id)
            outcomes = outcomes_by_attempt(connection, final)
            query = (
                select(AttemptRow.id, AttemptRow.trial_id, TrialRow.recipe_json)
                .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
                .where(AttemptRow.id.in_(final))
                .order_by(AttemptRow.finished_at, func.coalesce(TrialRow.outcome_number, 0), AttemptRow.id)
            )
            return [
                (cell(TrialRow.recipe_json, row.recipe_json, row.trial_id), outcome_of(outcomes, row))
                for row in connection.execute(query)
            ]

    def open_attempts(self, campaign_id: int) -> list[Attempt]:
        """Return the attempts recorded as running, oldest first: after a crash, those to harvest."""
        query = (
            select(AttemptRow)
            .where(AttemptRow.campaign_id == campaign_id, AttemptRow.state == AttemptState.RUNNING)
            .order_by(AttemptRow.id)
        )
        with self._database.read() as connection:
            return [to_attempt(row) for row in connection.execute(query)]

    def events(self, campaign_id: int, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return up to `limit` events with ids above `after`, oldest first."""
        query = (
            select(EventRow)
            .where(EventRow.campaign_id == campaign_id, EventRow.id > after)
            .order_by(EventRow.id)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [to_event(row) for row in connection.execute(query)]

    def acquire_lease(
        self, campaign_id: int, *, host: str, pid: int, duration_s: float = 30.0, take_over: bool = False
    ) -> Lease:
        """Become the campaign's one driver; a previous holder is fenced: its next write is refused.

        A lease is free when it was released, when its time is over, or when its holder ran on this host and
        is gone. An SQLite store's time is this host's, so there a holder on this host that still runs keeps its lease
        beyond that time. Raises `AlreadyDriven` where another holds it, unless `take_over` is set.
        """
        with self._database.write() as connection:
            request = Request(campaign_id=campaign_id, host=host, pid=pid, duration_s=duration_s)
            return acquire(
                connection, request, now=self._clock(), take_over=take_over, file=self._database.address.path
            )

    def drive(self, lease: Lease) -> CampaignWriter:
        """Return the write side of the lease's campaign. Used by one thread."""
        return CampaignWriter(self._database, lease, self._clock)
