"""A driver's account of its campaign: what was spent, and the view that listeners are shown."""

from __future__ import annotations

from collections.abc import Collection

from frontrunner.evaluators.protocol import Evaluator
from frontrunner.results.records import Campaign
from frontrunner.search.budget import Ledger, Limit, exhausted, limits, seconds_left
from frontrunner.search.flight import Flight, running_probes
from frontrunner.search.listener import View
from frontrunner.search.spec import CampaignSpec


class Account:
    """Keeps ledger and view together. `outcomes` and `node_seconds` of the ledger are the driver's to raise."""

    def __init__(self, spec: CampaignSpec, campaign: Campaign, legal_recipes: int) -> None:
        """`campaign` as it is once the lease is held: earlier drivers charge it until theirs ends."""
        self._budget = spec.budget
        self.ledger = Ledger(driver_seconds=campaign.driver_seconds, node_seconds=campaign.node_seconds_spent)
        self.view = View(
            name=campaign.name,
            strategy=spec.search.strategy,
            legal_recipes=legal_recipes,
            figures=campaign.figures,
        )

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The budget's limits with what ended probes have used of them."""
        return tuple(limits(self._budget, self.ledger.spent()))

    def used_up(self, flights: Collection[Flight]) -> Limit | None:
        """The limit that what was spent and what runs have used up, or None."""
        spent = self.ledger.spent(
            probes_in_flight=len(flights), node_seconds_in_flight=sum(flight.node_seconds for flight in flights)
        )
        return exhausted(self._budget, spent)

    def refresh(self, flights: Collection[Flight], evaluator: Evaluator) -> None:
        """Bring the view up to date."""
        self.view.running = running_probes(flights, evaluator)  # first: it notes which flights hold their nodes
        self.refresh_limits(flights)

    def refresh_limits(self, flights: Collection[Flight]) -> None:
        """Bring what was spent up to date alone; a look at the evaluator costs more."""
        running = sum(flight.node_seconds for flight in flights)
        spent = self.ledger.spent(node_seconds_in_flight=running)
        self.view.limits = tuple(limits(self._budget, spent))
        self.view.seconds_left = seconds_left(self._budget, spent)
