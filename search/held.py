"""A campaign that its driver holds: the lease on it, the time that is charged to it, and what is told of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.probe.stragglers import Fenced
from frontrunner.results.process_identity import this_host
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Campaign, Trial
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.account import Account
from frontrunner.search.conclusion import Conclusion
from frontrunner.search.listener import Listener, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.space import Survey

LEASE_S = 30.0
RENEW_S = 5.0
OVERTIME = "overtime"
"""The event of a driver that was held up beyond a hard budget of minutes; its data says by how many `seconds`."""


def take_lease(store: Store, campaign: Campaign, *, take_over: bool) -> CampaignWriter:
    """Raises `AlreadyDriven` where another live driver holds the campaign, unless it is to be taken over."""
    return store.drive(
        store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid(), duration_s=LEASE_S, take_over=take_over)
    )


def fenced_here(holder: str | None, folder: Path) -> Fenced | None:
    """The driver, as host:pid, from which a campaign with its runs in `folder` was taken.

    None where it is no other process of this host.
    """
    host, _, pid = (holder or "").rpartition(":")
    if host != this_host() or int(pid) == os.getpid():
        return None
    return Fenced(pid=int(pid), folder=folder)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What every part of a driver reads its campaign from, writes it with, counts it in and tells of it through.

    `fenced` is the driver from which it was taken, where that is of this host: its ranks may still run.
    """

    store: Store
    campaign: Campaign
    spec: CampaignSpec
    survey: Survey
    writer: CampaignWriter
    account: Account
    listener: Listener
    fenced: Fenced | None

    @property
    def view(self) -> View:
        """The campaign as listeners are shown it."""
        return self.account.view

    def begin(self, provenance: Provenance) -> None:
        """Leave word that the campaign runs, and with what."""

        def began() -> None:
            self.writer.set_state(CampaignState.RUNNING, reason="")
            self.writer.record_provenance(provenance)

        self.writer.atomically(began)

    def keep(self) -> None:
        """Renew the lease and charge the time, where the last time is long enough ago."""
        if self.account.ledger.uncharged_s > RENEW_S:
            seconds = self.account.ledger.charge()

            def kept() -> None:
                self.writer.renew()
                self.writer.add_driver_seconds(seconds)

            self.writer.atomically(kept)

    def let_go(self, conclusion: Conclusion) -> None:
        """Charge the rest of the time, tell of what is beyond the budget, and give the lease back."""
        seconds, overtime_s = self.account.ledger.charge(), self.account.overtime_s

        def let_go() -> None:
            self.writer.add_driver_seconds(seconds)
            if overtime_s > 0:
                self.writer.event(OVERTIME, seconds=round(overtime_s, 3))
            self.writer.release(conclusion.state, reason=conclusion.reason)

        self.writer.atomically(let_go)

    def notice(self, kind: str, **data: str | int | float | None) -> None:
        """Tell the campaign's history and the listener of something."""
        self.writer.event(kind, **data)
        self.listener.noticed(self.view, kind, data)


def about(trial: Trial) -> dict[str, str | int]:
    """What events say of the trial that they are about."""
    return {"trial": trial.number, "recipe": trial.recipe.describe()}
