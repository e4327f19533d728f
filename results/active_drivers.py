"""Active drivers, as recorded by the leases in a store, and stamps that change with every write of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select

from frontrunner.results.explain import begins, checked_prefix
from frontrunner.results.lease import holder_identity, is_held
from frontrunner.results.process_identity import boot_id, is_on_this_host
from frontrunner.results.rows import cell
from frontrunner.results.schema import CampaignRow, TrialRow
from frontrunner.results.store import Store

STAMPED = select(
    CampaignRow.id,
    CampaignRow.name,
    CampaignRow.updated_at,
    CampaignRow.epoch,
    CampaignRow.outcomes,
    CampaignRow.lease_until,
    CampaignRow.driver_host,
    CampaignRow.driver_pid,
)
OF_ONE = STAMPED.where(CampaignRow.name == bindparam("name"))


@dataclass(frozen=True, kw_only=True)
class ActiveDriver:
    """The holder of a campaign's lease, whether it is thought to run, and how long ago it last wrote.

    `is_here`: its process id is one of this host. Where `is_certain`, one that is here and live is the process
    itself, not one that was given its id later.
    """

    campaign: str
    host: str
    pid: int
    since: str
    is_here: bool
    is_certain: bool
    is_live: bool
    heartbeat_age_s: float


def active_drivers(store: Store) -> list[ActiveDriver]:
    """Return the holders of all leases that were not released, by campaign, the newest first."""
    query = select(CampaignRow).where(CampaignRow.lease_until.is_not(None)).order_by(CampaignRow.id.desc())
    now = store.now()
    with store.database.read() as connection:
        return [_seen(connection, row, store, now) for row in connection.execute(query).all()]


def _seen(connection: Connection, row: Any, store: Store, now: datetime) -> ActiveDriver:
    identity = holder_identity(connection, row)
    written_at = datetime.fromisoformat(cell(CampaignRow.updated_at, row.updated_at, row.id))
    return ActiveDriver(
        campaign=row.name,
        host=row.driver_host,
        pid=row.driver_pid,
        since=row.driven_since,
        is_here=is_on_this_host(row.driver_host, identity),
        is_certain=identity is not None and boot_id() is not None,
        is_live=is_held(connection, row, now, file=store.database.address.path),
        heartbeat_age_s=max(0.0, (now - written_at).total_seconds()),
    )


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Version of a campaign: it changes with everything about the campaign, and when its driver comes and goes.

    A driver updates its campaign's row with everything that it writes: `written_at` is the time by its clock, `epoch`
    counts its drivers, `outcomes` its final outcomes.
    """

    campaign: str
    written_at: str
    epoch: int
    outcomes: int
    is_driven: bool

    @property
    def version(self) -> str:
        """Text that changes with every write."""
        return f"{self.written_at} {self.epoch} {self.outcomes}"


def stamp(store: Store, names: Sequence[str]) -> tuple[Stamp, ...]:
    """Return the stamps of these campaigns; raises `NotFound` for an unknown name."""
    now = store.now()  # before a connection is taken: a server's clock needs one of its own
    with store.database.read() as connection:
        rows = [connection.execute(OF_ONE, {"name": name}).first() for name in names]
        found = tuple(_stamp(connection, row, store, now) for row in rows if row is not None)
    for name, row in zip(names, rows, strict=True):
        if row is None:
            store.campaign(name)  # which names the nearest
    return found


def stamp_of_recipe(store: Store, recipe_id: str) -> tuple[Stamp, ...]:
    """Return the stamps of the campaigns that tried the recipe with this id or prefix; see `explain`."""
    tried = select(TrialRow.campaign_id).where(begins(checked_prefix(recipe_id)))
    query = STAMPED.where(CampaignRow.id.in_(tried)).order_by(CampaignRow.id)
    now = store.now()
    with store.database.read() as connection:
        return tuple(_stamp(connection, row, store, now) for row in connection.execute(query).all())


def _stamp(connection: Connection, row: Any, store: Store, now: datetime) -> Stamp:
    return Stamp(
        campaign=row.name,
        written_at=row.updated_at,
        epoch=row.epoch,
        outcomes=row.outcomes,
        is_driven=is_held(connection, row, now, file=store.database.address.path),
    )
