"""Active drivers, as recorded by the leases in a store, and versions of campaigns that change with every write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from frontrunner.results.lease import holder_identity, is_held
from frontrunner.results.process_identity import boot_id, is_on_this_host
from frontrunner.results.rows import cell
from frontrunner.results.schema import CampaignRow
from frontrunner.results.store import Store


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
    """Return a campaign's version, text that changes with every write of its drivers, and whether one holds it.

    It is the time of the last write, the number of drivers so far and of final outcomes.
    """
    with store.read(campaign) as (connection, found):
        row = connection.execute(select(CampaignRow).where(CampaignRow.id == found.id)).one()
        return f"{found.updated_at} {found.epoch} {found.outcomes}", is_held(store.database, connection, row)
