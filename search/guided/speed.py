"""The correction of predicted speeds: a Gaussian process on the logarithm of measured over predicted.

Its mean is the prior. It sums a factor common to all recipes; errors linear in the parts' shares of a step; a factor
per doubling of a degree; a slope in the predicted logarithm; and what neighbors have in common. Other problems have a
factor of their own. The scales were set on four published tables at once (decision 15).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Kernel

from frontrunner.evaluators.analytic.accuracy_bounds import is_validated, own_error
from frontrunner.search.guided.prior import CandidateTable, Places, Rows, middle
from frontrunner.spaces.problem import Problem

COMMON = 3.0
"""Standard deviation of the factor of all recipes, as a logarithm; wide, since no order hangs on it."""
PER_SHARE = 0.3
PER_STEP = 0.045
PER_LOG_SPEED = 0.3
"""Of what a predicted difference in speed is worth, from 1."""
LOCAL, LOCAL_STEPS = 0.12, 1.0
"""Of what neighbors have in common, and how many doublings away they are neighbors."""
OTHER_PROBLEM = 0.3
"""Of the factor of another problem against this one's; without an amplitude (decision 22)."""
FAR, APART = 1e4, 1e-6
AMPLITUDES = {0.5: 0.25, 1.0: 0.4, 2.0: 0.25, 4.0: 0.1}
"""What all of these but the factors of problems are multiplied by -> its chance before any measurement."""
OF_OTHER_DEVICES = {0.5: 0.1, 1.0: 0.35, 2.0: 0.35, 4.0: 0.2}
"""As AMPLITUDES, where no measurement has validated the formulas."""
OF_SHARED_PROCESSORS = {2.0: 0.6, 4.0: 0.4}
"""As AMPLITUDES, on a CPU that was not calibrated, whose ranks share its cores."""
NOISES = {0.01: 0.25, 0.03: 0.4, 0.1: 0.2, 0.4: 0.15}
"""Standard deviation of a measured logarithm about what can be learned -> its chance before any measurement."""
MOST_OBSERVATIONS = 250
"""Beyond these, other problems' are left out and then the slowest: fitting takes time by their third power."""


def amplitudes_of(problem: Problem) -> Mapping[float, float]:
    """Return how wrong predictions may be on the problem's cluster, with the chance of each."""
    if problem.cluster.backend == "cpu" and own_error(problem.cluster, problem.precision) is None:
        return OF_SHARED_PROCESSORS
    return AMPLITUDES if is_validated(problem.cluster, problem.precision) else OF_OTHER_DEVICES


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A logarithm of measured over predicted speed at a row; `spread` is its own noise besides the learned one."""

    row: int
    log_ratio: float
    spread: float = 0.0


class SpeedModel:
    """Predicts the logarithm of tokens/s of a table's rows from the prior and the observations."""

    def __init__(self, table: CandidateTable, amplitudes: Mapping[float, float] = AMPLITUDES) -> None:
        self._amplitudes = amplitudes
        self._log_speed, self._problem = table.log_speed, table.problem
        self._inputs, self._lengths, is_problem = _inputs(table)
        # Rows of one problem share one factor.
        self._of_problems = ConstantKernel(OTHER_PROBLEM**2 / 2, "fixed") * RBF(
            np.where(is_problem, APART / 100, FAR), "fixed"
        )
        self._process: GaussianProcessRegressor | None = None
        self._amplitude, self.noise = max(amplitudes, key=lambda amplitude: amplitudes[amplitude]), 0.03

    def learn(self, observations: Sequence[Observation]) -> None:
        """Choose amplitude and noise by their posterior, and learn from these observations alone."""
        kept = self._kept(observations)
        if kept:
            inputs = self._inputs[[seen.row for seen in kept]]
            structure, others = self._structure(1.0)(inputs), self._of_problems(inputs)
            ratios = np.array([seen.log_ratio for seen in kept])
            spreads = np.array([seen.spread for seen in kept])

            def worth(scales: tuple[float, float]) -> float:
                amplitude, noise = scales
                covariance = COMMON**2 + others + amplitude**2 * structure + np.diag(noise**2 + spreads**2)
                return log_evidence(covariance, ratios) + math.log(self._amplitudes[amplitude] * NOISES[noise])

            self._amplitude, self.noise = max(itertools.product(self._amplitudes, NOISES), key=worth)
        self.update(kept)

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from these observations alone, under the amplitude and the noise that were chosen last."""
        self._process, kept = None, self._kept(observations)
        if kept:
            kernel = ConstantKernel(COMMON**2, "fixed") + self._of_problems + self._structure(self._amplitude)
            variances = np.array([self.noise**2 + seen.spread**2 for seen in kept])
            process = GaussianProcessRegressor(kernel, alpha=variances, optimizer=None)
            rows, ratios = [seen.row for seen in kept], [seen.log_ratio for seen in kept]
            self._process = process.fit(self._inputs[rows], ratios)

    def _kept(self, observations: Sequence[Observation]) -> Sequence[Observation]:
        if len(observations) <= MOST_OBSERVATIONS:
            return observations

        def place(seen: Observation) -> tuple[bool, float]:
            return bool(self._problem[seen.row]), -(float(self._log_speed[seen.row]) + seen.log_ratio)

        return sorted(observations, key=place)[:MOST_OBSERVATIONS]

    def _structure(self, amplitude: float) -> Kernel:
        """Return the covariance of what is not common to all recipes of a problem."""
        linear = ConstantKernel(amplitude**2, "fixed") * DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
        near = ConstantKernel((LOCAL * amplitude) ** 2, "fixed") * RBF(self._lengths, "fixed")
        return linear + near

    def linear_mean(self) -> Rows:
        """Predict all rows without what neighbors have in common: cheap, to choose which rows to look at."""
        if self._process is None:
            return self._log_speed
        alpha = self._process.alpha_
        slopes = self._amplitude**2 * (self._process.X_train_.T @ alpha)
        found: Rows = self._log_speed + COMMON**2 * alpha.sum() + self._inputs @ slopes
        return found

    def predict(self, rows: Places) -> tuple[Rows, Rows]:
        """Predict mean and standard deviation, without a measurement's noise; at first without the common factor."""
        if self._process is None or not len(rows):
            near = np.hypot(np.linalg.norm(self._inputs[rows], axis=1), LOCAL)
            return self._log_speed[rows], near
        mean, deviation = self._process.predict(self._inputs[rows], return_std=True)
        return self._log_speed[rows] + mean, deviation

    def draws(self, rows: Places, count: int, seed: int) -> Rows:
        """Draw jointly for these rows, `count` times, one column per draw."""
        if self._process is None:
            raise ValueError("nothing was observed")
        drawn: Rows = self._process.sample_y(self._inputs[rows], n_samples=count, random_state=seed)
        return self._log_speed[rows, None] + drawn


def _inputs(table: CandidateTable) -> tuple[Rows, Rows, npt.NDArray[np.bool_]]:
    """Return inputs scaled for coefficients of about 1, their lengths for neighbors, and which separate problems."""
    own = table.problem == 0
    steps = table.features - middle(table.features[own])
    speeds = np.array(table.log_speed)
    for number in np.unique(table.problem):
        speeds[table.problem == number] -= middle(table.log_speed[table.problem == number])
    others = np.arange(1, table.problem.max(initial=0) + 1)
    blocks = [
        (table.step_shares * PER_SHARE, FAR),
        (steps * PER_STEP, LOCAL_STEPS * PER_STEP),
        (speeds[:, None] * PER_LOG_SPEED, FAR),
        ((table.problem[:, None] == others) * APART, FAR),
        (np.zeros((len(table), 1)), FAR),  # so that there is one where all recipes are alike
    ]
    inputs = np.hstack([block for block, _ in blocks])
    lengths = np.concatenate([np.full(block.shape[1], length) for block, length in blocks])
    place = np.arange(len(lengths))
    is_problem = (place >= len(place) - 1 - len(others)) & (place < len(place) - 1)
    varies = (np.ptp(inputs, axis=0) > 0 if len(table) else False) | (place == len(place) - 1)
    return inputs[:, varies], lengths[varies], is_problem[varies]


def log_evidence(covariance: Rows, values: Rows) -> float:
    """Return the log density of a normal of mean 0 at `values`, without the constant that depends on their number."""
    factor = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(factor, values)
    return -0.5 * float(whitened @ whitened) - float(np.log(np.diag(factor)).sum())
