"""What a probe is worth, and what it costs."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Rows = npt.NDArray[np.float64]

STEPS_OF_A_PROBE = 7
"""Warm-up and measured steps; assumed of probes that take 5 to 15, as they ship. A strategy does not see a campaign's
own."""
START_S = 30.0
"""What a probe takes beside its steps; assumed."""


def expected_improvement(mean: Rows, deviation: Rows, best: float) -> Rows:
    """By what share of the best speed a recipe is expected to beat it, where it is slower by 0.

    `mean`, `deviation` and `best` are of logarithms of speed: E[max(exp(y - best) - 1, 0)] of a normal y, which is
    exp(m + s^2 / 2) Phi(m / s + s) - Phi(m / s) with m = mean - best (the Black-Scholes formula).
    """
    above, spread = mean - best, np.maximum(deviation, 1e-9)
    gain = np.exp(np.minimum(above + 0.5 * spread**2, 50.0)) * ndtr(above / spread + spread) - ndtr(above / spread)
    found: Rows = np.maximum(gain, 0.0)
    return found


def node_seconds(step_time_s: Rows, nodes: Rows) -> Rows:
    """What a probe is expected to take, in node-seconds.

    One that fails counts as much as one that runs: some fail at once and others when their deadline has passed.
    """
    return nodes * (START_S + STEPS_OF_A_PROBE * step_time_s)


def mean_loss(difference: float, deviation: float) -> float:
    """What choosing the better of two by a difference of logarithms costs on average, since it may be chance.

    E[max(-d, 0)] of a normal d: s phi(d / s) - d Phi(-d / s).
    """
    if deviation <= 0:
        return 0.0
    ratio = difference / deviation
    density = math.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return deviation * density - difference * float(ndtr(-ratio))
