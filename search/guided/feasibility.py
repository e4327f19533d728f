"""The chance that a recipe runs, learned from the prior's memory, measured peaks and failures.

The log of needed over predicted memory is linear in memory shares, degrees, and how far the known
codes are from an unknown one. A measured peak gives it, but for what another code may count besides
tensors; whether a recipe ran gives its side of the limit: a probit regression by Laplace's
approximation (Bishop, 2006, section 4.5). Failures without a known cause are blamed on memory as
far as the prediction says so; all warn about neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr

from frontrunner.evaluators.analytic.memory import CACHED, MARGIN
from frontrunner.search.guided.prior import (
    CandidateTable,
    Places,
    Rows,
    cuts,
    middle,
    needs_as_much,
)

OFFSET = 0.12
"""Standard deviation of the log factor of all recipes: peaks are off by 7 to 12 %
(docs/measurements.md).
"""
PER_SHARE = 0.3
PER_STEP = 0.03
LOG_MARGIN, MARGIN_SPREAD = -math.log1p(-MARGIN), 0.08
"""What a recipe should leave free, as a logarithm of what a device must hold, and the standard
deviation of what else others hold.
"""
OTHERS_PEAKS = math.log1p(CACHED)
"""Standard deviation of what all peaks of others' code have in common beside what tensors hold: its
log, or a table, may state what the allocator reserves, or the device holds.
"""
WIDER = {(1.0, 1.0): 0.9, (4.0, 1.0): 0.05, (1.0, 16.0): 0.05}
"""Factors of offset and margin -> chance before any trial: bad formulas, and memory that others
hold.
"""
PEAK_SCATTER, SCATTER = 0.06, 0.08
"""What cannot be learned of peaks, and of the limit."""
PEAK_FREEDOM = 4.0
"""Degrees of freedom of Student's distribution of peaks: one that is far off, as its run kept more,
teaches little.
"""
CRASHES = 0.1
"""The share of recipes that fail for reasons other than memory, before any does."""
LOCAL_STEPS = 0.8
MOST_PAIRS = 1_000_000
"""Rows times trials that are compared at a time: 8 MB."""
DOMINATED = 1e-3
"""What is left of the chance of a recipe that needs as much memory as one that ran out of it: it is
tried last.
"""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of a row: it ran (with its peak over a device's memory, as a logarithm, where
    known) or failed.

    `lacked_memory` is whether that is why it failed, None where the cause is unknown.
    """

    row: int
    ran: bool
    log_peak: float | None = None
    lacked_memory: bool | None = None


class FeasibilityModel:
    """Chances of all rows to run; no chance is 0, since the formulas may be wrong."""

    def __init__(self, table: CandidateTable, *, peaks_are_allocated: bool = True) -> None:
        """`peaks_are_allocated`: measured peaks are what tensors hold, as our own trainer's."""
        own = table.problem == 0
        self._fill, self._held = table.log_fill, table.log_allocated
        self._features, self._own = table.features, own
        parts = table.memory_shares - middle(table.memory_shares[own])
        steps = table.features - middle(table.features[own])
        ones = np.ones((len(table), 1))
        codes = table.memory_of_codes[:, table.memory_of_codes.any(axis=0)]
        of_needs, of_peaks = (
            ones * MARGIN_SPREAD,
            ones * (0.0 if peaks_are_allocated else OTHERS_PEAKS),
        )
        self._inputs = np.hstack(
            [ones * OFFSET, parts * PER_SHARE, steps * PER_STEP, codes, of_needs, of_peaks]
        )
        self.learn([])

    def learn(self, trials: Sequence[Trial]) -> None:
        """Learn from these trials alone."""
        size = self._inputs.shape[1]
        self._weights, self._covariance = np.zeros(size), np.eye(size)
        if of_memory := [
            trial for trial in trials if trial.ran or trial.lacked_memory is not False
        ]:
            found = [self._fitted(of_memory, wider) for wider in WIDER]
            _, self._weights, self._covariance = max(found, key=lambda one: one[0])
        self._near = [trial for trial in trials if self._own[trial.row]]

    def _fitted(
        self, trials: Sequence[Trial], wider: tuple[float, float]
    ) -> tuple[float, Rows, Rows]:
        """Return the logarithm of Laplace's evidence, and the posterior's mean and covariance in
        the inputs' scales.
        """
        scales = np.ones(self._inputs.shape[1])
        scales[[0, -2]] = wider
        data = _Likelihood(trials, self._inputs, (self._fill, self._held), scales)
        tried = [minimize(data.cost, start, jac=True, method="L-BFGS-B") for start in data.starts()]
        mode: Rows = min(tried, key=lambda one: float(one.fun)).x
        precision = np.eye(len(scales)) + data.curvature(mode)
        evidence = (
            -data.cost(mode)[0]
            - 0.5 * float(np.linalg.slogdet(precision)[1])
            + math.log(WIDER[wider])
        )
        covariance: Rows = np.linalg.inv(precision) * scales[:, None] * scales
        return evidence, mode * scales, covariance

    def rough_chance(self) -> Rows:
        """Return the chances that all rows' memory suffices, as if the regression were sure:
        cheap.
        """
        chance: Rows = ndtr(
            -(self._fill + LOG_MARGIN + self._inputs[:, :-1] @ self._weights[:-1]) / OFFSET
        )
        return chance

    def log_need(self, rows: Places) -> Rows:
        """Return the logarithm of the expected peak of these rows, as it is measured, over a
        device's memory.
        """
        weights = self._weights.copy()
        weights[-2] = 0.0  # a peak has no margin
        needed: Rows = self._held[rows] + self._inputs[rows] @ weights
        return needed

    def fits(self, rows: Places) -> Rows:
        """Return the chance that these rows' memory suffices."""
        inputs = self._inputs[rows, :-1]
        spread = np.sqrt(
            SCATTER**2 + np.einsum("ij,jk,ik->i", inputs, self._covariance[:-1, :-1], inputs)
        )
        fitting: Rows = ndtr(
            -(self._fill[rows] + LOG_MARGIN + inputs @ self._weights[:-1]) / spread
        )
        return fitting

    def chance(self, rows: Places) -> Rows:
        """Return the chance that these rows run, for whatever reason they might not."""
        chance = self.fits(rows)
        if not self._near:
            return chance
        own, known = self._features[rows], self._features[[trial.row for trial in self._near]]
        has_run = np.array([trial.ran for trial in self._near])
        places: dict[bytes, list[int]] = {}
        for place, cut in enumerate(cuts(own)):
            places.setdefault(cut, []).append(place)
        failures = [trial for trial in self._near if not trial.ran]
        for trial, cut in zip(failures, cuts(known[~has_run]), strict=True):
            if alike := places.get(cut):
                needing = np.array(alike)[needs_as_much(own[alike], self._features[trial.row])]
                chance[needing] *= 1 - self._blame(trial) * (1 - DOMINATED)
        ran, failed = _nearness(
            own, known, np.column_stack([has_run, ~has_run]).astype(np.float64)
        ).T
        found: Rows = chance * (1 + ran) / (1 + ran + failed)
        return found

    def _blame(self, trial: Trial) -> float:
        if trial.lacked_memory is not None:
            return float(trial.lacked_memory)
        lacks = 1 - float(self.fits(np.array([trial.row]))[0])
        return lacks / (lacks + CRASHES * (1 - lacks))


def _nearness(rows: Rows, known: Rows, kinds: Rows) -> Rows:
    """Return how near each row is to all known ones of each kind; in parts, since both are many."""
    known = known / LOCAL_STEPS
    squares, found = (known**2).sum(axis=1), []
    for part in np.array_split(rows / LOCAL_STEPS, 1 + len(rows) * len(known) // MOST_PAIRS):
        halves = part @ known.T - 0.5 * (squares + (part**2).sum(axis=1)[:, None])
        found.append(np.exp(np.minimum(halves, 0.0, out=halves), out=halves) @ kinds)
    return np.concatenate(found)


class _Likelihood:
    def __init__(
        self, trials: Sequence[Trial], inputs: Rows, sizes: tuple[Rows, Rows], scales: Rows
    ) -> None:
        # A peak says what tensors held, and that it was measured says that a device had room for
        # the rest.
        measured = [trial for trial in trials if trial.ran and trial.log_peak is not None]
        trials = [*trials, *(replace(trial, log_peak=None) for trial in measured)]
        rows = [trial.row for trial in trials]
        used, held = (size[rows] for size in sizes)
        self._inputs = inputs[rows] * scales
        self._peak = np.array(
            [np.nan if trial.log_peak is None else trial.log_peak for trial in trials]
        )
        self._known = np.isfinite(self._peak)
        self._inputs[self._known, -2] = (
            0.0  # the margin is between a peak and what a device has room for
        )
        self._inputs[~self._known, -1] = 0.0
        self._fill = np.where(self._known, held, used + LOG_MARGIN)
        self._ran = np.array([trial.ran for trial in trials]) & ~self._known
        self._failed = ~self._ran & ~self._known
        self._otherwise = np.array([1e-3 if trial.lacked_memory else CRASHES for trial in trials])[
            self._failed
        ]

    def starts(self) -> list[Rows]:
        """Return where to look for the mode: the prior's, and where half of what failed would lack
        memory.
        """
        none = np.zeros(self._inputs.shape[1])
        if not self._failed.any():
            return [none]
        moved = none.copy()
        moved[-2] = -np.median(self._fill[self._failed]) / self._inputs[self._failed, -2][0]
        return [none, moved]

    def cost(self, weights: Rows) -> tuple[float, Rows]:
        """Return the negative logarithm of the posterior, but for a constant, and its gradient."""
        need = self._fill + self._inputs @ weights
        value, slope = 0.5 * float(weights @ weights), np.zeros(len(need))
        off = (need - self._peak)[self._known] / PEAK_SCATTER
        value += (PEAK_FREEDOM + 1) / 2 * float(np.log1p(off**2 / PEAK_FREEDOM).sum())
        slope[self._known] = (PEAK_FREEDOM + 1) * off / (PEAK_FREEDOM + off**2) / PEAK_SCATTER
        room = -need / SCATTER
        log_density = -0.5 * room**2 - 0.5 * math.log(2 * math.pi)
        fits = log_ndtr(room[self._ran])
        value -= float(fits.sum())
        slope[self._ran] = np.exp(log_density[self._ran] - fits) / SCATTER
        fails = self._otherwise + (1 - self._otherwise) * ndtr(-room[self._failed])
        value -= float(np.log(fails).sum())
        slope[self._failed] = (
            -(1 - self._otherwise) * np.exp(log_density[self._failed]) / fails / SCATTER
        )
        return value, weights + self._inputs.T @ slope

    def curvature(self, weights: Rows) -> Rows:
        """Return what the trials add to the inverse covariance (Fisher's information, of probits
        near their middle).
        """
        of_peaks = (PEAK_FREEDOM + 1) / (PEAK_FREEDOM + 3) / PEAK_SCATTER**2
        room = -(self._fill + self._inputs @ weights) / SCATTER
        information = np.where(self._known, of_peaks, np.exp(-0.5 * room**2) / SCATTER**2)
        found: Rows = (self._inputs.T * information) @ self._inputs
        return found
