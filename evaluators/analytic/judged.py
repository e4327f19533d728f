"""Many recipes judged at once, as columns; an `Estimate` is made only of a row that someone looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.host import host_memory
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import PeakMemory, peak_memory
from frontrunner.evaluators.analytic.software import ENGINES
from frontrunner.evaluators.analytic.step import StepTime, fullest_parameters, step_time
from frontrunner.evaluators.analytic.trust import expected_error, unjudged
from frontrunner.evaluators.analytic.workload import Flags, Rows, Workload
from frontrunner.evaluators.probe.measure import rates
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

ROWS_AT_ONCE = 16_384
"""So many rows of the arrays in between fit a core's cache: 1.5 times as fast as half a million at once."""

WORTH_NAMING = 0.1
"""From this share of a step on, what is not computing counts as what limits a recipe."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the formulas tell of one recipe.

    `step_parts_s` adds up to `step_time_s`, `memory_parts_bytes` to `peak_memory_bytes`: the fullest rank's. `limit`
    is the largest part of the step that is not computing, or "compute", or "memory" where the recipe does not fit.
    `host_memory_bytes_per_rank` is what offloading keeps in the host's memory. `unjudged` are the choices whose
    formulas no measurement has judged; `expected_error` is the share by which the step time is off on average.
    """

    recipe_id: str
    recipe: Recipe
    step_time_s: float
    tokens_per_s: float
    model_tflops_per_device: float
    mfu: float | None
    peak_memory_bytes: int
    host_memory_bytes_per_rank: int
    fits: bool
    limit: str
    step_parts_s: Mapping[str, float]
    memory_parts_bytes: Mapping[str, float]
    unjudged: tuple[str, ...]
    expected_error: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """Recipes of one problem, a row each: the parts of their steps in seconds and of their memory in bytes."""

    recipes: tuple[Recipe, ...]
    problem: Problem
    step_parts_s: Mapping[str, Rows]
    memory_parts_bytes: Mapping[str, Rows]
    host_memory_bytes_per_rank: Rows

    def __len__(self) -> int:
        return len(self.recipes)

    @cached_property
    def step_time_s(self) -> Rows:
        """The sums of the steps' parts."""
        return _sum(self.step_parts_s)

    @cached_property
    def peak_memory_bytes(self) -> Rows:
        """The sums of the memory's parts, in whole bytes."""
        return np.floor(_sum(self.memory_parts_bytes))

    @cached_property
    def tokens_per_s(self) -> Rows:
        """global_batch_seqs * sequence_length / step_time_s."""
        sequences = np.fromiter((recipe.global_batch_seqs for recipe in self.recipes), dtype=np.float64)
        return sequences * self.problem.sequence_length / self.step_time_s

    @cached_property
    def fits(self) -> Flags:
        """Whether the peak is at most a device's memory."""
        return self.peak_memory_bytes <= self.problem.cluster.memory_bytes_per_device

    @cached_property
    def order(self) -> npt.NDArray[np.intp]:
        """The rows that fit, fastest first, then the others, smallest first; equals in the order of the recipes."""
        worth = np.where(self.fits, -self.tokens_per_s, self.peak_memory_bytes)
        return np.lexsort((worth, ~self.fits))

    @property
    def fitting(self) -> int:
        """How many recipes fit: so many rows of `order` come first."""
        return int(np.count_nonzero(self.fits))

    def front(self) -> list[int]:
        """The rows that fit and that no other beats in both speed and memory, fastest first."""
        found: list[int] = []
        for row in self.order[: self.fitting].tolist():
            if not found or self.peak_memory_bytes[row] < self.peak_memory_bytes[found[-1]]:
                found.append(row)
        return found

    def estimates(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Iterator[Estimate]:
        """The estimates of these rows, in their order."""
        return (self.estimate(int(row)) for row in rows)

    def estimate(self, row: int) -> Estimate:
        """What the formulas tell of one row."""
        recipe, time_s = self.recipes[row], float(self.step_time_s[row])
        step_parts = {name: float(column[row]) for name, column in self.step_parts_s.items()}
        rate, fits = rates(recipe, self.problem, time_s), bool(self.fits[row])
        return Estimate(
            recipe_id=recipe_id(self.problem, recipe),
            recipe=recipe,
            step_time_s=time_s,
            tokens_per_s=rate["tokens_per_s"] or 0.0,
            model_tflops_per_device=rate["model_tflops_per_device"] or 0.0,
            mfu=rate["mfu"],
            peak_memory_bytes=int(self.peak_memory_bytes[row]),
            host_memory_bytes_per_rank=int(self.host_memory_bytes_per_rank[row]),
            fits=fits,
            limit=_limit(step_parts, time_s) if fits else "memory",
            step_parts_s=step_parts,
            memory_parts_bytes={name: float(column[row]) for name, column in self.memory_parts_bytes.items()},
            unjudged=unjudged(recipe),
            expected_error=expected_error(self.problem, recipe),
        )


def judge(recipes: Sequence[Recipe], problem: Problem) -> Judged:
    """The recipes in order; each must be one that the formulas know (`estimate.not_modelled`)."""
    times = {field.name: np.zeros(len(recipes)) for field in fields(StepTime)}
    sizes = {field.name: np.zeros(len(recipes)) for field in fields(PeakMemory)}
    on_host = np.zeros(len(recipes))
    for engine, software in ENGINES.items():
        machine = Machine.of(problem.cluster, problem.precision, software)
        places = [place for place, recipe in enumerate(recipes) if recipe.engine == engine]
        for start in range(0, len(places), ROWS_AT_ONCE):
            block = places[start : start + ROWS_AT_ONCE]
            work = Workload.of([recipes[place] for place in block], problem)
            _fill(times, block, step_time(machine, work))
            _fill(sizes, block, peak_memory(machine, work))
            on_host[block] = host_memory(machine, work, fullest_parameters(machine, work))
    return Judged(
        recipes=tuple(recipes),
        problem=problem,
        step_parts_s=times,
        memory_parts_bytes=sizes,
        host_memory_bytes_per_rank=on_host,
    )


def _fill(columns: Mapping[str, Rows], places: list[int], parts: StepTime | PeakMemory) -> None:
    """Put the parts of some rows into their places; a part of one value is that of all of them."""
    for name, column in columns.items():
        column[places] = getattr(parts, name)


def _sum(parts: Mapping[str, Rows]) -> Rows:
    found: Rows = np.sum(list(parts.values()), axis=0, dtype=np.float64)
    return found


def _limit(step_parts: Mapping[str, float], step_time_s: float) -> str:
    """The largest part of a step beside computing, if it is worth naming."""
    beside = {name: seconds for name, seconds in step_parts.items() if name != "compute"}
    largest = max(beside, key=lambda name: beside[name])
    return largest if beside[largest] >= WORTH_NAMING * step_time_s else "compute"
