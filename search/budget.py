"""What a campaign has spent of its budget, and when that ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from frontrunner.results.records import Campaign
from frontrunner.search.spec import Budget, CampaignSpec

if TYPE_CHECKING:
    from frontrunner.search.attempts import RunningAttempt

CUT_S = 15.0
"""Assumed: the longest that ending running probes takes; a hard budget ends them this much earlier."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Outcomes, seconds of driving over all drivers, and node-seconds of probes so far."""

    probes: int
    driver_seconds: float
    node_seconds: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of the budget and what is used of it, in the limit's own unit."""

    name: str
    used: float
    allowed: float

    @property
    def share(self) -> float:
        """Used / allowed, at most 1."""
        return min(1.0, self.used / self.allowed)

    def __str__(self) -> str:
        return f"{self.used:.4g} of {self.allowed:.4g} {self.name}"


def limits(budget: Budget, spent: Spent) -> Iterator[Limit]:
    """Yield the limits that the budget sets, in the order probes, minutes, node-hours."""
    used = {"probes": spent.probes, "minutes": spent.driver_seconds / 60, "node_hours": spent.node_seconds / 3600}
    for name, value in used.items():
        allowed = getattr(budget, name)
        if allowed is not None:
            yield Limit(name=name.replace("_", "-"), used=value, allowed=allowed)


def exhausted(budget: Budget, spent: Spent) -> Limit | None:
    """Return the first limit that is used up, or None."""
    return next((limit for limit in limits(budget, spent) if limit.used >= limit.allowed), None)


def seconds_left(budget: Budget, spent: Spent) -> float | None:
    """Return the driving time until the first limit is reached at the pace so far; None while no pace is known."""
    estimates = []
    for limit in limits(budget, spent):
        if limit.name == "minutes":
            estimates.append(60 * (limit.allowed - limit.used))
        elif limit.used > 0 and spent.driver_seconds > 0:
            estimates.append(spent.driver_seconds * (limit.allowed - limit.used) / limit.used)
    return max(0.0, min(estimates)) if estimates else None


class Ledger:
    """What one driver adds to what earlier drivers of its campaign have spent.

    `probes` counts outcomes, and `node_seconds` those of ended attempts; the driver raises both.
    """

    def __init__(self, *, driver_seconds: float, node_seconds: float, most_driver_seconds: float | None = None) -> None:
        """`most_driver_seconds` is the most that all drivers may charge together."""
        self.probes = 0
        self.node_seconds = node_seconds
        self._driver_seconds_before = driver_seconds
        left_s = math.inf if most_driver_seconds is None else most_driver_seconds - driver_seconds
        self._chargeable_s = max(0.0, left_s)
        self._charged_s = 0.0
        self._began_s = self._last_charge_s = time.monotonic()

    @property
    def uncharged_s(self) -> float:
        """Seconds since the last `charge`."""
        return time.monotonic() - self._last_charge_s

    @property
    def beyond_s(self) -> float:
        """Seconds of driving beyond what may be charged."""
        return max(0.0, time.monotonic() - self._began_s - self._chargeable_s)

    def charge(self) -> float:
        """Return the seconds of driving since the last charge, which count as charged from now on."""
        self._last_charge_s = time.monotonic()
        seconds = self._driven_s(self._last_charge_s) - self._charged_s
        self._charged_s += seconds
        return seconds

    def spent(self, *, probes_running: int = 0, node_seconds_running: float = 0.0) -> Spent:
        """Return what was spent up to now, including what runs where it is given."""
        return Spent(
            probes=self.probes + probes_running,
            driver_seconds=self._driver_seconds_before + self._driven_s(time.monotonic()),
            node_seconds=self.node_seconds + node_seconds_running,
        )

    def _driven_s(self, now_s: float) -> float:
        return min(now_s - self._began_s, self._chargeable_s)


class BudgetTracker:
    """A campaign's budget and the ledger of its present driver."""

    def __init__(self, spec: CampaignSpec, campaign: Campaign) -> None:
        """`campaign` is the record as read under the lease: earlier drivers charge it until theirs ends.

        A driver that finds too little of a hard budget of minutes to begin and end a probe only stores what others
        left. It is charged nothing for that, however often it is started.
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

    def limits(self, running_node_seconds: float = 0.0) -> tuple[Limit, ...]:
        """Return the budget's limits with what ended probes, and running ones where given, have used."""
        return tuple(limits(self._budget, self.ledger.spent(node_seconds_running=running_node_seconds)))

    def seconds_left(self, running_node_seconds: float) -> float | None:
        """Return the driving time that is left at the pace so far, or None while no pace is known."""
        return seconds_left(self._budget, self.ledger.spent(node_seconds_running=running_node_seconds))

    @property
    def overtime_s(self) -> float:
        """Seconds driven beyond a hard budget of minutes: the driver stood still, or ending probes took too long."""
        return self.ledger.beyond_s if self._may_begin else 0.0

    def used_up(self, running: Collection[RunningAttempt]) -> Limit | None:
        """Return the limit that is used up, counting what runs; a hard budget must leave room for one more probe."""
        spent = self.ledger.spent(
            probes_running=len(running), node_seconds_running=sum(attempt.node_seconds for attempt in running)
        )
        if self._budget.hard and (passed := self._passed_when_cut(running, nodes=self._nodes)) is not None:
            return next(limit for limit in limits(self._budget, spent) if limit.name == passed.name)
        return exhausted(self._budget, spent)

    def must_cut(self, running: Collection[RunningAttempt]) -> bool:
        """Return whether what runs has to be ended now for a hard budget to hold."""
        return self._budget.hard and self._passed_when_cut(running) is not None

    def _passed_when_cut(self, running: Collection[RunningAttempt], *, nodes: int = 0) -> Limit | None:
        """The limit that is passed by the time that these probes, and one more on `nodes`, have been ended."""
        node_seconds = sum(attempt.node_seconds + CUT_S * attempt.nodes for attempt in running)
        spent = self.ledger.spent(node_seconds_running=node_seconds + CUT_S * nodes)
        return exhausted(
            replace(self._budget, probes=None), replace(spent, driver_seconds=spent.driver_seconds + CUT_S)
        )
