"""Estimates of recipes: step time, speed and memory from the formulas, and what they cannot judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from frontrunner.evaluators.analytic.host import host_memory
from frontrunner.evaluators.analytic.machine import Machine, assumptions
from frontrunner.evaluators.analytic.memory import PeakMemory, peak_memory
from frontrunner.evaluators.analytic.software import ENGINES
from frontrunner.evaluators.analytic.step import StepTime, fullest_parameters, step_time
from frontrunner.evaluators.analytic.trust import (
    UNKNOWN_HARDWARE_ERROR,
    expected_error,
    is_judged,
    moves_to_host,
    own_error,
    unjudged,
)
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.measure import rates
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

ROWS_AT_ONCE = 16_384
"""So many rows of the arrays in between fit a core's cache: 1.5 times as fast as half a million at once."""

UNJUDGED = "the formulas' constants were judged on A100 in 16 bits alone"
HOST_UNLIMITED = "what offloading keeps in the host's memory is told, not limited: a cluster file does not say how much"
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space judged by the formulas: what fits, fastest first, then what does not, smallest first.

    `not_modelled` counts the legal recipes that the formulas leave out, by reason. `assumed` are the keys of the
    cluster that were not given and for which a common value stands; `expected_error` is the share by which a step
    time is off on average where nothing is `unjudged`. `remarks` say what else the formulas do not know.
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
    return Plan(
        estimates=tuple(sorted(judged, key=_order)),
        legal=len(recipes),
        not_modelled=dict(left_out),
        memory_limit_bytes=cluster.memory_bytes_per_device,
        assumed=_assumed(recipes, problem),
        expected_error=expected_error(problem),
        remarks=_remarks(judged, problem),
    )


def _assumed(recipes: Sequence[Recipe], problem: Problem) -> tuple[str, ...]:
    if own_error(problem) is not None:
        return ()  # it was measured with whatever is assumed
    offloads = any(moves_to_host(recipe) for recipe in recipes)
    return assumptions(problem.cluster, problem.precision, offloads=offloads)


def _remarks(judged: Sequence[Estimate], problem: Problem) -> tuple[str, ...]:
    unknown = sorted({choice for found in judged for choice in found.unjudged})
    often = sum(bool(found.unjudged) for found in judged)
    on_cpu, measured = problem.cluster.backend == "cpu", problem.cluster.matmul_flops(problem.precision) is not None
    remarks = {
        UNJUDGED: not is_judged(problem),
        SHARED_CPU: on_cpu and not measured,
        MEASURED_TOGETHER: on_cpu and measured,
        f"no measurement has judged {', '.join(unknown)}: {often:,} recipes with these may be off by "
        f"{UNKNOWN_HARDWARE_ERROR * 100:.0f} %": bool(unknown),
        HOST_UNLIMITED: any(found.host_memory_bytes_per_rank for found in judged),
    }
    return tuple(remark for remark, holds in remarks.items() if holds)


def _order(estimate: Estimate) -> tuple[bool, float, str]:
    worth = -estimate.tokens_per_s if estimate.fits else float(estimate.peak_memory_bytes)
    return not estimate.fits, worth, estimate.recipe_id


def not_modelled(recipe: Recipe) -> str | None:
    """Why the formulas cannot judge a recipe, or None."""
    return "offload to NVMe" if recipe.offload == "nvme" else None


def estimate(recipes: Sequence[Recipe], problem: Problem) -> list[Estimate]:
    """The recipes in order; each must be one that `not_modelled` lets pass."""
    found: dict[int, Estimate] = {}
    for engine, software in ENGINES.items():
        machine = Machine.of(problem.cluster, problem.precision, software)
        places = [place for place, recipe in enumerate(recipes) if recipe.engine == engine]
        for start in range(0, len(places), ROWS_AT_ONCE):
            block = places[start : start + ROWS_AT_ONCE]
            found.update(zip(block, _estimated([recipes[place] for place in block], problem, machine), strict=True))
    return [found[place] for place in range(len(recipes))]


def _estimated(block: Sequence[Recipe], problem: Problem, machine: Machine) -> list[Estimate]:
    work = Workload.of(block, problem)
    times = _columns(step_time(machine, work), len(block))
    sizes = _columns(peak_memory(machine, work), len(block))
    on_host = np.broadcast_to(host_memory(machine, work, fullest_parameters(machine, work)), len(block))
    known_error, limit = expected_error(problem), problem.cluster.memory_bytes_per_device
    found = []
    for row, recipe in enumerate(block):
        step_parts = {name: float(column[row]) for name, column in times.items()}
        memory_parts = {name: float(column[row]) for name, column in sizes.items()}
        seconds, peak = sum(step_parts.values()), int(sum(memory_parts.values()))
        rate, unknown = rates(recipe, problem, seconds), unjudged(recipe)
        found.append(
            Estimate(
                recipe_id=recipe_id(problem, recipe),
                recipe=recipe,
                step_time_s=seconds,
                tokens_per_s=rate["tokens_per_s"] or 0.0,
                model_tflops_per_device=rate["model_tflops_per_device"] or 0.0,
                mfu=rate["mfu"],
                peak_memory_bytes=peak,
                host_memory_bytes_per_rank=int(on_host[row]),
                fits=peak <= limit,
                limit=_limit(step_parts) if peak <= limit else "memory",
                step_parts_s=step_parts,
                memory_parts_bytes=memory_parts,
                unjudged=unknown,
                expected_error=UNKNOWN_HARDWARE_ERROR if unknown else known_error,
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
