"""Estimates of recipes: step time, speed and memory from the formulas, and what they cannot judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from frontrunner.evaluators.analytic.machine import Machine, assumptions
from frontrunner.evaluators.analytic.memory import PeakMemory, peak_memory
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.step import StepTime, step_time
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.measure import rates
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

ROWS_AT_ONCE = 16_384
"""So many rows of the arrays in between fit a core's cache: 1.5 times as fast as half a million at once."""

EXPECTED_ERROR = 0.15
"""Mean error of step time on tables of A100 measurements that the constants were not fitted to (docs/planning.md)."""
JUDGED_DEVICES = frozenset({"a100-40gb", "a100-80gb"})
"""The devices of `EXPECTED_ERROR`, in 16 bits."""
UNKNOWN_HARDWARE_ERROR = 0.5
"""Stated for other devices, for fp32, and where the cluster leaves out a figure that the estimate needs: a guess. On
tables of V100 and H100 the mean error was 17 to 55 % (docs/measurements.md)."""
UNJUDGED = "the formulas' constants were judged on A100 in 16 bits alone"
SHARED_CPU = "ranks on one machine's CPU share its cores; the formulas give each its own, so trust no order among these"
MEASURED_TOGETHER = (
    "the figures are those of ranks that are all busy on one CPU; where some wait, as in pipelines, others are faster"
)
WORTH_NAMING = 0.1
"""From this share of a step on, what is not computing counts as what limits a recipe."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the formulas tell of one recipe.

    `step_parts_s` adds up to `step_time_s`, `memory_parts_bytes` to `peak_memory_bytes`: the fullest rank's. `limit`
    is the largest part of the step that is not computing, or "compute", or "memory" where the recipe does not fit.
    """

    recipe_id: str
    recipe: Recipe
    step_time_s: float
    tokens_per_s: float
    model_tflops_per_device: float
    mfu: float | None
    peak_memory_bytes: int
    fits: bool
    limit: str
    step_parts_s: Mapping[str, float]
    memory_parts_bytes: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space judged by the formulas: what fits, fastest first, then what does not, smallest first.

    `not_modelled` counts the legal recipes that the formulas leave out, by reason. `assumed` are the keys of the
    cluster that were not given and for which a common value stands; `expected_error` is the share by which a step
    time is off on average. `remarks` say what else the formulas do not know.
    """

    estimates: tuple[Estimate, ...]
    legal: int
    not_modelled: Mapping[str, int]
    memory_limit_bytes: int
    assumed: tuple[str, ...]
    expected_error: float
    remarks: tuple[str, ...]

    @property
    def fitting(self) -> tuple[Estimate, ...]:
        """The estimates of recipes that fit, fastest first."""
        return tuple(estimate for estimate in self.estimates if estimate.fits)

    @property
    def front(self) -> tuple[Estimate, ...]:
        """The fitting recipes that no other beats in both speed and memory, fastest first."""
        found: list[Estimate] = []
        for estimate in self.fitting:
            if not found or estimate.peak_memory_bytes < found[-1].peak_memory_bytes:
                found.append(estimate)
        return tuple(found)


def plan(recipes: Sequence[Recipe], problem: Problem) -> Plan:
    """Judge legal recipes of one problem."""
    left_out = Counter(reason for recipe in recipes if (reason := not_modelled(recipe)))
    judged = estimate([recipe for recipe in recipes if not not_modelled(recipe)], problem)
    cluster = problem.cluster
    own_error: float | None = getattr(cluster.expected_error, problem.precision)
    assumed = () if own_error else assumptions(cluster, problem.precision)  # such an error was measured with them
    measured = cluster.matmul_flops(problem.precision) is not None
    is_judged = cluster.device in JUDGED_DEVICES and problem.precision != "fp32"
    stated = EXPECTED_ERROR if is_judged else UNKNOWN_HARDWARE_ERROR
    remarks = {
        UNJUDGED: own_error is None and not is_judged,
        SHARED_CPU: cluster.backend == "cpu" and not measured,
        MEASURED_TOGETHER: cluster.backend == "cpu" and measured,
    }
    return Plan(
        estimates=tuple(sorted(judged, key=_order)),
        legal=len(recipes),
        not_modelled=dict(left_out),
        memory_limit_bytes=cluster.memory_bytes_per_device,
        assumed=assumed,
        expected_error=own_error or (UNKNOWN_HARDWARE_ERROR if assumed else stated),
        remarks=tuple(remark for remark, holds in remarks.items() if holds),
    )


def _order(estimate: Estimate) -> tuple[bool, float, str]:
    worth = -estimate.tokens_per_s if estimate.fits else float(estimate.peak_memory_bytes)
    return not estimate.fits, worth, estimate.recipe_id


def not_modelled(recipe: Recipe) -> str | None:
    """Why the formulas cannot judge a recipe, or None."""
    levers = {
        "the deepspeed engine": recipe.engine != "torch",
        "context parallelism": recipe.context_parallel > 1,
        "compile": recipe.compile,
        "activation offload": recipe.activation_offload,
        "offload": recipe.offload != "none",
        "a secondary partition": recipe.secondary_partition > 1,
    }
    return next((name for name, moved in levers.items() if moved), None)


def estimate(recipes: Sequence[Recipe], problem: Problem) -> list[Estimate]:
    """The recipes in order; each must be one that `not_modelled` lets pass."""
    machine = Machine.of(problem.cluster, problem.precision, FRONTRUNNER)
    found: list[Estimate] = []
    for start in range(0, len(recipes), ROWS_AT_ONCE):
        block = recipes[start : start + ROWS_AT_ONCE]
        work = Workload.of(block, problem)
        found.extend(_rows(block, problem, step_time(machine, work), peak_memory(machine, work)))
    return found


def _rows(block: Sequence[Recipe], problem: Problem, step: StepTime, memory: PeakMemory) -> list[Estimate]:
    times, sizes = _columns(step, len(block)), _columns(memory, len(block))
    limit = problem.cluster.memory_bytes_per_device
    found = []
    for row, recipe in enumerate(block):
        step_parts = {name: float(column[row]) for name, column in times.items()}
        memory_parts = {name: float(column[row]) for name, column in sizes.items()}
        seconds, peak = sum(step_parts.values()), int(sum(memory_parts.values()))
        rate = rates(recipe, problem, seconds)
        found.append(
            Estimate(
                recipe_id=recipe_id(problem, recipe),
                recipe=recipe,
                step_time_s=seconds,
                tokens_per_s=rate["tokens_per_s"] or 0.0,
                model_tflops_per_device=rate["model_tflops_per_device"] or 0.0,
                mfu=rate["mfu"],
                peak_memory_bytes=peak,
                fits=peak <= limit,
                limit=_limit(step_parts) if peak <= limit else "memory",
                step_parts_s=step_parts,
                memory_parts_bytes=memory_parts,
            )
        )
    return found


def _columns(parts: StepTime | PeakMemory, length: int) -> dict[str, np.ndarray]:
    return {field.name: np.broadcast_to(getattr(parts, field.name), length) for field in fields(parts)}


def _limit(step_parts: Mapping[str, float]) -> str:
    """The largest part of a step beside computing, if it is worth naming."""
    beside = {name: seconds for name, seconds in step_parts.items() if name != "compute"}
    largest = max(beside, key=lambda name: beside[name])
    return largest if beside[largest] >= WORTH_NAMING * sum(step_parts.values()) else "compute"
