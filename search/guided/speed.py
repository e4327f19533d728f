"""The correction of predicted speeds: a Gaussian process on the logarithm of measured over predicted.

Its mean is the prior. It sums what the formulas' constants may be off by, which all problems of a cluster share; a
factor per doubling of a degree; what neighbors have in common; and a factor common to all recipes, another for each
other problem. Noise has heavy tails, so that a row that contradicts the others counts little (decision 15).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.spatial.distance import cdist

from frontrunner.evaluators.analytic.accuracy_bounds import own_error
from frontrunner.search.guided.prior import CandidateTable, Places, Rows, middle
from frontrunner.spaces.problem import Problem

COMMON = {0.1: 0.97, 2.0: 0.03}
"""Standard deviation of the factor of all recipes, as a logarithm -> its chance before any measurement.

It is what no constant explains: little, but for a device whose peak is not what its cluster states.
"""
PER_STEP = 0.04
LOCAL = 0.1
"""Of what neighbors have in common, which are recipes a doubling or less apart."""
OTHER_PROBLEM = 0.2
"""Of the factor of another problem against this one's; without an amplitude (decision 22)."""
AMPLITUDES = {0.5: 0.2, 1.0: 0.4, 2.0: 0.35, 4.0: 0.05}
"""What all of these but the factors are multiplied by -> its chance before any measurement."""
OF_SHARED_PROCESSORS = {2.0: 0.6, 4.0: 0.4}
"""As AMPLITUDES, on a CPU that was not calibrated, whose ranks share its cores."""
NOISES = {0.01: 0.1, 0.03: 0.3, 0.1: 0.4, 0.4: 0.2}
"""Scale of a measured logarithm about what can be learned -> its chance before any measurement."""
FREEDOM = 2.5
"""Degrees of freedom of the noise: few, since networks and failing hardware make single rows several times as slow."""
REWEIGHTINGS = 2
MOST_OBSERVATIONS = 250
"""Beyond these, other problems' are left out and then the slowest: fitting takes time by their third power."""


def amplitudes_of(problem: Problem) -> Mapping[float, float]:
    """Return how wrong predictions may be on the problem's cluster, with the chance of each."""
    shares = problem.cluster.backend == "cpu" and own_error(problem.cluster, problem.precision) is None
    return OF_SHARED_PROCESSORS if shares else AMPLITUDES


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A logarithm of measured over predicted speed at a row; `spread` is its own noise besides the learned one."""

    row: int
    log_ratio: float
    spread: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What observations say under one covariance: the lower Cholesky factor with their noise, and the solution."""

    factor: Rows
    solution: Rows
    log_evidence: float

    @classmethod
    def of(cls, covariance: Rows, ratios: Rows, variances: Rows) -> Fit:
        """Fit under Student-t noise by reweighting; the evidence is Laplace's approximation, but for a constant."""
        residuals = np.zeros(len(ratios))
        for _ in range(1 + REWEIGHTINGS):
            weights = (FREEDOM + 1) / (FREEDOM + residuals**2 / variances)
            factor, _ = cho_factor(covariance + np.diag(variances / weights), lower=True)
            solution = cho_solve((factor, True), ratios)
            residuals = variances / weights * solution
        likelihood = -0.5 * (FREEDOM + 1) * np.log1p(residuals**2 / variances / FREEDOM) - 0.5 * np.log(weights)
        determinant = np.log(np.diag(factor)).sum()
        evidence = likelihood.sum() - 0.5 * solution @ covariance @ solution - determinant
        return cls(factor=factor, solution=solution, log_evidence=float(evidence))


class SpeedModel:
    """Predicts the logarithm of tokens/s of a table's rows from the prior and the observations."""

    def __init__(self, table: CandidateTable, amplitudes: Mapping[float, float] = AMPLITUDES) -> None:
        self._log_speed, self._problem = table.log_speed, table.problem
        self._steps = table.features - middle(table.features[table.problem == 0])
        self._inputs = np.hstack([table.sensitivities, PER_STEP * self._steps])
        chances = itertools.product(COMMON.items(), amplitudes.items(), NOISES.items())
        self._chances = {tuple(scale for scale, _ in each): math.prod(of for _, of in each) for each in chances}
        self._common, self._amplitude, self.noise = max(self._chances, key=lambda scales: self._chances[scales])
        self._fit: Fit | None = None

    def learn(self, observations: Sequence[Observation]) -> None:
        """Choose the scales by their posterior, and learn from these observations alone."""
        kept = self._kept(observations)
        if kept:
            rows = np.array([seen.row for seen in kept])
            structure, others = self._structure(rows, rows), self._of_problems(rows, rows)
            ratios, spreads = np.array([(seen.log_ratio, seen.spread) for seen in kept]).T

            def worth(scales: tuple[float, ...]) -> float:
                common, amplitude, noise = scales
                covariance = common**2 + others + amplitude**2 * structure
                return Fit.of(covariance, ratios, noise**2 + spreads**2).log_evidence + math.log(self._chances[scales])

            self._common, self._amplitude, self.noise = max(self._chances, key=worth)
        self.update(kept)

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from these observations alone, under the scales that were chosen last."""
        self._fit, kept = None, self._kept(observations)
        if kept:
            self._rows = np.array([seen.row for seen in kept])
            ratios, spreads = np.array([(seen.log_ratio, seen.spread) for seen in kept]).T
            self._fit = Fit.of(self._covariance(self._rows, self._rows), ratios, self.noise**2 + spreads**2)

    def _kept(self, observations: Sequence[Observation]) -> Sequence[Observation]:
        if len(observations) <= MOST_OBSERVATIONS:
            return observations

        def place(seen: Observation) -> tuple[bool, float]:
            return bool(self._problem[seen.row]), -(float(self._log_speed[seen.row]) + seen.log_ratio)

        return sorted(observations, key=place)[:MOST_OBSERVATIONS]

    def _covariance(self, rows: Places, others: Places) -> Rows:
        """Return the covariance of the logarithms of two lists of rows."""
        structure = self._amplitude**2 * self._structure(rows, others)
        return self._common**2 + self._of_problems(rows, others) + structure

    def _of_problems(self, rows: Places, others: Places) -> Rows:
        """Return the covariance of what recipes of one problem have in common."""
        same: Rows = OTHER_PROBLEM**2 / 2 * (self._problem[rows][:, None] == self._problem[others])
        return same

    def _structure(self, rows: Places, others: Places) -> Rows:
        """Return the covariance of what is not common to all recipes of a problem, for an amplitude of 1."""
        near = np.exp(-0.5 * cdist(self._steps[rows], self._steps[others], "sqeuclidean"))
        found: Rows = self._inputs[rows] @ self._inputs[others].T + LOCAL**2 * near
        return found

    def linear_mean(self) -> Rows:
        """Predict all own rows without what neighbors have in common: cheap, to choose which rows to look at."""
        if self._fit is None:
            return self._log_speed
        slopes = self._amplitude**2 * (self._inputs[self._rows].T @ self._fit.solution)
        factors = self._common**2 + OTHER_PROBLEM**2 / 2 * (self._problem[self._rows] == 0)
        found: Rows = self._log_speed + factors @ self._fit.solution + self._inputs @ slopes
        return found

    def predict(self, rows: Places) -> tuple[Rows, Rows]:
        """Predict mean and standard deviation, without a measurement's noise; at first without the factors."""
        own = self._amplitude**2 * ((self._inputs[rows] ** 2).sum(axis=1) + LOCAL**2)
        if self._fit is None:
            return self._log_speed[rows], np.sqrt(own)
        shared = self._covariance(self._rows, rows)
        explained = (solve_triangular(self._fit.factor, shared, lower=True) ** 2).sum(axis=0)
        variance = np.maximum(self._common**2 + OTHER_PROBLEM**2 / 2 + own - explained, 0.0)
        return self._log_speed[rows] + shared.T @ self._fit.solution, np.sqrt(variance)

    def draws(self, rows: Places, count: int, seed: int) -> Rows:
        """Draw jointly for these rows, `count` times, one column per draw."""
        if self._fit is None:
            raise ValueError("nothing was observed")
        shared = self._covariance(self._rows, rows)
        explained = solve_triangular(self._fit.factor, shared, lower=True)
        mean = self._log_speed[rows] + shared.T @ self._fit.solution
        left = self._covariance(rows, rows) - explained.T @ explained
        drawn: Rows = np.random.default_rng(seed).multivariate_normal(mean, left, count, method="eigh").T
        return drawn
