"""The correction of predicted speeds: a Gaussian process on the logarithm of measured over
predicted.

Its mean is the prior. It sums what the formulas' constants may be off by, which all problems of a
cluster share; a factor per doubling of a degree; what neighbors have in common; and a factor common
to all recipes, another for each other problem. Noise has heavy tails, so that a row that
contradicts the others counts little (decision 15).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.spatial.distance import cdist

from frontrunner.evaluators.analytic.accuracy_bounds import own_error
from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.machine import fit_of
from frontrunner.search.guided.prior import NAMES, CandidateTable, Places, Rows, middle
from frontrunner.spaces.problem import Problem

COMMON = {0.1: 0.97, 2.0: 0.03}
"""Standard deviation of the factor of all recipes, as a logarithm -> its chance before any
measurement.

It is what no constant explains: little, but for a device whose peak is not what its cluster states.
"""
PER_STEP = 0.06
PER_CUSTOM = 0.15
"""Of a knob of the user's own, from one value to the next, which no formula knows; assumed."""
LOCAL = 0.1
"""Of what neighbors have in common, which are recipes a doubling or less apart."""
OTHER_PROBLEM = 0.2
"""Of the factor of another problem against this one's; without an amplitude (decision 22)."""
AMPLITUDES = {0.25: 0.15, 0.5: 0.2, 1.0: 0.3, 2.0: 0.3, 4.0: 0.05}
"""What all of these but the factors are multiplied by -> its chance before any measurement."""
OF_SHARED_PROCESSORS = {2.0: 0.6, 4.0: 0.4}
"""As AMPLITUDES, on a CPU that was not calibrated, whose ranks share its cores."""
NOISES = {0.01: 0.1, 0.03: 0.3, 0.1: 0.4, 0.4: 0.2}
"""Scale of a measured logarithm about what can be learned -> its chance before any measurement."""
FREEDOM = 2.5
"""Degrees of freedom of the noise: few, since networks and failing hardware make single rows
several times as slow.
"""
LONE = 0.5
"""How far a logarithm may be from all others and from the formulas before it is doubted: one row
proves little.
"""
REWEIGHTINGS = 2
MOST_SCALES = 4
"""Likeliest scales, under which predictions are made; the median over them is told."""
MOST_OBSERVATIONS = 250
"""Beyond these, other problems' are left out and then the slowest: fitting takes time by their
third power.
"""


def amplitudes_of(problem: Problem) -> Mapping[float, float]:
    """Return how wrong predictions may be on the problem's cluster, with the chance of each."""
    precision, code = problem.precision, coded(problem.software)
    cluster = problem.cluster
    shares = (
        cluster.backend == "cpu"
        and own_error(cluster, precision) is None
        and fit_of(cluster, precision, code) is None
    )
    return OF_SHARED_PROCESSORS if shares else AMPLITUDES


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A logarithm of measured over predicted speed at a row; `spread` is its own noise besides the
    learned one.
    """

    row: int
    log_ratio: float
    spread: float = 0.0


class Scales(NamedTuple):
    """Standard deviations: of the factor of all recipes, of what is multiplied by the amplitude, of
    the noise.
    """

    common: float
    amplitude: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What observations say under one covariance: the lower Cholesky factor with their noise, and
    the solution.
    """

    factor: Rows
    solution: Rows
    log_evidence: float

    @classmethod
    def of(cls, covariance: Rows, ratios: Rows, variances: Rows) -> Fit:
        """Fit under Student-t noise by reweighting; the evidence is Laplace's approximation, but
        for a constant.
        """
        residuals = np.zeros(len(ratios))
        for _ in range(1 + REWEIGHTINGS):
            weights = (FREEDOM + 1) / (FREEDOM + residuals**2 / variances)
            factor, _ = cho_factor(covariance + np.diag(variances / weights), lower=True)
            solution = cho_solve((factor, True), ratios)
            residuals = variances / weights * solution
        likelihood = -0.5 * (FREEDOM + 1) * np.log1p(
            residuals**2 / variances / FREEDOM
        ) - 0.5 * np.log(weights)
        determinant = np.log(np.diag(factor)).sum()
        evidence = likelihood.sum() - 0.5 * solution @ covariance @ solution - determinant
        return cls(factor=factor, solution=solution, log_evidence=float(evidence))


class SpeedModel:
    """Predicts the logarithm of tokens/s of a table's rows from the prior and the observations.

    It is the median over the likeliest scales, each weighted by its posterior: a mean would follow
    the widest of them.
    """

    def __init__(
        self, table: CandidateTable, amplitudes: Mapping[float, float] = AMPLITUDES
    ) -> None:
        self._log_speed, self._problem = table.log_speed, table.problem
        self._steps = table.features - middle(table.features[table.problem == 0])
        known = len(NAMES)
        inputs = (
            table.slopes,
            PER_STEP * self._steps[:, :known],
            PER_CUSTOM * self._steps[:, known:],
        )
        self._inputs = np.hstack(inputs)
        self._priors = {
            Scales(common, amplitude, noise): math.log(first * second * third)
            for (common, first), (amplitude, second), (noise, third) in itertools.product(
                COMMON.items(), amplitudes.items(), NOISES.items()
            )
        }
        self._weights = _most(self._priors, 1)
        self._rows: Places = np.empty(0, dtype=np.intp)
        self._fits: list[tuple[Scales, float, Fit]] = []

    @property
    def noise(self) -> float:
        """The scale of a measured logarithm about what can be learned."""
        return math.sqrt(sum(weight * scales.noise**2 for scales, weight in self._weights.items()))

    def learn(self, observations: Sequence[Observation]) -> None:
        """Weigh the scales by their posterior, and learn from these observations alone."""
        kept = self._kept(observations)
        if kept:
            rows = np.array([seen.row for seen in kept])
            structure, others = self._structure(rows, rows), self._of_problems(rows, rows)
            ratios, spreads = _told(kept)
            worths = {}
            for scales, prior in self._priors.items():
                covariance = scales.common**2 + others + scales.amplitude**2 * structure
                worths[scales] = (
                    Fit.of(covariance, ratios, scales.noise**2 + spreads**2).log_evidence + prior
                )
            self._weights = _most(worths, MOST_SCALES)
        self.update(kept)

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from these observations alone, under the scales and weights that were found
        last.
        """
        kept = self._kept(observations)
        self._rows = np.array([seen.row for seen in kept], dtype=np.intp)
        self._fits = []
        if kept:
            ratios, spreads = _told(kept)
            for scales, weight in self._weights.items():
                covariance = self._covariance(scales, self._rows, self._rows)
                self._fits.append(
                    (scales, weight, Fit.of(covariance, ratios, scales.noise**2 + spreads**2))
                )

    def _kept(self, observations: Sequence[Observation]) -> Sequence[Observation]:
        if len(observations) <= MOST_OBSERVATIONS:
            return observations

        def place(seen: Observation) -> tuple[bool, float]:
            return bool(self._problem[seen.row]), -(
                float(self._log_speed[seen.row]) + seen.log_ratio
            )

        return sorted(observations, key=place)[:MOST_OBSERVATIONS]

    def _covariance(self, scales: Scales, rows: Places, others: Places) -> Rows:
        """Return the covariance of the logarithms of two lists of rows."""
        structure = scales.amplitude**2 * self._structure(rows, others)
        return scales.common**2 + self._of_problems(rows, others) + structure

    def _of_problems(self, rows: Places, others: Places) -> Rows:
        """Return the covariance of what recipes of one problem have in common."""
        same: Rows = OTHER_PROBLEM**2 / 2 * (self._problem[rows][:, None] == self._problem[others])
        return same

    def _structure(self, rows: Places, others: Places) -> Rows:
        """Return the covariance of what is not common to all recipes of a problem, for an amplitude
        of 1.
        """
        near = np.exp(-0.5 * cdist(self._steps[rows], self._steps[others], "sqeuclidean"))
        found: Rows = self._inputs[rows] @ self._inputs[others].T + LOCAL**2 * near
        return found

    def linear_mean(self) -> Rows:
        """Predict all own rows without what neighbors have in common: cheap, to choose which rows
        to look at.
        """
        found = self._log_speed
        for scales, weight, fit in self._fits:
            slopes = scales.amplitude**2 * (self._inputs[self._rows].T @ fit.solution)
            factors = scales.common**2 + OTHER_PROBLEM**2 / 2 * (self._problem[self._rows] == 0)
            found = found + weight * (factors @ fit.solution + self._inputs @ slopes)
        return found

    def predict(self, rows: Places) -> tuple[Rows, Rows]:
        """Predict mean and standard deviation, without a measurement's noise; at first without the
        factors.
        """
        own = (self._inputs[rows] ** 2).sum(axis=1) + LOCAL**2
        if not self._fits:
            square = sum(weight * scales.amplitude**2 for scales, weight in self._weights.items())
            return self._log_speed[rows], np.sqrt(square * own)
        structure, others = self._structure(self._rows, rows), self._of_problems(self._rows, rows)
        moved, variances = (
            np.empty((len(self._fits), len(rows))),
            np.empty((len(self._fits), len(rows))),
        )
        for number, (scales, _, fit) in enumerate(self._fits):
            shared = scales.common**2 + others + scales.amplitude**2 * structure
            explained = (solve_triangular(fit.factor, shared, lower=True) ** 2).sum(axis=0)
            total = scales.common**2 + OTHER_PROBLEM**2 / 2 + scales.amplitude**2 * own
            moved[number], variances[number] = (
                shared.T @ fit.solution,
                np.maximum(total - explained, 0.0),
            )
        weights = np.array([weight for _, weight, _ in self._fits])
        order = np.argsort(moved, axis=0)
        half = (weights[order].cumsum(axis=0) >= 0.5).argmax(axis=0)
        found = np.take_along_axis(moved, order, axis=0)[half, np.arange(len(rows))]
        return self._log_speed[rows] + found, np.sqrt(weights @ (variances + (moved - found) ** 2))

    def draws(self, rows: Places, count: int, seed: int) -> Rows:
        """Draw jointly for these rows, `count` times, one column per draw."""
        if not self._fits:
            raise ValueError("nothing was observed")
        random, found = np.random.default_rng(seed), np.empty((len(rows), count))
        chosen = random.choice(len(self._fits), count, p=[weight for _, weight, _ in self._fits])
        for number, (scales, _, fit) in enumerate(self._fits):
            shared = self._covariance(scales, self._rows, rows)
            explained = solve_triangular(fit.factor, shared, lower=True)
            left = self._covariance(scales, rows, rows) - explained.T @ explained
            here = chosen == number
            mean = shared.T @ fit.solution
            found[:, here] = random.multivariate_normal(
                mean, left, int(here.sum()), method="eigh"
            ).T
        return self._log_speed[rows, None] + found


def _told(observations: Sequence[Observation]) -> tuple[Rows, Rows]:
    """Return the logarithms and their spreads; what is further than `LONE` from all others and from
    0 is noise.
    """
    ratios, spreads = np.array([(seen.log_ratio, seen.spread) for seen in observations]).T
    for side in (1, -1):
        last = int(np.argmax(side * ratios))
        next_to_it = np.delete(side * ratios, last).max(initial=0.0)
        spreads[last] = math.hypot(spreads[last], max(side * ratios[last] - next_to_it - LONE, 0.0))
    return ratios, spreads


def _most(worths: Mapping[Scales, float], count: int) -> dict[Scales, float]:
    """Return the scales of most worth with their chances, which are as exp(worth), under the best
    common factor.
    """
    best = sorted(worths, key=lambda scales: -worths[scales])
    best = [scales for scales in best if scales.common == best[0].common][:count]
    chances = np.exp([worths[scales] - worths[best[0]] for scales in best])
    return dict(zip(best, (chances / chances.sum()).tolist(), strict=True))
