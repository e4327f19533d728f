"""Leases: which driver may write to a campaign, and transactions under a lease.

A campaign counts the leases it has given out in its `epoch`. Every transaction of a driver begins by updating the
campaign's row under its lease's epoch, so that a driver that was paused, or believed dead, is refused with
`AlreadyDriven` instead of writing beside its successor. The time that it writes there also shows, after a connection
broke at the commit, whether the server had committed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, insert, select, update

from frontrunner.results.database import RECONNECT_S, ConnectionLost, Database
from frontrunner.results.process_identity import (
    Liveness,
    ProcessId,
    has_open,
    is_service,
    liveness,
    process_id,
    this_host,
)
from frontrunner.results.records import Clock, Lease, timestamp
from frontrunner.results.rows import cell, has_table
from frontrunner.results.schema import CampaignRow, HolderRow
from frontrunner.spaces.errors import AlreadyDriven, NotFound

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])
RELEASED = dict.fromkeys(("driver_host", "driver_pid", "driven_since", "lease_until"))
"""Columns of a campaign whose lease nobody holds."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of a process for a campaign's lease, valid for `duration_s` between renewals."""

    campaign_id: int
    host: str
    pid: int
    duration_s: float


def acquire(
    connection: Connection, request: Request, *, now: datetime, take_over: bool, file: Path | None = None
) -> Lease:
    """Give out the next lease inside a write transaction; see `Store.acquire_lease`, and `is_held` for `file`."""
    query = select(CampaignRow).where(CampaignRow.id == request.campaign_id)
    row = connection.execute(query.with_for_update()).first()  # SQLite, whose write lock is held, ignores this
    if row is None:
        raise NotFound(f"there is no campaign with id {request.campaign_id}")
    if is_held(connection, row, now, file=file) and not take_over:
        raise AlreadyDriven(
            f"campaign {row.name} is driven by {row.driver_host}:{row.driver_pid} since {row.driven_since}",
            hint=f"wait for it, or take its place: frontrunner resume {row.name} --take-over",
        )
    lease = Lease(
        campaign_id=row.id,
        campaign_name=row.name,
        epoch=row.epoch + 1,
        host=request.host,
        pid=request.pid,
        duration_s=request.duration_s,
    )
    connection.execute(
        update(CampaignRow)
        .where(CampaignRow.id == row.id)
        .values(
            epoch=lease.epoch,
            driver_host=lease.host,
            driver_pid=lease.pid,
            driven_since=timestamp(now),
            lease_until=until(lease, now),
            updated_at=timestamp(now),
        )
    )
    identity = process_id(lease.host, lease.pid)
    if identity is not None:
        columns = {"boot_id": identity.boot_id, "started_ticks": identity.started_ticks}
        connection.execute(insert(HolderRow).values(campaign_id=lease.campaign_id, epoch=lease.epoch, **columns))
    return lease


def until(lease: Lease, now: datetime) -> str:
    """Return when a lease renewed now ends."""
    return timestamp(now + timedelta(seconds=lease.duration_s))


def is_held(connection: Connection, row: Any, now: datetime, *, file: Path | None) -> bool:
    """Return whether a campaign's lease has time left, and its holder is not known to be dead.

    `file` is that of an SQLite store. There the time is this host's, which may jump: a driver of this host that runs
    and has the store open holds its lease whatever the clock says, unless it is this very process.
    """
    if row.lease_until is None:
        return False
    identity = holder_identity(connection, row)
    holder = liveness(row.driver_host, row.driver_pid, identity, is_one_machine=file is not None)
    if holder is Liveness.DEAD:
        return False
    if datetime.fromisoformat(cell(CampaignRow.lease_until, row.lease_until, row.id)) > now:
        return True
    if holder is Liveness.UNKNOWN or file is None or row.driver_pid == os.getpid():
        return False
    if not has_open(row.driver_pid, file, if_hidden=identity is not None):
        return False
    is_another = identity is None and is_service(row.driver_pid)
    return not is_another and not _drives_another(connection, row)


def holder_identity(connection: Connection, row: Any) -> ProcessId | None:
    """Return the identity of a lease's holder; None where it was not stored, as by earlier versions."""
    if row.driver_host != this_host() or not has_table(connection, HolderRow):
        return None
    query = select(HolderRow.boot_id, HolderRow.started_ticks).where(
        HolderRow.campaign_id == row.id, HolderRow.epoch == row.epoch
    )
    found = connection.execute(query).first()
    return None if found is None else ProcessId(boot_id=found.boot_id, started_ticks=found.started_ticks)


def _drives_another(connection: Connection, row: Any) -> bool:
    """Return whether the process took another campaign after the last write to this one.

    It could then not release this one, or it is another process that was given the holder's id.
    """
    taken = select(CampaignRow.id).where(
        CampaignRow.driver_host == row.driver_host,
        CampaignRow.driver_pid == row.driver_pid,
        CampaignRow.driven_since > row.updated_at,
    )
    return connection.execute(taken.limit(1)).first() is not None


def refuse_driven(connection: Connection, database: Database, now: datetime, name: str | None = None) -> None:
    """Raise `AlreadyDriven` where a live driver holds the named campaign, or (None) any, at a time of its clock.

    A server's clock is read through a connection of its own, so before this one is taken.
    """
    for row in connection.execute(select(CampaignRow)).all():
        if name in (None, row.name) and is_held(connection, row, now, file=database.address.path):
            raise AlreadyDriven(
                f"campaign {row.name} is driven by {row.driver_host}:{row.driver_pid}",
                hint="stop that driver first: Ctrl-C, or SIGTERM",
            )


def atomic(method: M) -> M:
    """Make a method of a writer a transaction of its own, or a part of the current one."""

    @wraps(method)
    def transaction(self: LeasedWriter, *arguments: Any, **named: Any) -> Any:
        return self.atomically(lambda: method(self, *arguments, **named))

    return cast(M, transaction)


class LeasedWriter:
    """Transactions under one lease. Used by one thread."""

    def __init__(self, database: Database, lease: Lease, clock: Clock) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self._shared: Connection | None = None
        self._written_at = ""

    def atomically(self, work: Callable[[], T]) -> T:
        """Make the calls of `work` one transaction: all of them are written, or, on an exception, none.

        Where the connection to a database server breaks, `work` is called again, until `RECONNECT_S` have passed; so
        it should do nothing but call this writer. What it writes is written once. Raises `AlreadyDriven` once the lease
        was taken over or released, and `ConnectionLost` where the server does not come back.
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
                    self._raise_campaign(connection)
                    with self._sharing(connection):
                        unsure = [work()]
                return unsure[0]
            except ConnectionLost:
                if time.monotonic() > give_up:
                    raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the calls inside one transaction, as `atomically` does; not repeated if a connection breaks."""
        with self._database.write() as connection:
            self._raise_campaign(connection)
            with self._sharing(connection):
                yield

    @property
    def _connection(self) -> Connection:
        """The connection of the current transaction."""
        if self._shared is None:
            raise RuntimeError("a write of the campaign outside of a transaction")
        return self._shared

    @contextmanager
    def _sharing(self, connection: Connection) -> Iterator[None]:
        self._shared = connection
        try:
            yield
        finally:
            self._shared = None

    def _raise_campaign(self, connection: Connection, **changes: object) -> None:
        """Update the campaign's row if the lease is still its current one.

        Raises `AlreadyDriven`, and so undoes the transaction, where it is not.
        """
        now = self._clock()
        updated = connection.execute(
            update(CampaignRow)
            .where(CampaignRow.id == self._lease.campaign_id, CampaignRow.epoch == self._lease.epoch)
            .where(CampaignRow.lease_until.is_not(None))
            .values(updated_at=timestamp(now), **changes)
        )
        if updated.rowcount == 0:
            raise self._lost(connection)
        self._written_at = timestamp(now)

    def _was_written(self, connection: Connection) -> bool:
        """Return whether the campaign's row was last written by this writer's last transaction.

        The row is locked first, so that a transaction of a broken connection which still runs has ended.
        """
        query = select(CampaignRow.epoch, CampaignRow.updated_at).where(CampaignRow.id == self._lease.campaign_id)
        row = connection.execute(query.with_for_update()).one()
        return bool(row.epoch == self._lease.epoch and row.updated_at == self._written_at)

    def _lost(self, connection: Connection) -> AlreadyDriven:
        lease = self._lease
        row = connection.execute(select(CampaignRow).where(CampaignRow.id == lease.campaign_id)).one()
        name = lease.campaign_name
        if row.driver_host is None:
            return AlreadyDriven(
                f"campaign {name}: the lease of {lease.host}:{lease.pid} was given back",
                hint=f"frontrunner resume {name}",
            )
        return AlreadyDriven(
            f"campaign {name} was taken over by {row.driver_host}:{row.driver_pid} at {row.driven_since}; "
            f"{lease.host}:{lease.pid} may no longer write to it"
        )
