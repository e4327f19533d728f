"""Leases: which driver may write to a campaign.

A campaign counts the leases it has given out in its `epoch`; a driver writes only under the current
one (`frontrunner.results.writer`), so that one that was paused, or believed dead, is fenced.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select

from frontrunner.results.database import Database
from frontrunner.results.process_identity import Liveness, ProcessId, liveness, this_host
from frontrunner.results.records import Lease, timestamp
from frontrunner.results.rows import cell, has_table
from frontrunner.results.schema import CampaignRow, HolderRow
from frontrunner.spaces.errors import AlreadyDriven

RELEASED = dict.fromkeys(("driver_host", "driver_pid", "driven_since", "lease_until"))


def until(lease: Lease, now: datetime) -> str:
    """Return when a lease renewed now ends."""
    return timestamp(now + timedelta(seconds=lease.duration_s))


def is_held(database: Database, connection: Connection, row: Any) -> bool:
    """Return whether a campaign's lease has time left, and its holder is not known to be dead.

    An SQLite store's time is this host's, which may jump: there a driver that certainly runs holds
    its lease whatever the clock says, unless it is this very process.
    """
    if row.lease_until is None:
        return False
    is_file, identity = not database.is_server, holder_identity(connection, row)
    holder = liveness(row.driver_host, row.driver_pid, identity, is_one_machine=is_file)
    if holder is Liveness.DEAD:
        return False
    if datetime.fromisoformat(
        cell(CampaignRow.lease_until, row.lease_until, row.id)
    ) > database.now(connection):
        return True
    return (
        holder is Liveness.ALIVE
        and is_file
        and identity is not None
        and row.driver_pid != os.getpid()
    )


def holder_identity(connection: Connection, row: Any) -> ProcessId | None:
    """Return the identity of a lease's holder; None where it was not stored, as by earlier
    versions.
    """
    if row.driver_host != this_host() or not has_table(connection, HolderRow):
        return None
    query = select(HolderRow.boot_id, HolderRow.started_ticks)
    mine = (HolderRow.campaign_id == row.id, HolderRow.epoch == row.epoch)
    found = connection.execute(query.where(*mine)).first()
    return (
        None
        if found is None
        else ProcessId(boot_id=found.boot_id, started_ticks=found.started_ticks)
    )


def refuse_driven(database: Database, connection: Connection, name: str | None = None) -> None:
    """Raise `AlreadyDriven` where a live driver holds the named campaign, or (None) any."""
    for row in connection.execute(select(CampaignRow)).all():
        if name in (None, row.name) and is_held(database, connection, row):
            raise AlreadyDriven(
                f"campaign {row.name} is driven by {row.driver_host}:{row.driver_pid}",
                hint="stop that driver first: Ctrl-C, or SIGTERM",
            )
