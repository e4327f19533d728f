"""Fitting the formulas' constants to measured step times, validated on rows that were held back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frontrunner.evaluators.analytic.accuracy_bounds import unvalidated
from frontrunner.evaluators.analytic.estimates import not_modelled
from frontrunner.evaluators.analytic.machine import BOUNDS, FITTED, SOFTWARE_CONSTANTS, Machine
from frontrunner.evaluators.analytic.software import FRONTRUNNER, Software
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Flags, Rows, Workload
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.spaces.cluster import PRECISIONS, ByPrecision, Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

Bounds = Mapping[str, tuple[float, float]]
PULL = 0.03
"""Cost of a whole range away from the start, against a root mean square error; assumed."""
OUTLIER = 0.05
"""From about this share on errors count less than squared; assumed."""
TOLERANCE = 1e-4
MOST_STEPS = 60
FEWEST_ROWS = 5
"""A constant that changes fewer rows' times stays as it is, and fewer rows in all are not fitted to."""
FELT = 0.02
"""A constant changes a row's time that differs by this share between the ends of the constant's bounds."""
AT_END = 1e-3
"""Of the bounds' width: a constant so close to one of them is at it."""
FOLDS = 5
FEWEST_PROBLEMS = 3


def least_squares(
    log_errors: Callable[[Mapping[str, float]], Rows], start: Mapping[str, float], bounds: Bounds
) -> dict[str, float]:
    """Return the constants with the least errors, each pulled to where it starts; outliers count little.

    `log_errors` returns log(predicted / measured) under some constants, over the root of the number of rows.
    """
    from scipy.optimize import least_squares as solve

    low, high = (np.array([bounds[name][side] for name in start]) for side in (0, 1))
    begin = np.clip((np.array(list(start.values())) - low) / (high - low), 0, 1)

    def constants(place: Rows) -> dict[str, float]:
        return dict(zip(start, (low + place * (high - low)).tolist(), strict=True))

    def residuals(place: Rows) -> Rows:
        return np.concatenate([PULL * (place - begin), log_errors(constants(place))])

    found = solve(residuals, begin, bounds=(0, 1), loss="soft_l1", f_scale=OUTLIER, ftol=TOLERANCE, max_nfev=MOST_STEPS)
    return constants(found.x)


def shipped(name: str) -> float:
    """Return the constant that ships."""
    value: float = getattr(FRONTRUNNER if name in SOFTWARE_CONSTANTS else FITTED, name)
    return value


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Configurations of one cluster, precision and training code, one row each; a time that is not known is NaN."""

    cluster: Cluster
    precision: str
    software: Software
    work: Workload
    step_time_s: Rows
    problems: tuple[str, ...]

    def predicted_s(self, constants: Mapping[str, float]) -> Rows:
        """Return the formulas' step times with these constants in place of the cluster's."""
        cluster = replace(self.cluster, efficiencies={**self.cluster.efficiencies, **constants})
        machine = Machine.of(cluster, self.precision, self.software)
        return np.broadcast_to(step_time(machine, self.work).total, len(self.problems))

    def rows(self, chosen: Flags) -> Sample:
        """Return the chosen rows."""
        problems = tuple(problem for problem, kept in zip(self.problems, chosen, strict=True) if kept)
        return replace(self, work=self.work.rows(chosen), step_time_s=self.step_time_s[chosen], problems=problems)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """All measured rows that are fitted to, and how many were refused, by reason."""

    samples: tuple[Sample, ...]
    refused: Mapping[str, int]

    @property
    def rows(self) -> int:
        """The number of rows of all samples together."""
        return sum(len(sample.problems) for sample in self.samples)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problem of each row, in the order of the samples."""
        return tuple(problem for sample in self.samples for problem in sample.problems)

    @property
    def step_time_s(self) -> Rows:
        """The measured time of each row."""
        return np.concatenate([sample.step_time_s for sample in self.samples])

    def predicted_s(self, constants: Mapping[str, float]) -> Rows:
        """Return the formulas' step times of all rows with these constants."""
        return np.concatenate([sample.predicted_s(constants) for sample in self.samples])


def samples_of_outcomes(outcomes: Sequence[tuple[Recipe, Outcome]], problem: Problem) -> Samples:
    """Return the measured recipes of a campaign, by the median of their steps."""
    refused: Counter[str] = Counter()
    kept: list[tuple[Recipe, float]] = []
    for recipe, outcome in outcomes:
        unknown = not_modelled(recipe) or next(iter(unvalidated(recipe)), None)
        if not isinstance(outcome, Measurement):
            refused[f"failed: {outcome.kind}"] += 1
        elif unknown:
            refused[f"no fit covers {unknown}"] += 1
        else:
            kept.append((recipe, outcome.step_time_s_median))
    sample = Sample(
        cluster=problem.cluster,
        precision=problem.precision,
        software=FRONTRUNNER,
        work=Workload.of([recipe for recipe, _ in kept], problem),
        step_time_s=np.array([time_s for _, time_s in kept]),
        problems=("the campaign's",) * len(kept),
    )
    return Samples(samples=(sample,) if kept else (), refused=refused)


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
        """Whether it moved to an end of its bounds: the times demand more than it can be."""
        low, high = BOUNDS[self.name]
        near = AT_END * (high - low)
        return min(self.after - low, high - self.after) < near < abs(self.after - self.before)


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """Constants fitted to all rows, and mean errors of step time, as shares, on rows while they were held back."""

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
    expected_error: ByPrecision

    @property
    def efficiencies(self) -> dict[str, float]:
        """The constants that were fitted, by name."""
        return {constant.name: constant.after for constant in self.constants if not constant.held}


def fit_steps(measured: Samples) -> StepFit:
    """Fit, hold back, and judge. Raises `InvalidInput` for fewer than `FEWEST_ROWS` rows."""
    if measured.rows < FEWEST_ROWS:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in measured.refused.items()) or "there are no more"
        raise InvalidInput(f"{measured.rows} rows can be fitted to, of at least {FEWEST_ROWS}: {reasons}")
    times, problems = measured.step_time_s, sorted(set(measured.problems))
    # Each row is held back with the same part at every call.
    by_problem = len(problems) >= FEWEST_PROBLEMS
    places = [problems.index(one) for one in measured.problems] if by_problem else range(measured.rows)
    parts = np.array(places) % min(FOLDS, len(problems) if by_problem else FOLDS)
    held_back = np.empty(measured.rows)
    for part in np.unique(parts):
        chosen = parts == part
        fitted, _ = _fit(measured, ~chosen)
        held_back[chosen] = measured.predicted_s(fitted)[chosen]
    before, after = (np.abs(found / times - 1) for found in (measured.predicted_s({}), held_back))
    fitted, felt = _fit(measured, np.ones(measured.rows, dtype=bool))
    precisions = np.array([sample.precision for sample in measured.samples for _ in sample.problems])
    by_precision = {name: float(after[precisions == name].mean()) for name in PRECISIONS if name in precisions}
    return StepFit(
        constants=tuple(
            Constant(name=name, before=old, after=fitted.get(name, old), rows=felt[name], held=name not in fitted)
            for name, old in _start(measured).items()
        ),
        rows=measured.rows,
        refused=measured.refused,
        problems=len(problems),
        by_problem=by_problem,
        folds=int(parts.max()) + 1,
        error_before=float(before.mean()),
        error_after=float(after.mean()),
        median_error_before=float(np.median(before)),
        median_error_after=float(np.median(after)),
        expected_error=ByPrecision(**by_precision),
    )


def _fit(measured: Samples, chosen: Flags) -> tuple[dict[str, float], dict[str, int]]:
    """Fit to the chosen rows the constants that enough of them feel; also return how many rows feel each."""
    felt = {}
    for name, ends in BOUNDS.items():
        low, high = (measured.predicted_s({name: end})[chosen] for end in ends)
        felt[name] = int((np.abs(high / low - 1) > FELT).sum())
    start = {name: value for name, value in _start(measured).items() if felt[name] >= FEWEST_ROWS}
    if not start:
        return {}, felt
    times = measured.step_time_s[chosen]

    def log_errors(constants: Mapping[str, float]) -> Rows:
        errors: Rows = np.log(measured.predicted_s(constants)[chosen] / times) / np.sqrt(len(times))
        return errors

    return least_squares(log_errors, start, BOUNDS), felt


def _start(measured: Samples) -> dict[str, float]:
    stated = measured.samples[0].cluster.efficiencies
    return {name: stated.get(name, shipped(name)) for name in BOUNDS}
