"""Who drives: the drivers that a store's leases tell of."""

from __future__ import annotations

from collections.abc import Sequence
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
                is_live=leases.is_held(row, now, file=store.database.address.path),
                heartbeat_age_s=max(0.0, (now - datetime.fromisoformat(row.updated_at)).total_seconds()),
            )
            for row in connection.execute(query)
        ]


def stamp(store: Store, names: Sequence[str]) -> tuple[tuple[str, str, bool], ...]:
    """What changes whenever anything about these campaigns does, or their drivers come and go.

    A driver raises its campaign's row with everything that it writes. Raises `NotFound` for an unknown name.
    """
    now, file = store.now(), store.database.address.path
    query = select(CampaignRow).where(CampaignRow.name.in_(names))
    with store.database.read() as connection:
        rows = {row.name: row for row in connection.execute(query)}
    for name in names:
        if name not in rows:
            store.campaign(name)  # which says what was meant
    return tuple((name, rows[name].updated_at, leases.is_held(rows[name], now, file=file)) for name in names)
