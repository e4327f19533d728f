"""What a campaign has spent of its budget, and which limit ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from frontrunner.search.spec import Budget


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was spent so far: outcomes, seconds of driving over all runs, node-seconds of probes."""

    probes: int
    driver_seconds: float
    node_seconds: float


class Ledger:
    """A driver's account of its campaign, going on from what earlier drivers have spent.

    `probes` counts outcomes, and `node_seconds` those of ended attempts; both are the driver's to raise.
    """

    def __init__(self, *, driver_seconds: float, node_seconds: float, most_driver_seconds: float | None = None) -> None:
        """`most_driver_seconds` is what all drivers may charge together; this one charges what that leaves, at most."""
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
        """Seconds of driving that nobody is charged, since they lie beyond what may be."""
        return max(0.0, time.monotonic() - self._began_s - self._chargeable_s)

    def charge(self) -> float:
        """The seconds of driving since the last charge, which from now on count as charged."""
        self._last_charge_s = time.monotonic()
        seconds = self._driven_s(self._last_charge_s) - self._charged_s
        self._charged_s += seconds
        return seconds

    def spent(self, *, probes_in_flight: int = 0, node_seconds_in_flight: float = 0.0) -> Spent:
        """What was spent up to now, with what runs counted where it is given."""
        return Spent(
            probes=self.probes + probes_in_flight,
            driver_seconds=self._driver_seconds_before + self._driven_s(time.monotonic()),
            node_seconds=self.node_seconds + node_seconds_in_flight,
        )

    def _driven_s(self, now_s: float) -> float:
        return min(now_s - self._began_s, self._chargeable_s)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of the budget with what is used of it, in the limit's own unit."""

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
    """The limits that the budget sets, in the order probes, minutes, node-hours."""
    used = {"probes": spent.probes, "minutes": spent.driver_seconds / 60, "node_hours": spent.node_seconds / 3600}
    for name, value in used.items():
        allowed = getattr(budget, name)
        if allowed is not None:
            yield Limit(name=name.replace("_", "-"), used=value, allowed=allowed)


def exhausted(budget: Budget, spent: Spent) -> Limit | None:
    """The first limit that is used up, or None."""
    return next((limit for limit in limits(budget, spent) if limit.used >= limit.allowed), None)


def seconds_left(budget: Budget, spent: Spent) -> float | None:
    """Driving time until the first limit is reached at the pace so far; None while no pace is known."""
    estimates = []
    for limit in limits(budget, spent):
        if limit.name == "minutes":
            estimates.append(60 * (limit.allowed - limit.used))
        elif limit.used > 0 and spent.driver_seconds > 0:
            estimates.append(spent.driver_seconds * (limit.allowed - limit.used) / limit.used)
    return max(0.0, min(estimates)) if estimates else None
