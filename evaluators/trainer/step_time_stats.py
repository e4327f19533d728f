"""When a step time is known well enough: which first steps are still warm-up, and what the others
say.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

Ending = Literal["known", "slower", "noisy"]

CLEARLY = 0.05
"""Assumed: by how much of the best step time an interval must lie above it. Machines drift between
two probes.
"""
LEAST_TO_DESPAIR = 5
LEAST_AFTER_FIRST = 2

_TWO_SIDED_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
_ONE_SIDED_T = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)
"""Quantiles 0.975 and 0.95 of Student's t for 1 to 20 degrees of freedom (NIST/SEMATECH e-Handbook,
1.3.6.7.2).
"""


def settled(times: Sequence[float], *, most_dropped: int, tolerance: float) -> list[float]:
    """Return the times without the first ones that are still warm-up, of which at most
    `most_dropped` are left out.

    The first time is warm-up where it lies above Student's one-sided 95 % prediction interval for
    one more observation of those after it, mean + t(n - 1) * s * sqrt(1 + 1 / n), and above their
    mean by more than the share `tolerance`: below that it does no harm. The next one is then judged
    in the same way.
    """
    left = list(times)
    for _ in range(most_dropped):
        rest = left[1:]
        if len(rest) < LEAST_AFTER_FIRST:
            break
        mean = statistics.fmean(rest)
        margin = (
            _t(_ONE_SIDED_T, len(rest) - 1) * statistics.stdev(rest) * math.sqrt(1 + 1 / len(rest))
        )
        if left[0] <= mean + max(margin, tolerance * mean):
            break
        left = rest
    return left


def interval(times: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the step time: the narrower of two; infinitely wide for
    a single step.

    One is Student's for the mean, mean +- t(n - 1) * s / sqrt(n), which is right for quiet steps.
    The other is the median's, free of any distribution, from the k-th smallest to the k-th largest
    time, with the largest k for which 2 * P(Binomial(n, 1/2) < k) <= 0.05; it needs six steps, and
    from nine on an interrupted step does not widen it.
    """
    count = len(times)
    if count < 2:
        return 0.0, math.inf
    mean = statistics.fmean(times)
    half = _t(_TWO_SIDED_T, count - 1) * statistics.stdev(times) / math.sqrt(count)
    found = [(mean - half, mean + half)]
    place = _median_place(count)
    if place > 0:
        ordered = sorted(times)
        found.append((ordered[place - 1], ordered[-place]))
    return min(found, key=lambda ends: ends[1] - ends[0])


def relative_half_width(times: Sequence[float]) -> float:
    """Half the width of `interval` over the median."""
    low, high = interval(times)
    return (high - low) / 2 / statistics.median(times)


def half_width_after(times: Sequence[float], count: int) -> float:
    """Return what `relative_half_width` will be about with `count` steps, if they go on as these
    did.

    t(count - 1) * s / sqrt(count), with s from the median absolute deviation (1.4826 of it for a
    normal distribution), which single interrupted steps leave alone, and sqrt(pi / 2) times that:
    so much wider is the median's interval.
    """
    middle = statistics.median(times)
    spread = 1.4826 * statistics.median(abs(time - middle) for time in times)
    return math.sqrt(math.pi / 2) * _t(_TWO_SIDED_T, count - 1) * spread / math.sqrt(count) / middle


def ending(
    times: Sequence[float], *, precision: float, best_step_time_s: float | None, most: int
) -> Ending | None:
    """Return why measuring can end, at the latest after `most` steps; None to go on."""
    if relative_half_width(times) <= precision:
        return "known"
    if best_step_time_s is not None and interval(times)[0] > best_step_time_s * (1 + CLEARLY):
        return "slower"
    if len(times) >= LEAST_TO_DESPAIR and half_width_after(times, most) > precision:
        return "noisy"
    return None


def _t(quantiles: tuple[float, ...], freedom: int) -> float:
    return quantiles[min(freedom, len(quantiles)) - 1]


def _median_place(count: int) -> int:
    below, place = 0, 0
    while 2 * (below + math.comb(count, place)) <= 0.05 * 2**count:
        below += math.comb(count, place)
        place += 1
    return place
