"""Estimates of recipes by the formulas: step time, speed and memory, as a table and as the plan of
a space.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.accuracy_bounds import (
    BOUNDED,
    Trust,
    has_times,
    log_bounds,
    log_gain_over_first,
    mean_error,
    trust_in,
    unvalidated,
)
from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.codes import ENGINES, coded
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import (
    FITTING,
    PeakMemory,
    fit,
    fullest_parameters,
    host_memory,
    log_deviation,
    peak_memory,
    verdict,
)
from frontrunner.evaluators.analytic.priors import NORMAL_95
from frontrunner.evaluators.analytic.step import StepTime, step_time
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.runs.measure import rates
from frontrunner.results.displayed_rows import frame_of
from frontrunner.spaces.columns import chosen, each
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.pareto import pareto_front
from frontrunner.spaces.problem import Problem, Training
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

if TYPE_CHECKING:
    import pandas as pd

ROWS_AT_ONCE = 16_384
"""Rows per block: the arrays in between fit a core's cache, which is 1.5 times as fast as half a
million at once.
"""

AT_HAND = 10
"""How many of its best estimates a plan keeps; the error that it states is their mean."""
NORMAL_90 = 1.282
"""Of a normal's values, 90 % are below its mean plus so many standard deviations."""
LARGE_DEVIATION = 0.5
"""Of the logarithm of a peak; above it most of the peak is what libraries take; assumed."""
SURE = 4.0
"""Standard deviations of a peak's logarithm above a device's memory from which a recipe surely does
not fit; chosen on measured tables (docs/measurements.md).
"""
WORTH_NAMING = 0.1
"""From this share of a step on, what is not computing counts as what limits a recipe."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The formulas' results for one recipe.

    Parts add up to `step_time_s` and `peak_memory_bytes` (the fullest rank's); `fit` is one of
    `memory.FITTING` or `memory.TOO_LARGE`. `limit` is the largest part that is not computing, or
    "compute", or "memory" where it does not fit; `unjudged` are choices whose formulas are not
    validated. 95 of 100 measured times should lie within `step_time_bounds_s`, which is a mean
    error of `expected_error`; what was measured is `Trust.accuracy`. The memory is what a device
    must hold; 95 of 100 peaks should lie within
    `peak_memory_bounds_bytes`. `training` is what all its tokens take. Where the device's peak is
    assumed nothing that follows from time is an estimate: it is None, and `step_parts_s` is empty.
    """

    recipe_id: str
    recipe: Recipe
    step_time_s: float | None
    tokens_per_s: float | None
    model_tflops_per_device: float | None
    mfu: float | None
    peak_memory_bytes: int
    host_memory_bytes_per_rank: int
    fit: str
    limit: str | None
    step_parts_s: Mapping[str, float]
    memory_parts_bytes: Mapping[str, float]
    unjudged: tuple[str, ...]
    expected_error: float | None
    step_time_bounds_s: tuple[float, float] | None
    peak_memory_bounds_bytes: tuple[int, int]
    training: Training | None = None

    @property
    def tokens_per_s_bounds(self) -> tuple[float, float] | None:
        """The rates at the bounds of the step time, the lower first."""
        if self.step_time_bounds_s is None or self.tokens_per_s is None or self.step_time_s is None:
            return None
        fast, slow = (
            self.tokens_per_s * self.step_time_s / bound for bound in self.step_time_bounds_s
        )
        return slow, fast

    @property
    def step_time_p90_s(self) -> float | None:
        """The 90th percentile: 90 of 100 measured step times should be at most this long."""
        if self.step_time_bounds_s is None or self.step_time_s is None:
            return None
        above = math.log(self.step_time_bounds_s[1] / self.step_time_s)
        return self.step_time_s * math.exp(NORMAL_90 / NORMAL_95 * above)

    @property
    def fits(self) -> bool:
        """Whether the peak is at most a device's memory, if perhaps not for sure."""
        return self.fit in FITTING

    @property
    def allocated_memory_bytes(self) -> int:
        """The part of the peak that tensors hold, as torch's `max_memory_allocated`."""
        return int(self.peak_memory_bytes - self.memory_parts_bytes["runtime"])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EstimateTable(Sequence[Estimate]):
    """Estimates of one problem's recipes as columns; a row becomes an `Estimate` when looked at.

    `rate` is what `order` compares, one of `pareto.RATES`.
    """

    recipes: Sequence[Recipe]
    problem: Problem
    step_time_s: Rows
    peak_memory_bytes: Rows
    rate: str = "tokens"

    def __len__(self) -> int:
        return len(self.recipes)

    def __repr__(self) -> str:
        return f"<{len(self):,} estimates>"

    def __getitem__(self, row: int) -> Estimate:  # type: ignore[override]
        return self.of([row])[0]

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.of(range(len(self))))

    def of(self, rows: Sequence[int]) -> tuple[Estimate, ...]:
        """Return the estimates of these rows, with parts and intervals: 33 times the work of their
        times alone.
        """
        recipes = [self.recipes[row] for row in rows]
        known = [has_times(self.problem, recipe.engine) for recipe in recipes]
        ends, off = np.zeros((2, len(recipes))), np.zeros(len(recipes))
        times = {field.name: np.zeros(len(recipes)) for field in fields(StepTime)}
        sizes = {field.name: np.zeros(len(recipes)) for field in fields(PeakMemory)}
        on_host = np.zeros(len(recipes))
        others = ({*unvalidated(recipe, self.problem)} - BOUNDED for recipe in recipes)
        unjudged = np.fromiter(map(bool, others), dtype=np.bool_)
        cluster, precision = self.problem.cluster, self.problem.precision
        for places, machine, work in blocks(recipes, self.problem):
            of = (cluster, precision, machine.code, work)
            ends[:, places] = log_bounds(*of, unjudged[places])
            peak = peak_memory(machine, work)
            off[places] = log_deviation(machine, work, peak)
            on_host[places] = host_memory(machine, work, fullest_parameters(machine, work))
            for columns, parts in ((times, step_time(machine, work)), (sizes, peak)):
                for name, column in columns.items():
                    column[places] = getattr(parts, name)
        return tuple(
            self._one(
                row,
                recipe,
                {name: float(column[at]) for name, column in times.items()},
                {name: float(column[at]) for name, column in sizes.items()},
                int(on_host[at]),
                (float(ends[0, at]), float(ends[1, at])) if known[at] else None,
                float(off[at]),
            )
            for at, (row, recipe) in enumerate(zip(rows, recipes, strict=True))
        )

    def _one(  # noqa: PLR0913, PLR0917 - what the formulas say of one row
        self,
        row: int,
        recipe: Recipe,
        step_parts: Mapping[str, float],
        memory_parts: Mapping[str, float],
        host_memory_bytes: int,
        log_ends: tuple[float, float] | None,
        size_deviation: float,
    ) -> Estimate:
        time_s, peak = float(self.step_time_s[row]), float(self.peak_memory_bytes[row])
        waits = {name: seconds for name, seconds in step_parts.items() if name != "compute"}
        longest = max(waits, key=lambda name: waits[name])
        limit = longest if waits[longest] >= WORTH_NAMING * time_s else "compute"
        rate = rates(recipe, self.problem, time_s) if log_ends is not None else {}
        bounds = memory_bounds(peak, size_deviation)
        judged = verdict(peak, self.problem.cluster.memory_bytes_per_device, bounds)
        return Estimate(
            recipe_id=recipe_id(self.problem, recipe),
            recipe=recipe,
            step_time_s=None if log_ends is None else time_s,
            tokens_per_s=rate.get("tokens_per_s"),
            model_tflops_per_device=rate.get("model_tflops_per_device"),
            mfu=rate.get("mfu"),
            peak_memory_bytes=int(peak),
            host_memory_bytes_per_rank=host_memory_bytes,
            fit=judged,
            limit="memory" if judged not in FITTING else None if log_ends is None else limit,
            step_parts_s={} if log_ends is None else step_parts,
            memory_parts_bytes=memory_parts,
            unjudged=unvalidated(recipe, self.problem),
            expected_error=None if log_ends is None else mean_error(*log_ends),
            step_time_bounds_s=None if log_ends is None else scaled(time_s, log_ends),
            peak_memory_bounds_bytes=bounds,
            training=self.problem.training(recipe, rate.get("tokens_per_s")),
        )

    @cached_property
    def tokens_per_s(self) -> Rows:
        """global_batch_seqs * sequence_length / step_time_s."""
        sequences = each(self.recipes, attrgetter("global_batch_seqs"), np.float64)
        return sequences * self.problem.sequence_length / self.step_time_s

    @cached_property
    def fit(self) -> npt.NDArray[np.intp]:
        """Whether each recipe fits (0), does so tightly (1) or does not (2), by the estimate
        alone.
        """
        return fit(self.peak_memory_bytes, self.problem.cluster.memory_bytes_per_device)

    @cached_property
    def order(self) -> npt.NDArray[np.intp]:
        """The rows that fit, best first, the tight ones, likewise, and the others, smallest
        first.
        """
        divisors = each(
            self.recipes, lambda recipe: self.problem.divisor(self.rate, recipe), np.float64
        )
        rates = self.tokens_per_s / divisors
        worth = np.where(self.fit < 2, -rates, self.peak_memory_bytes)
        return np.lexsort((worth, self.fit))

    def undecided(self, rows: Sequence[int]) -> int:
        """Return how many of these rows may have a higher rate than the first of them.

        Rows that fit as well as the first are compared. The errors that both estimates share do
        not count, unless their training codes differ.
        """
        rows = [row for row in rows if self.fit[row] == self.fit[rows[0]]]
        recipes = [self.recipes[row] for row in rows]
        if not rows or not has_times(self.problem, recipes[0].engine):
            return 0
        divisors = [self.problem.divisor(self.rate, recipe) for recipe in recipes]
        rates = self.tokens_per_s[rows] / np.array(divisors)
        others = ({*unvalidated(recipe, self.problem)} - BOUNDED for recipe in recipes)
        unjudged = np.fromiter(map(bool, others), dtype=np.bool_)
        cluster, precision = self.problem.cluster, self.problem.precision
        ends, closer = np.zeros((2, len(rows))), np.full(len(rows), np.nan)
        for places, machine, work in blocks(recipes, self.problem):
            of = (cluster, precision, machine.code, work, unjudged[places])
            ends[:, places] = log_bounds(*of)
            if places[0] == 0:
                closer[places] = log_gain_over_first(*of)
        of_other_codes = np.isnan(closer)
        closer[of_other_codes] = np.hypot(ends[0, of_other_codes], ends[1, 0])
        return int(np.count_nonzero(np.log(rates[0] / rates[1:]) < closer[1:]))

    @property
    def fitting(self) -> int:
        """The number of recipes that fit, tight ones included; their rows are the first of
        `order`.
        """
        return int(np.count_nonzero(self.fit < 2))

    @property
    def tight(self) -> int:
        """The number of those that are tight."""
        return int(np.count_nonzero(self.fit == 1))


def memory_bounds(peak_bytes: float, deviation: float) -> tuple[int, int]:
    """Return the 95 % interval of a peak, whose logarithm has this standard deviation.

    Beyond `LARGE_DEVIATION` the upper end grows in proportion: parts that are that uncertain are
    added to others and multiply nothing.
    """
    lower = peak_bytes * math.exp(-NORMAL_95 * deviation)
    upper = math.exp(NORMAL_95 * min(deviation, LARGE_DEVIATION))
    upper += NORMAL_95 * max(deviation - LARGE_DEVIATION, 0.0)
    return int(lower), int(peak_bytes * upper)


def scaled(value: float, log_ends: tuple[float, float]) -> tuple[float, float]:
    """Return a value's bounds, from how far they are below and above as logarithms."""
    below, above = log_ends
    return value * math.exp(-below), value * math.exp(above)


@dataclass(frozen=True, kw_only=True)
class ShownPlan(Trust, Displayed):
    """A plan for programs: `fitting` of `legal` recipes fit, `tight` ones included, with the first
    `estimates`.

    `front` has the first of the `front_recipes` that no other beats in both speed and memory.
    `undecided` of the first `AT_HAND` recipes may be faster than the first of them. A token goes
    through `active_parameters` of the model's `parameters`.
    """

    parameters: int
    active_parameters: int
    legal: int
    fitting: int
    tight: int
    not_modelled: Mapping[str, int]
    memory_limit_bytes: int
    estimates: tuple[Estimate, ...]
    front: tuple[Estimate, ...]
    front_recipes: int
    undecided: int = 0
    rate: str = "tokens"


@dataclass(frozen=True, kw_only=True)
class Plan(Displayed):
    """The estimates of a space; `not_modelled` counts the legal recipes that the formulas omit, by
    reason. `at_hand` are the first estimates in the table's order, of which `undecided` may be
    faster than the first.
    """

    table: EstimateTable
    not_modelled: Mapping[str, int]
    trust: Trust
    at_hand: tuple[Estimate, ...]
    undecided: int = 0

    @property
    def legal(self) -> int:
        """The number of legal recipes, estimated or not."""
        return len(self.table) + sum(self.not_modelled.values())

    @property
    def memory_limit_bytes(self) -> int:
        """A device's memory."""
        return self.table.problem.cluster.memory_bytes_per_device

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """All estimates, in the order of the table."""
        return self.table.of(self.table.order.tolist())

    def fastest(self, top: int) -> tuple[Estimate, ...]:
        """Return the first `top` recipes that fit, best first, the tight ones after all others."""
        top = min(top, self.table.fitting)
        if top <= len(self.at_hand):
            return self.at_hand[:top]
        return self.table.of(self.table.order[:top].tolist())

    @cached_property
    def front(self) -> tuple[Estimate, ...]:
        """The fitting recipes that no other beats in both speed and memory, fastest first."""
        rows = self.table.order[: self.table.fitting]
        leading = rows[
            np.lexsort((self.table.peak_memory_bytes[rows], -self.table.tokens_per_s[rows]))
        ]
        sizes = self.table.peak_memory_bytes[leading]
        rows = leading[
            sizes <= np.minimum.accumulate(sizes)
        ]  # the others are beaten by a faster one
        points = np.stack(
            [self.table.tokens_per_s[rows], -self.table.peak_memory_bytes[rows]], axis=1
        ).tolist()
        best = sorted(pareto_front(points), key=lambda place: -points[place][0])
        return self.table.of(rows[best].tolist())

    def to_frame(self, top: int = 1000) -> pd.DataFrame:
        """Return the `top` fastest recipes that fit as a data frame, a row each; `attrs` has
        `Trust.why_no_times`.
        """
        frame = frame_of(self.fastest(top))
        frame.attrs["why_no_times"] = self.trust.why_no_times
        return frame

    def shown(self, top: int) -> ShownPlan:
        """Return the plan for programs, with its `top` fastest estimates, and as many of its
        front.
        """
        model = self.table.problem.model
        return ShownPlan(
            parameters=model.parameters,
            active_parameters=model.active_parameters,
            legal=self.legal,
            fitting=self.table.fitting,
            tight=self.table.tight,
            not_modelled=self.not_modelled,
            memory_limit_bytes=self.memory_limit_bytes,
            estimates=self.fastest(top),
            front=self.front[:top],
            front_recipes=len(self.front),
            undecided=self.undecided,
            rate=self.table.rate,
            **vars(self.trust),
        )


def plan(recipes: Sequence[Recipe], problem: Problem, rate: str = "tokens") -> Plan:
    """Estimate legal recipes of one problem; the best have the highest `rate`, one of
    `pareto.RATES`.
    """
    reasons = each(recipes, not_modelled)
    omitted = Counter(reason for reason in reasons.tolist() if reason is not None)
    known = chosen(recipes, np.flatnonzero(reasons == None)) if omitted else recipes  # noqa: E711 - of each row
    table = replace(estimate_many(known, problem), rate=rate)
    first = table.order[:AT_HAND].tolist()
    best = table.of(first)
    trust = trust_in(known, problem, [one.expected_error for one in best])
    return Plan(
        table=table,
        not_modelled=dict(omitted),
        trust=trust,
        at_hand=best,
        undecided=table.undecided(first[: table.fitting]),
    )


def not_modelled(recipe: Recipe) -> str | None:
    """Return why the formulas cannot estimate a recipe, or None."""
    if recipe.offload == "nvme":
        return "offload to NVMe"
    return "async_tensor_parallel" if recipe.async_tensor_parallel else None


def estimate_many(recipes: Sequence[Recipe], problem: Problem) -> EstimateTable:
    """Estimate recipes, in order; each must be one that the formulas know (`not_modelled`)."""
    times, sizes = np.zeros(len(recipes)), np.zeros(len(recipes))
    for places, machine, work in blocks(recipes, problem):
        times[places] = step_time(machine, work).total
        sizes[places] = np.floor(peak_memory(machine, work).total)
    return EstimateTable(
        recipes=recipes, problem=problem, step_time_s=times, peak_memory_bytes=sizes
    )


def surely_too_large(recipes: Sequence[Recipe], problem: Problem) -> npt.NDArray[np.bool_]:
    """Return which recipes need more memory than a device has, by `SURE` standard deviations of the
    logarithm.
    """
    found = np.zeros(len(recipes), dtype=np.bool_)
    known = np.flatnonzero(each(recipes, not_modelled) == None)  # noqa: E711 - of each row
    for places, machine, work in blocks(chosen(recipes, known), problem):
        peak = peak_memory(machine, work)
        above = np.log(peak.total / problem.cluster.memory_bytes_per_device)
        found[known[places]] = above > SURE * log_deviation(machine, work, peak)
    return found


def blocks(
    recipes: Sequence[Recipe], problem: Problem
) -> Iterator[tuple[npt.NDArray[np.intp], Machine, Workload]]:
    """Yield places in `recipes` with their machine and workload.

    Each block is of one engine, and has at most `ROWS_AT_ONCE` rows.
    """
    engines = each(recipes, attrgetter("engine"))
    for engine in ENGINES:
        machine = Machine.of(problem.cluster, problem.precision, coded(problem.software, engine))
        rows = np.flatnonzero(engines == engine)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            places = rows[start : start + ROWS_AT_ONCE]
            split = machine.code.pipeline.layer_split
            yield places, machine, Workload.of(chosen(recipes, places), problem, split)


def why_none(survey: Survey, found: Plan) -> str | None:
    """Return why no recipe of a space is legal, known to the formulas, or small enough; None where
    one fits.

    The commonest refusal is named, schedule against virtual stages last: any space with both has
    half its points there.
    """
    if not found.legal:
        _, count, example = min(
            survey.refused_by_count(), key=lambda refusal: refusal[0] == "virtual-stages"
        )
        most = "" if count == survey.points else f", mostly ({count:,} of {survey.points:,} points)"
        return f"nothing is legal{most}: {example}"
    if not len(found.table):
        return f"nothing is estimated: the formulas do not know {', '.join(found.not_modelled)}"
    if found.table.fitting:
        return None
    smallest = found.table.peak_memory_bytes.min() / 2**30
    return (
        f"nothing fits: the smallest recipe needs {smallest:.2f} GiB of"
        f" {found.memory_limit_bytes / 2**30:.2f}"
    )
