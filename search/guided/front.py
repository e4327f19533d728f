"""What a front of tokens/s against memory and nodes is worth, and what a probe would add to it.

The worth is the hypervolume that the front dominates, told as an average: somebody who may use at most a given share
of a device's memory and a given number of nodes gets the best speed within both, and the worth is the mean of that
speed over all such allowances. Memory is allowed evenly from nothing to `REFERENCE` of a device, nodes as the space's
recipes use them. A row's memory and nodes are taken as known and its speed as normal, so that the expected improvement
is exact: a sum over the steps of the front. With tokens/s alone there is one allowance and the worth is the best speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from frontrunner.search.guided.acquisition import expected_improvement

Rows = npt.NDArray[np.float64]

REFERENCE = 1.1
"""Assumed, as usual for reference points: a tenth beyond the worst, or the fastest recipe of a full device would add
nothing (Ishibuchi et al., How to specify a reference point in hypervolume calculation, 2018)."""
DOUBT = 0.3
"""By how much a front is lowered, as a logarithm, when choosing whom to look at; assumed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Demands:
    """What recipes need, a row each: `memory` as a share of the most that may be allowed, and `nodes`; zeros where
    they are no objective."""

    memory: Rows
    nodes: Rows

    def __getitem__(self, rows: npt.NDArray[np.intp]) -> Demands:
        return Demands(memory=self.memory[rows], nodes=self.nodes[rows])

    def and_also(self, other: Demands) -> Demands:
        """These rows and then the other's."""
        return Demands(
            memory=np.concatenate([self.memory, other.memory]), nodes=np.concatenate([self.nodes, other.nodes])
        )


class Allowances:
    """The allowances of a campaign's objectives."""

    def __init__(self, objectives: Sequence[str], nodes: Rows) -> None:
        """`nodes` are those of the space's recipes, a row each."""
        self.are_several = len(objectives) > 1
        self._memory_counts, self._nodes_count = "memory" in objectives, "nodes" in objectives
        self.levels = np.unique(nodes) if self._nodes_count and len(nodes) else np.zeros(1)

    def demands(self, log_fill: Rows, nodes: Rows) -> Demands:
        """What rows need that fill exp(log_fill) of a device's memory; one that runs needs no more than all of it."""
        none = np.zeros(len(nodes))
        memory = np.exp(np.minimum(log_fill, 0.0)) / REFERENCE if self._memory_counts else none
        return Demands(memory=memory, nodes=nodes if self._nodes_count else none)

    def untried(self, nodes: Rows) -> frozenset[float]:
        """The node counts of the space of which there is none in `nodes`; empty where nodes are no objective."""
        return frozenset(self.levels.tolist()) - set(nodes.tolist()) if self._nodes_count else frozenset()

    def reach(self, demands: Demands) -> Rows:
        """The share of all allowances within which each row is."""
        found: Rows = (1 - demands.memory) * (self.levels >= demands.nodes[:, None]).mean(axis=1)
        return found

    def worth(self, log_speeds: Rows, demands: Demands) -> Rows:
        """The worth of each column of speeds (shape: rows x columns) as a front; 0 for minus infinity."""
        order = np.argsort(demands.memory, kind="stable")
        widths = np.diff(np.append(demands.memory[order], 1.0))
        speeds, nodes = np.exp(log_speeds[order]), demands.nodes[order]
        total = np.zeros(log_speeds.shape[1])
        for level in self.levels:
            within = np.where((nodes <= level)[:, None], speeds, 0.0)
            total += widths @ np.maximum.accumulate(within, axis=0)
        found: Rows = total / len(self.levels)
        return found


class Front:
    """The measured recipes as a front of which a probe may improve some steps."""

    def __init__(
        self, allowances: Allowances, log_speeds: Rows, demands: Demands, untried: frozenset[float] = frozenset()
    ) -> None:
        """`log_speeds` are logarithms of tokens/s; there is at least one.

        For rows of a node count in `untried` the front is taken to hold nothing there, whatever fewer nodes reach.
        """
        self._untried = untried
        self._allowances, self._log_speeds, self._demands = allowances, log_speeds, demands
        highest = float(log_speeds.max())
        above = allowances.worth(log_speeds[:, None] - highest, demands)[0]
        self.log_worth = highest + float(np.log(above))
        """The logarithm of the front's worth, in tokens/s."""

    def gain(self, mean: Rows, deviation: Rows, demands: Demands) -> Rows:
        """By what share of its worth each row is expected to improve the front; `mean` is of the row's log speed."""
        total = np.zeros(len(mean))
        for width, best in self._steps(demands):
            reached = np.flatnonzero(width)
            total[reached] += width[reached] * self._surplus(mean[reached], deviation[reached], best)
        return total

    def rough_gain(self, mean: Rows, demands: Demands) -> Rows:
        """What each row would add if its speed were as expected and the front slower by `DOUBT`: cheap."""
        total, speed = np.zeros(len(mean)), np.exp(np.minimum(mean - self.log_worth, 50.0))
        for width, best in self._steps(demands):
            total += width * np.maximum(speed - np.exp(best - DOUBT - self.log_worth), 0.0)
        return total

    def _surplus(self, mean: Rows, deviation: Rows, best: float) -> Rows:
        """E[max(exp(y) - exp(best), 0)] of a normal y, in the front's worth."""
        if np.isfinite(best):
            return expected_improvement(mean, deviation, best) * float(np.exp(best - self.log_worth))
        found: Rows = np.exp(np.minimum(mean - self.log_worth + 0.5 * deviation**2, 50.0))
        return found

    def _steps(self, demands: Demands) -> Iterator[tuple[Rows, float]]:
        """Allowances that have one best speed: their share of all, as far as each row is within, and its logarithm."""
        levels = self._allowances.levels
        for level in levels.tolist():
            within = demands.nodes == level if level in self._untried else demands.nodes <= level
            for lower, upper, best in self._staircase(level):
                yield np.clip(upper - np.maximum(demands.memory, lower), 0.0, None) * within / len(levels), best

    def _staircase(self, level: float) -> Iterator[tuple[float, float, float]]:
        """Memory from and to, and the logarithm of the best measured speed there, with at most so many nodes."""
        lower, best = 0.0, -np.inf
        within = np.flatnonzero(self._demands.nodes <= (-1 if level in self._untried else level))
        for row in within[np.argsort(self._demands.memory[within], kind="stable")]:
            speed, memory = float(self._log_speeds[row]), float(self._demands.memory[row])
            if speed > best:
                if memory > lower:
                    yield lower, memory, best
                lower, best = memory, speed
        yield lower, 1.0, best
