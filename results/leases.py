"""Leases: who may write to a campaign.

A campaign counts the leases it has given out in its `epoch`. Each write first raises the campaign's row by
epoch, so that a driver that was paused, or believed dead, is refused instead of writing beside its successor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, update

from frontrunner.results import holders
from frontrunner.results.cells import Cells
from frontrunner.results.clock import timestamp
from frontrunner.results.holders import Birth, Sight
from frontrunner.results.later_tables import is_there
from frontrunner.results.records import Lease
from frontrunner.results.schema import CampaignRow, HolderRow
from frontrunner.spaces.errors import AlreadyDriven, NotFound

GIVEN_BACK = dict.fromkeys(("driver_host", "driver_pid", "driven_since", "lease_until"))
"""The columns of a campaign whose lease nobody holds."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Who asks for which campaign's lease, and for how long between renewals."""

    campaign_id: int
    host: str
    pid: int
    duration_s: float


def acquire(
    connection: Connection, wanted: Wanted, *, now: datetime, take_over: bool, file: Path | None = None
) -> Lease:
    """Give out the next lease inside a write transaction; see `Store.acquire_lease`, and `is_held` of `file`."""
    query = select(CampaignRow).where(CampaignRow.id == wanted.campaign_id)
    row = connection.execute(query.with_for_update()).first()  # SQLite, whose write lock is held, ignores this
    if row is None:
        raise NotFound(f"there is no campaign with id {wanted.campaign_id}")
    if is_held(connection, row, now, file=file) and not take_over:
        raise AlreadyDriven(
            f"campaign {row.name} is driven by {row.driver_host}:{row.driver_pid} since {row.driven_since}",
            hint=f"wait for it, or take its place: frontrunner resume {row.name} --take-over",
        )
    lease = Lease(
        campaign_id=row.id,
        campaign_name=row.name,
        epoch=row.epoch + 1,
        host=wanted.host,
        pid=wanted.pid,
        duration_s=wanted.duration_s,
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
    _keep_birth(connection, lease)
    return lease


def _keep_birth(connection: Connection, lease: Lease) -> None:
    """Write down what names the holder for certain, where this host can tell it."""
    born = holders.birth(lease.host, lease.pid)
    if born is not None:
        of_lease = {"campaign_id": lease.campaign_id, "epoch": lease.epoch}
        connection.execute(insert(HolderRow).values(**of_lease, boot_id=born.boot_id, started_ticks=born.started_ticks))


def until(lease: Lease, now: datetime) -> str:
    """When a lease renewed now ends."""
    return timestamp(now + timedelta(seconds=lease.duration_s))


def is_held(connection: Connection, row: Any, now: datetime, *, file: Path | None) -> bool:
    """Whether a campaign's lease has time left, and its holder is not known to be gone.

    `file` is that of an SQLite store. There the time is this host's, which may jump: a driver of this host that runs
    and has the store open holds its lease whatever the clock says, unless it is this very process.
    """
    if row.lease_until is None:
        return False
    born = birth_of(connection, row)
    sight = holders.sight(row.driver_host, row.driver_pid, born, is_one_machine=file is not None)
    if sight is Sight.GONE:
        return False
    if Cells(CampaignRow, row, row.id).time("lease_until") > now:
        return True
    if sight is Sight.UNKNOWN or file is None or row.driver_pid == os.getpid():
        return False
    if not holders.has_open(row.driver_pid, file, if_hidden=born is not None):
        return False
    is_another = born is None and holders.is_service(row.driver_pid)
    return not is_another and not _drives_another(connection, row)


def birth_of(connection: Connection, row: Any) -> Birth | None:
    """What names the holder of a campaign's lease for certain; None where that was not kept, as by earlier versions."""
    if row.driver_host != holders.this_host() or not is_there(connection, HolderRow):
        return None
    query = select(HolderRow.boot_id, HolderRow.started_ticks).where(
        HolderRow.campaign_id == row.id, HolderRow.epoch == row.epoch
    )
    found = connection.execute(query).first()
    return None if found is None else Birth(boot_id=found.boot_id, started_ticks=found.started_ticks)


def _drives_another(connection: Connection, row: Any) -> bool:
    """Whether the process took another campaign after the last write to this one.

    It could then not give this one back, or it is another process that was given the holder's id.
    """
    taken = select(CampaignRow.id).where(
        CampaignRow.driver_host == row.driver_host,
        CampaignRow.driver_pid == row.driver_pid,
        CampaignRow.driven_since > row.updated_at,
    )
    return connection.execute(taken.limit(1)).first() is not None


def check(connection: Connection, lease: Lease, *, now: datetime, **changes: object) -> None:
    """Apply `changes` to the campaign's row if the lease is still its current one.

    Raises `AlreadyDriven`, and so undoes the transaction, where it is not.
    """
    raised = connection.execute(
        update(CampaignRow)
        .where(CampaignRow.id == lease.campaign_id, CampaignRow.epoch == lease.epoch)
        .where(CampaignRow.lease_until.is_not(None))
        .values(updated_at=timestamp(now), **changes)
    )
    if raised.rowcount == 0:
        raise _lost(connection, lease)


def was_written(connection: Connection, lease: Lease, at: str) -> bool:
    """Whether the campaign's row was last written under this lease, at this time.

    The row is locked first, so that a transaction of a broken connection which is still under way has ended.
    """
    query = select(CampaignRow.epoch, CampaignRow.updated_at).where(CampaignRow.id == lease.campaign_id)
    row = connection.execute(query.with_for_update()).one()
    return bool(row.epoch == lease.epoch and row.updated_at == at)


def _lost(connection: Connection, lease: Lease) -> AlreadyDriven:
    row = connection.execute(select(CampaignRow).where(CampaignRow.id == lease.campaign_id)).one()
    name = lease.campaign_name
    if row.driver_host is None:
        return AlreadyDriven(
            f"campaign {name}: the lease of {lease.host}:{lease.pid} was given back", hint=f"frontrunner resume {name}"
        )
    return AlreadyDriven(
        f"campaign {name} was taken over by {row.driver_host}:{row.driver_pid} at {row.driven_since}; "
        f"{lease.host}:{lease.pid} may no longer write to it"
    )
