"""A driver's account of its campaign: what was spent, and the view that listeners are shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from frontrunner.evaluators.protocol import Evaluator
from frontrunner.results.records import Campaign
from frontrunner.search.budget import Ledger, Limit, exhausted, limits, seconds_left
from frontrunner.search.flight import Flight, running_probes
from frontrunner.search.listener import View
from frontrunner.search.spec import CampaignSpec

CUT_S = 15.0
"""Assumed: how long it takes at most to end running probes, for which a hard budget ends them early."""


class Account:
    """Keeps ledger and view together. `outcomes` and `node_seconds` of the ledger are the driver's to raise."""

    def __init__(self, spec: CampaignSpec, campaign: Campaign, legal_recipes: int) -> None:
        """`campaign` as it is once the lease is held: earlier drivers charge it until theirs ends.

        A driver that finds a hard budget of minutes too short for a probe to begin and be ended takes in what others
        left, and is charged nothing for it, however many such drivers are started.
        """
        self._budget = spec.budget
        self._nodes = spec.problem.cluster.nodes
        limit_s = 60 * spec.budget.minutes if spec.budget.hard and spec.budget.minutes is not None else None
        self._may_begin = limit_s is None or campaign.driver_seconds + CUT_S < limit_s
        self.ledger = Ledger(
            driver_seconds=campaign.driver_seconds,
            node_seconds=campaign.node_seconds_spent,
            most_driver_seconds=limit_s if self._may_begin else campaign.driver_seconds,
        )
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
        """The limit that what was spent and what runs have used up, or None.

        Of a hard budget one more probe must be able to begin and be ended within it.
        """
        spent = self.ledger.spent(
            probes_in_flight=len(flights), node_seconds_in_flight=sum(flight.node_seconds for flight in flights)
        )
        if self._budget.hard and (passed := self._passed_when_cut(flights, nodes=self._nodes)) is not None:
            return next(limit for limit in limits(self._budget, spent) if limit.name == passed.name)
        return exhausted(self._budget, spent)

    @property
    def overtime_s(self) -> float:
        """Seconds that this driver has driven beyond a hard budget of minutes, though it could begin probes within it.

        It was held up: it stood still, or something that it waits for took longer than `CUT_S`.
        """
        return self.ledger.beyond_s if self._may_begin else 0.0

    def must_cut(self, flights: Collection[Flight]) -> bool:
        """Whether what runs has to be ended now for a hard budget to hold."""
        return self._budget.hard and self._passed_when_cut(flights) is not None

    def _passed_when_cut(self, flights: Collection[Flight], *, nodes: int = 0) -> Limit | None:
        """The limit that would be passed by the time that these probes, and one on so many nodes, have been ended."""
        running = sum(flight.node_seconds + CUT_S * flight.nodes for flight in flights)
        spent = self.ledger.spent(node_seconds_in_flight=running + CUT_S * nodes)
        return exhausted(
            replace(self._budget, probes=None), replace(spent, driver_seconds=spent.driver_seconds + CUT_S)
        )

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
