"""Recipes that may be the fastest of a campaign, and which of them lack a full measurement.

A probe ends early once its recipe is clearly slower than the best recipe so far. If the figure of
that best recipe later turns out too high, a recipe may lead whose own probe was cut short.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frontrunner.evaluators.trainer.step_time_stats import interval
from frontrunner.results.outcome import Measurement


class Cost(NamedTuple):
    """The time per token of one recipe, or arrays of several recipes', and its 95 % interval."""

    value: Any
    least: Any
    most: Any


def cost_of(measurements: Sequence[Measurement], divisor: float) -> Cost:
    """Return the cost of a recipe, and its interval by the spread of its measured steps.

    `divisor` is what its tokens/s are divided by to compare it. A single step says nothing about
    its spread: the interval is then the cost alone.
    """
    cost = divisor / statistics.median(one.tokens_per_s for one in measurements)
    relative_times = [
        time / one.step_time_s_median for one in measurements for time in one.step_times_s
    ]
    low, high = interval(relative_times)
    if math.isinf(high):
        return Cost(cost, cost, cost)
    return Cost(cost, cost * low, cost * high)


def unconfirmed_leaders(costs: Cost, is_full: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the places of the leading recipes without a full measurement, the fastest first.

    The leading recipes are the fastest one and all whose interval overlaps with that of the
    fastest one.

    Args:
        costs: arrays with an entry for each measured recipe.
        is_full: whether a measurement of the recipe is full.
    """
    if not len(is_full):
        return np.empty(0, np.intp)
    first = int(np.argmin(costs.value))
    is_leading = costs.least <= costs.most[first]
    is_leading[first] = True
    lacking = np.flatnonzero(is_leading & ~is_full)
    return lacking[np.argsort(costs.value[lacking], kind="stable")]
