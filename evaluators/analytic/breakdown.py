"""Breakdown of one recipe: its step and memory by part, and the ranks of its pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.accuracy_bounds import Trust, has_times, trust_in
from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many, not_modelled
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import memory_of_ranks
from frontrunner.evaluators.analytic.step import busy_of_ranks
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.runs.measure import rates
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import Reason, marks
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import V_SHAPED_SCHEDULES, Recipe


@dataclass(frozen=True, kw_only=True)
class PipelineRank:
    """One rank of a pipeline: what it holds besides its layers, and the seconds per step that it is
    busy.

    These are None without the device's peak.
    """

    holds: str
    layers: int
    busy_s: float | None
    memory_parts_bytes: Mapping[str, float]

    @property
    def peak_memory_bytes(self) -> int:
        """The sum of the parts."""
        return int(sum(self.memory_parts_bytes.values()))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measurement, imported or not by `figures`; times are medians, memory is the fullest rank's,
    None if unknown.
    """

    store: str
    campaign: str
    figures: str = "measured"
    repeats: int
    step_time_s: float
    step_time_spread: float
    tokens_per_s: float
    mfu: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Breakdown(Displayed):
    """An estimate with its context; `ranks` are those of the pipeline that differ: embedding,
    fullest between, head.

    `unmatched` is what there is where it was not `measured`: a simulation, or measurements of other
    problems.
    """

    problem: Problem
    estimate: Estimate
    hardware_tflops_per_device: float | None
    ranks: tuple[PipelineRank, ...]
    marks: tuple[Reason, ...]
    trust: Trust
    measured: Measured | None = None
    unmatched: str | None = None

    @property
    def memory_limit_bytes(self) -> int:
        """A device's memory."""
        return self.problem.cluster.memory_bytes_per_device

    @property
    def memory_margin_bytes(self) -> int:
        """The part of it that the fullest rank leaves free; negative where the recipe does not
        fit.
        """
        return self.memory_limit_bytes - self.estimate.peak_memory_bytes

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """tokens_per_s / devices."""
        rate = self.estimate.tokens_per_s
        return None if rate is None else rate / self.estimate.recipe.devices

    @property
    def step_time_error(self) -> float | None:
        """Estimated over measured step time, less one; None without one of them."""
        estimated = self.estimate.step_time_s
        return (
            None
            if self.measured is None or estimated is None
            else estimated / self.measured.step_time_s - 1
        )

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured step time lies in the estimate's interval; None without one of
        them.
        """
        bounds = self.estimate.step_time_bounds_s
        return (
            None
            if self.measured is None or bounds is None
            else bounds[0] <= self.measured.step_time_s <= bounds[1]
        )

    @property
    def compares_allocated(self) -> bool:
        """Whether the measured peak is what tensors held, which accelerators state, and not a
        process's whole memory.

        What an imported peak counts is unknown; it is compared with what a device must hold.
        """
        return (
            self.problem.cluster.backend != "cpu"
            and self.measured is not None
            and self.measured.figures == "measured"
        )

    @property
    def peak_memory_error(self) -> float | None:
        """Estimated over measured peak memory of the same kind, less one; None without a
        measurement.
        """
        if self.measured is None or not self.measured.peak_memory_bytes:
            return None
        estimate = self.estimate
        alike = (
            estimate.allocated_memory_bytes
            if self.compares_allocated
            else estimate.peak_memory_bytes
        )
        return alike / self.measured.peak_memory_bytes - 1


def breakdown(
    recipe: Recipe, problem: Problem, measured: Measured | None = None, unmatched: str | None = None
) -> Breakdown:
    """Break down a legal recipe, `measured` or `unmatched`; raises `InvalidInput` where the
    formulas do not know it.
    """
    unknown = not_modelled(recipe)
    if unknown is not None:
        what = (
            f"recipe {recipe_id(problem, recipe)} cannot be estimated: the formulas do not know"
            f" {unknown}"
        )
        raise InvalidInput(what, hint="frontrunner launch measures")
    found = estimate_many([recipe], problem)[0]
    time_s = found.step_time_s
    return Breakdown(
        problem=problem,
        estimate=found,
        hardware_tflops_per_device=time_s
        and rates(recipe, problem, time_s)["hardware_tflops_per_device"],
        ranks=pipeline_ranks(recipe, problem),
        marks=tuple(marks(recipe, problem)),
        trust=trust_in([recipe], problem, [found.expected_error]),
        measured=measured,
        unmatched=unmatched,
    )


def pipeline_ranks(recipe: Recipe, problem: Problem) -> tuple[PipelineRank, ...]:
    """Return the ranks of the recipe's pipeline that differ, from the embedding to the head."""
    machine = Machine.of(problem.cluster, problem.precision, coded(problem.software, recipe.engine))
    work = Workload.of([recipe], problem, machine.code.pipeline.layer_split)
    if recipe.pipeline_parallel == 1:
        holds = ("the whole model", "", "")
    elif recipe.schedule in V_SHAPED_SCHEDULES:
        holds = ("embedding, head", "layers", "")
    else:
        holds = ("embedding", "layers" if recipe.pipeline_parallel > 2 else "", "head")
    layers = (
        np.sum(of, axis=0) for of in (work.layers.first, work.layers.middle, work.layers.last)
    )
    ranks = zip(
        holds, layers, busy_of_ranks(machine, work), memory_of_ranks(machine, work), strict=True
    )
    return tuple(
        PipelineRank(
            holds=held,
            layers=int(count[0]),
            busy_s=float(busy[0]) if has_times(problem, recipe.engine) else None,
            memory_parts_bytes={
                name: float(np.ravel(size)[0]) for name, size in vars(memory).items()
            },
        )
        for held, count, busy, memory in ranks
        if held
    )
