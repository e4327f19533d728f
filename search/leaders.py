"""Recipes that may be the fastest of a campaign, and which of them lack a full measurement.

A probe ends early once its recipe is clearly slower than the best recipe so far. If the figure of
that best recipe later turns out too high, a recipe may lead whose own probe was cut short.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from frontrunner.evaluators.trainer.step_time_stats import interval
from frontrunner.results.outcome import Measurement
from frontrunner.spaces.recipe import Recipe

Measurements = Mapping[Recipe, Sequence[Measurement]]


def unconfirmed_leaders(
    measurements: Measurements, divisor: Callable[[Recipe], float]
) -> list[Recipe]:
    """Return the leading recipes without a full measurement, the fastest first.

    The leading recipes are the fastest one and all whose interval of the time per token overlaps
    with that of the fastest one. `divisor` is what their tokens/s are divided by to compare them.
    """
    measured = {recipe: found for recipe, found in measurements.items() if found}
    if not measured:
        return []
    costs = {
        recipe: divisor(recipe) / statistics.median(one.tokens_per_s for one in found)
        for recipe, found in measured.items()
    }
    first = min(costs, key=costs.__getitem__)
    _, highest_cost = _interval(measured[first], costs[first])
    leaders = [
        recipe
        for recipe, found in measured.items()
        if recipe == first or _interval(found, costs[recipe])[0] <= highest_cost
    ]
    lacking = [recipe for recipe in leaders if not any(one.is_full for one in measured[recipe])]
    return sorted(lacking, key=costs.__getitem__)


def _interval(measurements: Sequence[Measurement], cost: float) -> tuple[float, float]:
    """Return the 95 % interval of a recipe's cost, by the spread of its measured steps.

    A single step says nothing about its spread: the interval is then the cost alone.
    """
    relative_times = [
        time / one.step_time_s_median for one in measurements for time in one.step_times_s
    ]
    low, high = interval(relative_times)
    return (cost, cost) if math.isinf(high) else (cost * low, cost * high)
