"""Comparison of the step times that a trainer's log states with the times at which its lines
arrived, by our clock.

Lines come one by one, or several at a time where something holds the output back. A trainer may
also do other work between two steps, such as a checkpoint. So no single interval decides: a log
contradicts the clock only where its times are off in total, and still are without the longest
pauses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

MOST_APART = 2.0
"""Stated and observed times may differ by this factor: trainers leave out the reading of data,
logging and the like.
"""
TOGETHER_S = 0.005
"""Lines that arrive this soon after another one count as one burst."""
LEAST_INTERVALS = 4
"""Intervals between bursts that are enough to tell a pause, or output that was held back, from
wrong times.
"""
PAUSES = 0.25
"""Share of the intervals that may hold pauses."""
ROUNDING = 0.1
"""Share by which stated times may add up to more than the command has run."""


class StatedTime(NamedTuple):
    """A line of the log: when it arrived, in seconds since the command's start, and the seconds
    that it states for the steps since the line before it.
    """

    arrival_s: float
    stated_s: float


class ClockCheck(NamedTuple):
    """Result of a comparison.

    `contradiction` has both values, or is None where the log agrees with the clock. While not
    `is_decided`, further lines may change it.
    """

    contradiction: str | None
    is_decided: bool


def compare(lines: Sequence[StatedTime]) -> ClockCheck:
    """Compare the stated times with the clock.

    Both are summed over the same intervals, from the first burst of lines to the last one.
    """
    total_s = sum(line.stated_s for line in lines)
    if lines and total_s > lines[-1].arrival_s * (1 + ROUNDING):
        ran = f"came within {lines[-1].arrival_s:.4g} s by our clock"
        return ClockCheck(
            f"the log's steps take {total_s:.4g} s in all, and {ran}", is_decided=True
        )
    intervals = _intervals(lines)
    if not intervals:
        return ClockCheck(None, is_decided=False)
    stated_s, observed_s = _sums(intervals)
    is_enough = len(intervals) >= LEAST_INTERVALS
    values = (
        f"the log's steps after the first take {stated_s:.4g} s, and by our clock they took"
        f" {observed_s:.4g} s"
    )
    if stated_s > MOST_APART * observed_s:
        # A few bursts may have been held back until all of their steps were over.
        return ClockCheck(values if is_enough else None, is_decided=is_enough)
    if observed_s <= MOST_APART * stated_s:
        return ClockCheck(None, is_decided=True)
    by_pause = sorted(intervals, key=lambda one: one.arrival_s - one.stated_s)
    without_pauses = by_pause[: len(intervals) - math.ceil(PAUSES * len(intervals))]
    stated_s, observed_s = _sums(without_pauses)
    agrees = bool(without_pauses) and observed_s <= MOST_APART * stated_s
    return ClockCheck(None if agrees else values, is_decided=is_enough)


def _intervals(lines: Sequence[StatedTime]) -> list[StatedTime]:
    """Return the time from each burst to the next one, with what the lines of the later one
    state.
    """
    bursts: list[StatedTime] = []
    for line in lines:
        if bursts and line.arrival_s - bursts[-1].arrival_s <= TOGETHER_S:
            bursts[-1] = bursts[-1]._replace(stated_s=bursts[-1].stated_s + line.stated_s)
        else:
            bursts.append(line)
    return [
        StatedTime(later.arrival_s - earlier.arrival_s, later.stated_s)
        for earlier, later in itertools.pairwise(bursts)
    ]


def _sums(intervals: Sequence[StatedTime]) -> tuple[float, float]:
    stated_s = sum(interval.stated_s for interval in intervals)
    return stated_s, sum(interval.arrival_s for interval in intervals)
