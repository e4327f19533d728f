"""Who drives: the drivers that a store's leases tell of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select

from frontrunner.results import holders, leases
from frontrunner.results.cells import Cells
from frontrunner.results.explain import begins, checked_prefix
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
class DriverSeen:
    """The holder of a campaign's lease, whether it is thought to run, and how long ago it last wrote.

    `is_here` says that its process id is one of this host. Where `is_certain`, one that is here and live is the process
    itself, and none that was given its id later.
    """

    campaign: str
    host: str
    pid: int
    since: str
    is_here: bool
    is_certain: bool
    is_live: bool
    heartbeat_age_s: float


def drivers(store: Store) -> list[DriverSeen]:
    """The holders of all leases that were not given back, by campaign, the newest first."""
    query = select(CampaignRow).where(CampaignRow.lease_until.is_not(None)).order_by(CampaignRow.id.desc())
    now = store.now()
    with store.database.read() as connection:
        return [_seen(connection, row, store, now) for row in connection.execute(query).all()]


def _seen(connection: Connection, row: Any, store: Store, now: datetime) -> DriverSeen:
    born = leases.birth_of(connection, row)
    return DriverSeen(
        campaign=row.name,
        host=row.driver_host,
        pid=row.driver_pid,
        since=row.driven_since,
        is_here=holders.is_here(row.driver_host, born),
        is_certain=born is not None and holders.boot_id() is not None,
        is_live=leases.is_held(connection, row, now, file=store.database.address.path),
        heartbeat_age_s=max(0.0, (now - Cells(CampaignRow, row, row.id).time("updated_at")).total_seconds()),
    )


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What changes whenever anything about a campaign does, or its driver comes and goes.

    A driver raises its campaign's row with everything that it writes: `written_at` is the time by its clock, `epoch`
    counts its drivers, `outcomes` its final outcomes.
    """

    campaign: str
    written_at: str
    epoch: int
    outcomes: int
    is_driven: bool

    @property
    def version(self) -> str:
        """What is different after every write."""
        return f"{self.written_at} {self.epoch} {self.outcomes}"


def stamp(store: Store, names: Sequence[str]) -> tuple[Stamp, ...]:
    """The stamps of these campaigns. Raises `NotFound` for an unknown name."""
    now = store.now()  # before a connection is taken, since a server is asked by one of its own
    with store.database.read() as connection:
        rows = [connection.execute(OF_ONE, {"name": name}).first() for name in names]
        found = tuple(_stamp(connection, row, store, now) for row in rows if row is not None)
    for name, row in zip(names, rows, strict=True):
        if row is None:
            store.campaign(name)  # which says what was meant
    return found


def stamp_of_recipe(store: Store, recipe_id: str) -> tuple[Stamp, ...]:
    """The stamps of the campaigns that tried a recipe with this id, or with one that begins like it, as `explain` reads
    it; raises `InvalidInput` as that does."""
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
        is_driven=leases.is_held(connection, row, now, file=store.database.address.path),
    )
