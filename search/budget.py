"""What ends a campaign: its budget, or that little is left to gain."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from frontrunner.search.running_attempt import RunningAttempt
from frontrunner.search.spec import Budget
from frontrunner.search.strategy import Outlook
from frontrunner.text import thousands

COST = "cost"
CUT_S = 15.0
"""Assumed: the longest that ending running probes takes; a hard budget ends them this much
earlier.
"""
LEAST_MEASURED = 3
"""Assumed: recipes that must be measured before a forecast may end a campaign."""
IN_A_ROW = 2
"""Assumed: outcomes in a row after which little must be expected; one forecast may be a fluke of
the last outcome.
"""
STOPPING = "stopping"
"""Event of a driver that was asked to stop, with the state that it `leaves` and
`probes_to_finish`.
"""
REQUESTED = "requested"
"""Event of a user who had a service ask a driver to pause, stop or cancel, which is its `word`."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of the budget and what is used of it, in the limit's own unit."""

    name: str
    used: float
    allowed: float

    @property
    def unit(self) -> str:
        """What stands behind the numbers; a cost is in the unit of `cluster.price_per_node_hour`,
        which has no name.
        """
        return "(price)" if self.name == COST else self.name

    @property
    def share(self) -> float:
        """Used / allowed, at most 1."""
        return min(1.0, self.used / self.allowed)

    def __str__(self) -> str:
        return f"{thousands(self.used)} of {thousands(self.allowed)} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Outcomes, seconds of driving over all drivers, and node-seconds of probes so far, with their
    price.
    """

    probes: int
    driver_seconds: float
    node_seconds: float
    cost: float = 0.0

    def limits(self, budget: Budget) -> tuple[Limit, ...]:
        """Return the limits that the budget sets, in the order probes, minutes, node-hours,
        cost.
        """
        known = (
            ("probes", self.probes, budget.probes),
            ("minutes", self.driver_seconds / 60, budget.minutes),
            ("node-hours", self.node_seconds / 3600, budget.node_hours),
            (COST, self.cost, budget.cost),
        )
        return tuple(
            Limit(name=name, used=used, allowed=most)
            for name, used, most in known
            if most is not None
        )

    def exhausted(self, budget: Budget) -> Limit | None:
        """Return the first limit that is used up, or None."""
        return next((limit for limit in self.limits(budget) if limit.used >= limit.allowed), None)

    def seconds_left(self, budget: Budget) -> float | None:
        """Return the driving time until the first limit is reached at the pace so far; None while
        none is known.
        """
        estimates = []
        for limit in self.limits(budget):
            if limit.name == "minutes":
                estimates.append(60 * (limit.allowed - limit.used))
            elif limit.used > 0 and self.driver_seconds > 0:
                estimates.append(self.driver_seconds * (limit.allowed - limit.used) / limit.used)
        return max(0.0, min(estimates)) if estimates else None


class BudgetTracker:
    """A campaign's budget, and what its present driver adds to what earlier ones have spent.

    A driver that finds too little of a hard budget of minutes only stores what others left, free of
    charge.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        driver_seconds: float = 0.0,
        node_seconds: float = 0.0,
        nodes: int = 1,
        price_per_node_hour: float | None = None,
    ) -> None:
        """What was spent is that of earlier drivers; `nodes` are all that a probe may take, each at
        a price.
        """
        self.probes, self.node_seconds = 0, node_seconds
        self._nodes, self._price_per_s = nodes, (price_per_node_hour or 0.0) / 3600
        self._earlier_s, self._charged_s, self._free_s = driver_seconds, 0.0, 0.0
        self._began_s = self._last_charge_s = time.monotonic()
        self.change(budget)

    def spend(self, node_seconds: float) -> None:
        """Note what a probe has spent."""
        self.node_seconds += node_seconds

    def change(self, budget: Budget) -> None:
        """Go by another budget from now on; what was charged stays charged."""
        self._budget = budget
        self._is_hard = budget.hard and budget.minutes is not None
        limit_s = 60 * budget.minutes if budget.hard and budget.minutes is not None else math.inf
        self._may_begin = self._earlier_s + CUT_S < limit_s
        self._chargeable_s = (
            max(self._charged_s, limit_s - self._earlier_s) if self._may_begin else self._charged_s
        )

    def limits(self, running: Collection[RunningAttempt] = ()) -> tuple[Limit, ...]:
        """Return the budget's limits with what is used of each, counting what runs."""
        return self.spent(running).limits(self._budget)

    @contextmanager
    def free_of_charge(self) -> Iterator[None]:
        """Do not count the time in this context as driving."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._free_s += time.monotonic() - began_s

    def _driven_s(self) -> float:
        return time.monotonic() - self._began_s - self._free_s

    @property
    def uncharged_s(self) -> float:
        """Seconds since the last `charge`."""
        return time.monotonic() - self._last_charge_s

    @property
    def overtime_s(self) -> float:
        """Seconds driven beyond a hard budget of minutes: the driver stood still, or ending probes
        took too long.
        """
        return max(0.0, self._driven_s() - self._chargeable_s) if self._may_begin else 0.0

    def charge(self, *, ahead_s: float = 0.0) -> float:
        """Return the seconds of driving since the last charge, which count as charged from now on;
        of hard minutes also those up to the next charge, in at most `ahead_s`.

        A driver that is killed does not charge its last seconds: a hard limit holds all the same.
        What was charged in advance is given back by a smaller charge, which may be negative.
        """
        self._last_charge_s = time.monotonic()
        driven_s = self._driven_s() + (ahead_s if self._is_hard else 0.0)
        seconds = min(driven_s, self._chargeable_s) - self._charged_s
        self._charged_s += seconds
        return seconds

    def spent(self, running: Collection[RunningAttempt] = ()) -> Spent:
        """Return what was spent up to now, with the node-seconds of what runs where these are
        limited.
        """
        limited = (self._budget.node_hours, self._budget.cost) != (None, None)
        held = sum(one.node_seconds for one in running) if limited else 0.0
        node_seconds = self.node_seconds + held
        return Spent(
            probes=self.probes,
            driver_seconds=self._earlier_s + min(self._driven_s(), self._chargeable_s),
            node_seconds=node_seconds,
            cost=node_seconds * self._price_per_s,
        )

    def probes_left(self, running: Collection[RunningAttempt]) -> float:
        """Return how many probes the limits allow in addition to those that run, at what a probe
        took so far; infinite where nothing limits them.
        """
        spent = self.spent(running)
        probes = spent.probes + len(running)
        spent = replace(spent, probes=probes)
        per_probe = max(1, probes)
        return min(
            (
                (limit.allowed - limit.used) * per_probe / limit.used
                for limit in spent.limits(self._budget)
                if limit.used > 0
            ),
            default=math.inf,
        )

    def seconds_left(self, running: Collection[RunningAttempt]) -> float | None:
        """Return the driving time until the first limit is reached at the pace so far; None while
        none is known.
        """
        return self.spent(running).seconds_left(self._budget)

    def used_up(self, running: Collection[RunningAttempt]) -> Limit | None:
        """Return the limit that is used up, counting what runs; a hard budget must leave room for
        one more probe.
        """
        spent = self.spent(running)
        spent = replace(spent, probes=spent.probes + len(running))
        if (
            self._budget.hard
            and (passed := self._passed_when_cut(running, one_more=True)) is not None
        ):
            return next(limit for limit in spent.limits(self._budget) if limit.name == passed.name)
        return spent.exhausted(self._budget)

    def must_cut(self, running: Collection[RunningAttempt]) -> bool:
        """Return whether what runs has to be ended now for a hard budget to hold."""
        return self._budget.hard and self._passed_when_cut(running) is not None

    def _passed_when_cut(
        self, running: Collection[RunningAttempt], *, one_more: bool = False
    ) -> Limit | None:
        spent = self.spent(running)
        nodes = (self._nodes if one_more else 0) + sum(attempt.nodes for attempt in running)
        ended = replace(
            spent,
            driver_seconds=spent.driver_seconds + CUT_S,
            node_seconds=spent.node_seconds + CUT_S * nodes,
            cost=spent.cost + CUT_S * nodes * self._price_per_s,
        )
        return ended.exhausted(replace(self._budget, probes=None))


class StopRule:
    """Ends a campaign when, `IN_A_ROW` times, the next probe's expected gain is `below` a share; 0
    never ends it.
    """

    def __init__(self, below: float) -> None:
        self._below = below
        self._in_a_row = 0
        self._outlook: Outlook | None = None

    def hear(self, outlook: Outlook | None, *, measured: int) -> None:
        """Take in an outlook after an outcome; `measured` recipes were measured by then."""
        self._outlook = outlook
        promises_little = outlook is not None and outlook.expected_improvement < self._below
        self._in_a_row = self._in_a_row + 1 if promises_little and measured >= LEAST_MEASURED else 0

    def why_stop(self, limits: Iterable[Limit]) -> str | None:
        """Return the reason to end, with the unused rest of the budget, or None."""
        if self._outlook is None or self._in_a_row < IN_A_ROW:
            return None
        gain, gap = _in_words(self._outlook)
        rest = unused(limits)
        return f"{gain}, under {_percent(self._below)}; {gap}" + (
            f"; {rest} unused" if rest else ""
        )


def _in_words(outlook: Outlook) -> tuple[str, str]:
    shares = (outlook.expected_improvement, outlook.share_below, outlook.share_below_at_most)
    gain, below, at_most = map(_percent, shares)
    does = f"add {gain} to the front" if outlook.of_front else f"gain {gain}"
    is_short = f"the best is estimated to be {below} below the best of the whole space"
    if outlook.of_front:
        is_short = f"the front is estimated to cover {below} less than that of the whole space"
    return f"the next probe is expected to {does}", f"{is_short} (95 %: at most {at_most})"


def outlook_in_words(outlook: Outlook) -> str:
    """Describe an outlook on one line."""
    return "; ".join(_in_words(outlook))


def unused(limits: Iterable[Limit]) -> str:
    """Describe the rest of each limit: `12 of 40 probes, 1.5 of 4 minutes`; empty without
    limits.
    """
    return ", ".join(
        f"{thousands(max(0.0, limit.allowed - limit.used))} of {thousands(limit.allowed)}"
        f" {limit.unit}"
        for limit in limits
    )


def _percent(share: float) -> str:
    value = 100 * share
    if 0 < value < 0.01:  # two digits would be written as 1.3e-05
        return "0.00 %"
    return f"{value:.2g} %" if value < 10 else f"{value:.0f} %"
