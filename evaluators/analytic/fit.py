"""Fitting the formulas' constants to measured step times, validated on rows that were held back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frontrunner.evaluators.analytic.accuracy_bounds import (
    FEWEST_PROBLEMS,
    prior_deviations,
    unvalidated,
)
from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.codes import FRONTRUNNER, coded, known_as
from frontrunner.evaluators.analytic.estimates import not_modelled
from frontrunner.evaluators.analytic.machine import BOUNDS, CODE_CONSTANTS, FITTED, Machine
from frontrunner.evaluators.analytic.priors import ALIKE, LEAST, NORMAL_95, moved, place
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.spaces.cluster import PRECISIONS, ByPrecision, Cluster, FittedCode, FittedConstant
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

Bounds = Mapping[str, tuple[float, float]]
LEAST_NOISE = 0.01
ROUNDS = 4
"""Fits, each with the noise that the one before left."""
MEDIAN_TO_DEVIATION = 1.4826
"""A normal's standard deviation over its median distance."""
FREEDOM = 4.0
"""Degrees of freedom of the Student-t noise: a row that is far off counts little; as is common."""
TOLERANCE = 1e-4
INSIDE = 0.3
MOST_STEPS = 60
FEWEST_ROWS = 5
"""A constant that changes fewer rows' times stays as it is, and fewer rows in all are not fitted
to.
"""
FELT = 0.02
"""A constant changes a row's time that differs by this share between the ends of the constant's
bounds.
"""
AT_END = 1e-3
"""Of the bounds' width: a constant so close to one of them is at it."""
FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class MostProbable:
    """The most probable constants, and the covariance that is left of their logarithms, or of a
    share's logit.
    """

    constants: Mapping[str, float]
    covariance: Rows


def most_probable(
    log_errors: Callable[[Mapping[str, float]], Rows],
    start: Mapping[str, float],
    bounds: Bounds,
    deviations: Mapping[str, float],
    guess: Mapping[str, float] | None = None,
) -> MostProbable:
    """Return the constants by maximum a posteriori: priors about `start`, and Student-t noise;
    `guess` is near them.

    `log_errors` returns log(predicted / measured) under some constants, over the standard deviation
    of each row.
    """
    from scipy.optimize import least_squares

    names = list(start)
    widths = np.array([deviations[name] for name in names])
    begin = {
        name: min(max(start[name], bounds[name][0], LEAST * shipped(name)), bounds[name][1])
        for name in names
    }
    low, high = (
        np.array([(place(name, bounds[name][side]) - place(name, begin[name])) for name in names])
        / widths
        for side in (0, 1)
    )

    def constants(at: Rows) -> dict[str, float]:
        steps = zip(names, (at * widths).tolist(), strict=True)
        return {
            name: min(max(float(moved(name, begin[name], by)), bounds[name][0]), bounds[name][1])
            for name, by in steps
        }

    def residuals(at: Rows) -> Rows:
        errors = log_errors(constants(at))
        return np.concatenate(
            [at, np.sign(errors) * np.sqrt((FREEDOM + 1) * np.log1p(errors**2 / FREEDOM))]
        )

    known = guess or begin
    at = np.array([place(name, known[name]) - place(name, begin[name]) for name in names]) / widths
    at = np.clip(at, low + INSIDE, high - INSIDE)  # at a bound the solver would stay there
    found = least_squares(residuals, at, bounds=(low, high), ftol=TOLERANCE, max_nfev=MOST_STEPS)
    left = np.linalg.inv(found.jac.T @ found.jac) * widths * widths[:, None]
    return MostProbable(constants=constants(found.x), covariance=left)


def shipped(name: str) -> float:
    """Return the constant that ships."""
    value: float = getattr(FRONTRUNNER if name in CODE_CONSTANTS else FITTED, name)
    return value


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Configurations of one cluster, precision and training code, one row each; a time that is not
    known is NaN.
    """

    cluster: Cluster
    precision: str
    code: TrainingCode
    work: Workload
    step_time_s: Rows
    problems: tuple[str, ...]

    def predicted_s(self, constants: Mapping[str, float]) -> Rows:
        """Return the formulas' step times with these constants in place of the cluster's, whatever
        was fitted to it.
        """
        cluster = replace(
            self.cluster, efficiencies={**self.cluster.efficiencies, **constants}, fitted=()
        )
        machine = Machine.of(cluster, self.precision, self.code)
        return np.broadcast_to(step_time(machine, self.work).total, len(self.problems))

    def rows(self, chosen: Flags) -> Sample:
        """Return the chosen rows."""
        problems = tuple(
            problem for problem, kept in zip(self.problems, chosen, strict=True) if kept
        )
        return replace(
            self,
            work=self.work.rows(chosen),
            step_time_s=self.step_time_s[chosen],
            problems=problems,
        )


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

    def by_code(self) -> dict[str, Samples]:
        """Return the rows of each training code by itself, under its name, most rows first."""
        found: dict[str, list[Sample]] = {}
        for sample in self.samples:
            found.setdefault(known_as(sample.code), []).append(sample)
        parts = {code: Samples(samples=tuple(own), refused={}) for code, own in found.items()}
        return dict(sorted(parts.items(), key=lambda part: -part[1].rows))


def are_of_one_machine(one: Problem, other: Problem) -> bool:
    """Return whether measurements of both tell of the same constants: same cluster, code and
    precision.
    """
    same = (one.software, one.precision) == (other.software, other.precision)
    return same and one.cluster.is_alike(other.cluster)


def samples_of_problems(outcomes: Sequence[tuple[Problem, Recipe, Outcome]]) -> Samples:
    """Return the measured recipes of several problems, the samples of each by itself."""
    problems: list[Problem] = []  # in the order of first occurrence; they are not hashable
    for problem, _, _ in outcomes:
        if problem not in problems:
            problems.append(problem)
    refused: Counter[str] = Counter()
    found: list[Sample] = []
    for number, problem in enumerate(problems, start=1):
        own = [(recipe, outcome) for of, recipe, outcome in outcomes if of == problem]
        part = samples_of_outcomes(own, problem, f"problem {number}")
        refused.update(part.refused)
        found += part.samples
    return Samples(samples=tuple(found), refused=refused)


def samples_of_outcomes(
    outcomes: Sequence[tuple[Recipe, Outcome]], problem: Problem, name: str = "the campaign's"
) -> Samples:
    """Return the measured recipes of a campaign, by the median of their steps."""
    refused: Counter[str] = Counter()
    kept: list[tuple[Recipe, float]] = []
    for recipe, outcome in outcomes:
        unknown = not_modelled(recipe) or next(iter(unvalidated(recipe, problem)), None)
        if not isinstance(outcome, Measurement):
            refused[f"failed: {outcome.kind}"] += 1
        elif unknown:
            refused[f"no fit covers {unknown}"] += 1
        else:
            kept.append((recipe, outcome.step_time_s_median))
    code = coded(problem.software)
    sample = Sample(
        cluster=problem.cluster,
        precision=problem.precision,
        code=code,
        work=Workload.of([recipe for recipe, _ in kept], problem, code.pipeline.layer_split),
        step_time_s=np.array([time_s for _, time_s in kept]),
        problems=(name,) * len(kept),
    )
    return Samples(samples=(sample,) if kept else (), refused=refused)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One efficiency before and after; `rows` are those whose time it changes. With few it is
    `held` as it was.

    `deviation` is the standard deviation that is left of its logarithm, or of a hidden share's
    logit; `correlations` are those with each fitted constant before it.
    """

    name: str
    before: float
    after: float
    rows: int
    held: bool
    deviation: float
    correlations: tuple[float, ...] = ()

    @property
    def range_95(self) -> tuple[float, float]:
        """What the constant may be with a probability of 95 %."""
        low, high = (
            moved(self.name, self.after, side * NORMAL_95 * self.deviation) for side in (-1, 1)
        )
        return max(low, BOUNDS[self.name][0]), min(high, BOUNDS[self.name][1])

    @property
    def at_the_end(self) -> bool:
        """Whether it moved to an end of its bounds: the times demand more than it can be."""
        low, high = BOUNDS[self.name]
        near = AT_END * (high - low)
        return min(self.after - low, high - self.after) < near < abs(self.after - self.before)


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """Constants fitted to all rows of a training code, and mean errors of step time on rows while
    they were held back.

    Errors are shares; `nodes` is the most that a row had.
    """

    code: str
    constants: tuple[Constant, ...]
    rows: int
    problems: int
    nodes: int
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

    def for_cluster_file(self, source: str) -> FittedCode:
        """Return what a cluster file holds of the fit."""
        return FittedCode(
            code=self.code,
            rows=self.rows,
            problems=self.problems,
            nodes=self.nodes,
            error=self.expected_error,
            constants=_for_cluster(self.constants),
            source=source,
        )


@dataclass(frozen=True, kw_only=True)
class StepFits:
    """A fit for each training code, most rows first, and how many rows were left out, by reason."""

    fits: tuple[StepFit, ...]
    refused: Mapping[str, int]


def fit_steps(measured: Samples) -> StepFits:
    """Fit to the steps of each training code by itself. Raises `InvalidInput` where none has
    `FEWEST_ROWS` rows.
    """
    parts, refused = measured.by_code(), Counter(measured.refused)
    for code, own in parts.items():
        if own.rows < FEWEST_ROWS:
            refused[f"steps of {code}, of which a fit needs {FEWEST_ROWS}"] = own.rows
    fits = tuple(_fit_code(code, own) for code, own in parts.items() if own.rows >= FEWEST_ROWS)
    if not fits:
        reasons = (
            "; ".join(f"{count} x {reason}" for reason, count in refused.items())
            or "there are no rows"
        )
        raise InvalidInput(
            f"no training code has {FEWEST_ROWS} rows that can be fitted to: {reasons}"
        )
    return StepFits(fits=fits, refused=refused)


def _fit_code(code: str, measured: Samples) -> StepFit:
    """Fit, hold back, and judge."""
    times, problems = measured.step_time_s, sorted(set(measured.problems))
    # Each row is held back with the same part at every call.
    by_problem = len(problems) >= FEWEST_PROBLEMS
    places = (
        [problems.index(one) for one in measured.problems] if by_problem else range(measured.rows)
    )
    parts = np.array(places) % min(FOLDS, len(problems) if by_problem else FOLDS)
    held_back = np.empty(measured.rows)
    for part in np.unique(parts):
        chosen = parts == part
        found, _ = _fit(measured, ~chosen)
        held_back[chosen] = measured.predicted_s(found.constants)[chosen]
    before, after = (np.abs(found / times - 1) for found in (measured.predicted_s({}), held_back))
    precisions = np.array(
        [sample.precision for sample in measured.samples for _ in sample.problems]
    )
    by_precision = {
        name: float(after[precisions == name].mean()) for name in PRECISIONS if name in precisions
    }
    return StepFit(
        code=code,
        constants=_constants(measured),
        rows=measured.rows,
        problems=len(problems),
        nodes=_most_nodes(measured),
        by_problem=by_problem,
        folds=int(parts.max()) + 1,
        error_before=float(before.mean()),
        error_after=float(after.mean()),
        median_error_before=float(np.median(before)),
        median_error_after=float(np.median(after)),
        expected_error=ByPrecision(**by_precision),
    )


def _most_nodes(measured: Samples) -> int:
    return max(
        math.ceil(float(one.work.degrees.devices.max()) / one.cluster.devices_per_node)
        for one in measured.samples
    )


def _for_cluster(constants: Sequence[Constant]) -> tuple[FittedConstant, ...]:
    return tuple(
        FittedConstant(
            name=one.name, value=one.after, deviation=one.deviation, correlations=one.correlations
        )
        for one in constants
        if not one.held
    )


def _constants(measured: Samples) -> tuple[Constant, ...]:
    """Return all constants as fitted to all rows, or as they were held."""
    best, felt = _fit(measured, np.ones(measured.rows, dtype=bool))
    first, deviations = measured.samples[0], np.sqrt(np.diag(best.covariance))
    priors = prior_deviations(first.cluster, first.precision)
    places = {name: at for at, name in enumerate(best.constants)}
    correlations = (best.covariance / deviations / deviations[:, None]).tolist()
    return tuple(
        Constant(
            name=name,
            before=old,
            after=best.constants.get(name, old),
            rows=felt[name],
            held=name not in places,
            deviation=priors[name] if name not in places else float(deviations[places[name]]),
            correlations=()
            if name not in places
            else tuple(correlations[places[name]][: places[name]]),
        )
        for name, old in _start(measured).items()
    )


def refit(measured: Samples) -> FittedCode | None:
    """Return the most probable constants of one code as `fit_steps` finds them; None for fewer than
    `FEWEST_ROWS` rows.

    Nothing is held back: the error is that of the rows themselves.
    """
    if measured.rows < FEWEST_ROWS:
        return None
    constants = _constants(measured)
    after = measured.predicted_s({one.name: one.after for one in constants})
    error = float(np.abs(after / measured.step_time_s - 1).mean())
    return FittedCode(
        code=known_as(measured.samples[0].code),
        rows=measured.rows,
        problems=len(set(measured.problems)),
        nodes=_most_nodes(measured),
        error=ByPrecision(**{measured.samples[0].precision: max(error, LEAST_NOISE)}),
        constants=_for_cluster(constants),
        source="earlier outcomes",
    )


def _fit(measured: Samples, chosen: Flags) -> tuple[MostProbable, dict[str, int]]:
    """Fit to the chosen rows the constants that enough of them feel; also return how many rows feel
    each.
    """
    felt = {}
    for name, ends in BOUNDS.items():
        low, high = (measured.predicted_s({name: end})[chosen] for end in ends)
        felt[name] = int((np.abs(high / low - 1) > FELT).sum())
    found = MostProbable(constants={}, covariance=np.empty((0, 0)))
    start = {name: value for name, value in _start(measured).items() if felt[name] >= FEWEST_ROWS}
    first, times = measured.samples[0], measured.step_time_s[chosen]
    priors = prior_deviations(first.cluster, first.precision)
    kept = [problem for problem, is_kept in zip(measured.problems, chosen, strict=True) if is_kept]
    counts = Counter(kept)
    shared = np.sqrt([1 + ALIKE * (counts[problem] - 1) for problem in kept])

    def log_errors(constants: Mapping[str, float]) -> Rows:
        errors: Rows = np.log(measured.predicted_s(constants)[chosen] / times)
        return errors

    for _ in range(ROUNDS if start else 0):
        noise = max(
            float(np.median(np.abs(log_errors(found.constants)))) * MEDIAN_TO_DEVIATION, LEAST_NOISE
        )

        def scaled(constants: Mapping[str, float], scale: Rows = noise * shared) -> Rows:
            return log_errors(constants) / scale

        found = most_probable(scaled, start, BOUNDS, priors, found.constants)
    return found, felt


def _start(measured: Samples) -> dict[str, float]:
    first = measured.samples[0]
    return Machine.of(replace(first.cluster, fitted=()), first.precision, first.code).constants()
