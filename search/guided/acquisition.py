"""What a probe is expected to add to the front of tokens/s against memory and nodes.

The worth is the hypervolume that the front dominates: the best speed within an allowance of memory
(up to `REFERENCE` of a device) and of nodes, as a mean over all allowances. Only speed is uncertain
(normal), so that the expected improvement is exact: a sum over the steps of the front.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtr

from frontrunner.search.guided.prior import Rows
from frontrunner.spaces.pareto import pareto_front

REFERENCE = 1.1
"""Assumed: a tenth beyond the worst, as usual for reference points (Ishibuchi et al., 2018)."""
DOUBT = 0.3
"""How far a front is lowered, as a logarithm, when choosing which rows to look at; assumed."""


def expected_improvement(mean: Rows, deviation: Rows, best: float) -> Rows:
    """Return the share of the best speed by which a recipe is expected to beat it, 0 where it is
    slower.

    `mean`, `deviation` and `best` are of logarithms of speed: E[max(exp(y - best) - 1, 0)] of a
    normal y, which is exp(m + s^2 / 2) Phi(m / s + s) - Phi(m / s) with m = mean - best (the
    Black-Scholes formula).
    """
    above, spread = mean - best, np.maximum(deviation, 1e-9)
    gain = np.exp(np.minimum(above + 0.5 * spread**2, 50.0)) * ndtr(above / spread + spread) - ndtr(
        above / spread
    )
    found: Rows = np.maximum(gain, 0.0)
    return found


def mean_loss(difference: float, deviation: float) -> float:
    """Return the mean cost of choosing the better of two by a difference of logarithms that may be
    chance.

    E[max(-d, 0)] of a normal d: s phi(d / s) - d Phi(-d / s).
    """
    if deviation <= 0:
        return 0.0
    ratio = difference / deviation
    density = math.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return deviation * density - difference * float(ndtr(-ratio))


class Allowances:
    """The allowances of a campaign's objectives."""

    def __init__(self, objectives: Sequence[str], nodes: Rows) -> None:
        self.are_several = len(objectives) > 1
        self._memory_counts, self._nodes_count = "memory" in objectives, "nodes" in objectives
        self.levels = np.unique(nodes) if self._nodes_count and len(nodes) else np.zeros(1)

    def demands(self, log_fill: Rows, nodes: Rows) -> Rows:
        """Return two columns: memory, as a share of the most allowed, and nodes; zeros where no
        objective.
        """
        memory = np.exp(np.minimum(log_fill, 0.0)) / REFERENCE
        return np.column_stack([memory * self._memory_counts, nodes * self._nodes_count])

    def untried(self, nodes: Rows) -> frozenset[float]:
        """Return the node counts of the space that are not in `nodes`; empty where nodes are no
        objective.
        """
        return (
            frozenset(self.levels.tolist()) - set(nodes.tolist())
            if self._nodes_count
            else frozenset()
        )

    def reach(self, demands: Rows) -> Rows:
        """Return the share of all allowances that each row meets."""
        found: Rows = (1 - demands[:, 0]) * (self.levels >= demands[:, 1, None]).mean(axis=1)
        return found

    def worth(self, log_speeds: Rows, demands: Rows) -> Rows:
        """Return the worth of each column of speeds (rows x columns) as a front; 0 for minus
        infinity.
        """
        order = np.argsort(demands[:, 0], kind="stable")
        widths = np.diff(np.append(demands[order, 0], 1.0))
        speeds, nodes = np.exp(log_speeds[order]), demands[order, 1]
        total = np.zeros(log_speeds.shape[1])
        for level in self.levels:
            within = np.where((nodes <= level)[:, None], speeds, 0.0)
            total += widths @ np.maximum.accumulate(within, axis=0)
        found: Rows = total / len(self.levels)
        return found


class Front:
    """The measured recipes as a front of which a probe may improve some steps."""

    def __init__(
        self,
        allowances: Allowances,
        log_speeds: Rows,
        demands: Rows,
        untried: frozenset[float] = frozenset(),
    ) -> None:
        """`log_speeds` are of tokens/s, at least one; at node counts in `untried` the front is
        taken as empty.
        """
        self._allowances, self._log_speeds, self._demands, self._untried = (
            allowances,
            log_speeds,
            demands,
            untried,
        )
        highest = float(log_speeds.max())
        above = allowances.worth(log_speeds[:, None] - highest, demands)[0]
        self.log_worth = highest + float(np.log(above))
        """The logarithm of the front's worth, in tokens/s."""

    def gain(self, mean: Rows, deviation: Rows, demands: Rows) -> Rows:
        """Return the share of its worth by which each row is expected to improve the front; `mean`
        is of log speed.
        """
        total = np.zeros(len(mean))
        for width, best in self._steps(demands):
            reached = np.flatnonzero(width)
            total[reached] += width[reached] * self._surplus(
                mean[reached], deviation[reached], best
            )
        return total

    def rough_gain(self, mean: Rows, demands: Rows) -> Rows:
        """Return what each row would add if its speed were as expected and the front slower by
        `DOUBT`: cheap.
        """
        total, speed = np.zeros(len(mean)), np.exp(np.minimum(mean - self.log_worth, 50.0))
        for width, best in self._steps(demands):
            total += width * np.maximum(speed - np.exp(best - DOUBT - self.log_worth), 0.0)
        return total

    def _surplus(self, mean: Rows, deviation: Rows, best: float) -> Rows:
        """E[max(exp(y) - exp(best), 0)] of a normal y, in the front's worth."""
        if np.isfinite(best):
            return expected_improvement(mean, deviation, best) * float(
                np.exp(best - self.log_worth)
            )
        found: Rows = np.exp(np.minimum(mean - self.log_worth + 0.5 * deviation**2, 50.0))
        return found

    def _steps(self, demands: Rows) -> Iterator[tuple[Rows, float]]:
        """Yield the allowances between two steps of the front, as shares within each row's reach,
        and the best speed.
        """
        levels = self._allowances.levels
        for level in levels.tolist():
            is_untried = level in self._untried
            within = demands[:, 1] == level if is_untried else demands[:, 1] <= level
            held = self._demands[:, 1] <= (-1 if is_untried else level)
            points = np.column_stack([-self._demands[held, 0], self._log_speeds[held]])
            front = points[pareto_front(points.tolist())]
            ends = sorted((-memory, speed) for memory, speed in front.tolist())
            lower, best = 0.0, -np.inf
            for upper, next_best in [*ends, (1.0, np.inf)]:
                if upper > lower or next_best == np.inf:
                    yield (
                        np.clip(upper - np.maximum(demands[:, 0], lower), 0.0, None)
                        * within
                        / len(levels),
                        best,
                    )
                lower, best = upper, next_best
