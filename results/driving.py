"""Who drives: the drivers that a store's leases tell of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from frontrunner.results import leases
from frontrunner.results.schema import CampaignRow
from frontrunner.results.store import Store


@dataclass(frozen=True, kw_only=True)
class DriverSeen:
    """The holder of a campaign's lease, whether it is thought to run, and how long ago it last wrote."""

    campaign: str
    host: str
    pid: int
    since: str
    is_live: bool
    heartbeat_age_s: float


def drivers(store: Store) -> list[DriverSeen]:
    """The holders of all leases that were not given back, by campaign, the newest first."""
    query = select(CampaignRow).where(CampaignRow.lease_until.is_not(None)).order_by(CampaignRow.id.desc())
    now = store.now()
    with store.database.read() as connection:
        return [
            DriverSeen(
                campaign=row.name,
                host=row.driver_host,
                pid=row.driver_pid,
                since=row.driven_since,
                is_live=leases.is_held(row, now),
                heartbeat_age_s=max(0.0, (now - datetime.fromisoformat(row.updated_at)).total_seconds()),
            )
            for row in connection.execute(query)
        ]
