"""Fitting the formulas' constants to measured step times, judged on rows that were held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from frontrunner.evaluators.analytic.least_errors import BOUNDS, least_errors, shipped
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Rows
from frontrunner.spaces.cluster import PRECISIONS, ExpectedError
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.calibration.samples import Sample, Samples

FEWEST_ROWS = 5
"""A constant that changes fewer rows' times stays as it is, and fewer rows in all are not fitted to."""
FELT = 0.02
"""A constant changes a row's time that is off by this share between the ends of the constant's bounds."""
AT_END = 1e-3
"""Of the bounds' width: a constant so close to one of them is at it."""
FOLDS = 5
FEWEST_PROBLEMS = 3
"""From so many problems on whole problems are held back, below that every fifth row."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One efficiency before and after; `rows` are those whose time it changes. With few it is `held` as it was."""

    name: str
    before: float
    after: float
    rows: int
    held: bool

    @property
    def at_the_end(self) -> bool:
        """Whether it moved to an end of its bounds: the times ask for more than it can be."""
        low, high = BOUNDS[self.name]
        near = AT_END * (high - low)
        return min(self.after - low, high - self.after) < near < abs(self.after - self.before)


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """Constants fitted to all rows, and mean errors of step time, as shares, on rows while they were held back.

    `error_before` is that of the constants that the cluster had before, on the same rows; `by_problem` says whether
    whole problems were held back, in `folds` parts.
    """

    constants: tuple[Constant, ...]
    rows: int
    refused: Mapping[str, int]
    problems: int
    by_problem: bool
    folds: int
    error_before: float
    error_after: float
    median_error_before: float
    median_error_after: float
    expected_error: ExpectedError

    @property
    def efficiencies(self) -> dict[str, float]:
        """The constants that were fitted, by name."""
        return {constant.name: constant.after for constant in self.constants if not constant.held}


def fit_steps(measured: Samples) -> StepFit:
    """Fit, hold back, and judge. Raises `InvalidInput` for fewer than `FEWEST_ROWS` rows."""
    if measured.rows < FEWEST_ROWS:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in measured.refused.items()) or "there are no more"
        raise InvalidInput(f"{measured.rows} rows can be fitted to, of at least {FEWEST_ROWS}: {reasons}")
    times, whole = _times(measured.samples), _Fit(measured.samples, np.ones(measured.rows, dtype=bool))
    parts, by_problem = _parts(measured.problems)
    before = np.abs(_predicted(measured.samples, {}) / times - 1)
    after = np.abs(_held_back(measured, parts) / times - 1)
    fitted = whole.best()
    return StepFit(
        constants=tuple(whole.constant(name, fitted) for name in BOUNDS),
        rows=measured.rows,
        refused=measured.refused,
        problems=len(set(measured.problems)),
        by_problem=by_problem,
        folds=int(parts.max()) + 1,
        error_before=float(before.mean()),
        error_after=float(after.mean()),
        median_error_before=float(np.median(before)),
        median_error_after=float(np.median(after)),
        expected_error=_by_precision(measured, after),
    )


def _held_back(measured: Samples, parts: np.ndarray) -> Rows:
    """The step time of each row by constants fitted to the other parts."""
    told = np.empty(measured.rows)
    for part in range(parts.max() + 1):
        held_back = parts == part
        told[held_back] = _predicted(measured.samples, _Fit(measured.samples, ~held_back).best())[held_back]
    return told


def _by_precision(measured: Samples, errors: Rows) -> ExpectedError:
    precisions = np.array([sample.precision for sample in measured.samples for _ in sample.problems])
    found = {name: errors[precisions == name] for name in PRECISIONS}
    return ExpectedError(**{name: float(part.mean()) if len(part) else None for name, part in found.items()})


def _times(samples: Sequence[Sample]) -> Rows:
    return np.concatenate([sample.step_time_s for sample in samples])


def _predicted(samples: Sequence[Sample], constants: Mapping[str, float]) -> Rows:
    """Step times in seconds of all rows, with these constants in place of their clusters'."""
    found = []
    for sample in samples:
        cluster = replace(sample.cluster, efficiencies={**sample.cluster.efficiencies, **constants})
        machine = Machine.of(cluster, sample.precision, sample.software)
        found.append(np.broadcast_to(step_time(machine, sample.work).total, len(sample.problems)))
    return np.concatenate(found)


def _parts(problems: Sequence[str]) -> tuple[np.ndarray, bool]:
    """Which part each row is held back with, the same at every call, and whether parts are whole problems."""
    names = sorted(set(problems))
    if len(names) >= FEWEST_PROBLEMS:
        return np.array([names.index(problem) % min(FOLDS, len(names)) for problem in problems]), True
    return np.arange(len(problems)) % FOLDS, False


class _Fit:
    """One fit, to the `chosen` rows of the samples."""

    def __init__(self, samples: Sequence[Sample], chosen: np.ndarray) -> None:
        self._samples = samples
        self._chosen = chosen
        stated = samples[0].cluster.efficiencies
        self._start = {name: stated.get(name, shipped(name)) for name in BOUNDS}
        self._rows = {name: self._changed(name) for name in BOUNDS}
        self._names = [name for name in BOUNDS if self._rows[name] >= FEWEST_ROWS]

    def _changed(self, name: str) -> int:
        """How many of the chosen rows feel the constant."""
        low, high = (_predicted(self._samples, {name: end})[self._chosen] for end in BOUNDS[name])
        return int((np.abs(high / low - 1) > FELT).sum())

    def best(self) -> dict[str, float]:
        """The constants with the least errors, pulled to where the cluster has them: see `least_errors`."""
        if not self._names:
            return {}
        times = _times(self._samples)[self._chosen]

        def log_errors(constants: Mapping[str, float]) -> Rows:
            told = _predicted(self._samples, constants)[self._chosen]
            errors: Rows = np.log(told / times) / np.sqrt(len(times))
            return errors

        return least_errors(log_errors, {name: self._start[name] for name in self._names}, BOUNDS)

    def constant(self, name: str, after: Mapping[str, float]) -> Constant:
        """One constant, before and after."""
        start = self._start[name]
        return Constant(
            name=name, before=start, after=after.get(name, start), rows=self._rows[name], held=name not in after
        )
