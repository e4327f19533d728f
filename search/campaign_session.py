"""A driver's session with its campaign: the lease, the time that is charged, the event log and the listener."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from frontrunner.evaluators.probe.processes import Fenced
from frontrunner.results.process_identity import this_host
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Campaign, Trial
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.budget import BudgetTracker
from frontrunner.search.listener import Listener, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.space import Survey

if TYPE_CHECKING:
    from frontrunner.search.attempts import RunningAttempt

LEASE_S = 30.0
RENEW_S = 5.0
OVERTIME = "overtime"
"""Event of a driver that was held up beyond a hard budget of minutes; its data has the `seconds`."""


def fenced_here(holder: str | None, folder: Path) -> Fenced | None:
    """Return the former driver (host:pid) of a campaign where it is another process of this host, else None."""
    host, _, pid = (holder or "").rpartition(":")
    if host != this_host() or int(pid) == os.getpid():
        return None
    return Fenced(pid=int(pid), folder=folder)


@dataclass(frozen=True, kw_only=True)
class CampaignSession:
    """A campaign that this process drives. `fenced` is the driver of this host from which it was taken over."""

    store: Store
    campaign: Campaign
    spec: CampaignSpec
    survey: Survey
    writer: CampaignWriter
    budget: BudgetTracker
    view: View
    listener: Listener
    fenced: Fenced | None

    @classmethod
    def open(
        cls,
        store: Store,
        campaign: Campaign,
        spec: CampaignSpec,
        survey: Survey,
        listener: Listener,
        *,
        take_over: bool,
    ) -> Self:
        """Acquire the lease; raises `AlreadyDriven` where another live driver holds it, unless it is taken over."""
        holder = store.campaign(campaign.name).driver
        lease = store.acquire_lease(
            campaign.id, host=this_host(), pid=os.getpid(), duration_s=LEASE_S, take_over=take_over
        )
        writer = store.drive(lease)
        as_left = store.campaign(campaign.name)
        return cls(
            store=store,
            campaign=campaign,
            spec=spec,
            survey=survey,
            writer=writer,
            budget=BudgetTracker(spec, as_left),
            view=View(
                name=campaign.name,
                strategy=spec.search.strategy,
                legal_recipes=len(survey.recipes),
                figures=campaign.figures,
            ),
            listener=listener,
            fenced=fenced_here(holder, spec.run_folder),
        )

    def begin(self, provenance: Provenance) -> None:
        """Record that the campaign runs, and with what software."""

        def began() -> None:
            self.writer.set_state(CampaignState.RUNNING, reason="")
            self.writer.record_provenance(provenance)

        self.writer.atomically(began)

    def keep(self) -> None:
        """Renew the lease and charge the time, if the last time is more than `RENEW_S` ago."""
        if self.budget.ledger.uncharged_s > RENEW_S:
            seconds = self.budget.ledger.charge()

            def kept() -> None:
                self.writer.renew()
                self.writer.add_driver_seconds(seconds)

            self.writer.atomically(kept)

    def close(self, state: CampaignState, reason: str) -> None:
        """Charge the rest of the time, record overtime, and release the lease."""
        seconds, overtime_s = self.budget.ledger.charge(), self.budget.overtime_s

        def closed() -> None:
            self.writer.add_driver_seconds(seconds)
            if overtime_s > 0:
                self.writer.event(OVERTIME, seconds=round(overtime_s, 3))
            self.writer.release(state, reason=reason)

        self.writer.atomically(closed)

    def notice(self, kind: str, **data: str | int | float | None) -> None:
        """Write an event to the campaign's history and pass it to the listener."""
        self.writer.event(kind, **data)
        self.listener.noticed(self.view, kind, data)

    def refresh_view(self, running: Collection[RunningAttempt]) -> None:
        """Bring the view's limits up to date."""
        node_seconds = sum(attempt.node_seconds for attempt in running)
        self.view.limits = self.budget.limits(node_seconds)
        self.view.seconds_left = self.budget.seconds_left(node_seconds)


def about(trial: Trial) -> dict[str, str | int]:
    """Return the event data that identify a trial."""
    return {"trial": trial.number, "recipe": trial.recipe.describe()}
