"""A simulated evaluator: instant outcomes from a rough cost formula, for rehearsals and tests of
the driver.

Time is a roofline of the stated peak with a pipeline bubble and a charge for splitting layers,
memory the formulas' peak: a pure function of recipe, problem and seed.
"""

from __future__ import annotations

import hashlib

from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import peak_memory
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.protocol import ImmediateEvaluator, ProbeSetup
from frontrunner.evaluators.runs.measure import (
    hardware_flops_per_token,
    measured_steps,
    tokens_per_step,
)
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

FALLBACK_PEAK_FLOPS = 1e14
BEST_EFFICIENCY = 0.45
SPLIT_CHARGE = 0.08


class Simulated(ImmediateEvaluator):
    """Evaluator that computes outcomes instead of measuring them."""

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__()
        self._setup = setup

    def _outcome(self, recipe: Recipe) -> Outcome:
        return simulate(recipe, self._setup)


def simulate(recipe: Recipe, setup: ProbeSetup) -> Measurement | Failure:
    """Return the simulated outcome of one recipe."""
    problem = setup.problem
    memory, limit = _memory_bytes(recipe, problem), problem.cluster.memory_bytes_per_device
    if memory > limit:
        message = f"simulated: {memory / 2**30:.1f} GiB needed, {limit / 2**30:.1f} GiB per device"
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, log_tail="simulated")
    step = _step_time_s(recipe, problem)
    own = f" {recipe.custom}" if recipe.custom else ""
    digest = hashlib.sha256(f"{setup.seed} {recipe!r}{own}".encode()).digest()
    noise = 0.01 * int.from_bytes(digest[:8], "big") / 2**64
    times = tuple(
        step * (1 + noise * sign) for sign in (-1, 0, 1, 0.5, -0.5)[: setup.probe.measured_steps]
    )
    return measured_steps(
        recipe,
        problem,
        times,
        peak_memory_bytes=(memory,),
        node_seconds=sum(times) * problem.cluster.nodes,
        first_step_time_s=step,
    )


def _step_time_s(recipe: Recipe, problem: Problem) -> float:
    """Return hardware FLOPs over peak and efficiency, times the bubble (m + p - 1) / m and costs of
    parallelism.
    """
    flops = tokens_per_step(recipe, problem) * hardware_flops_per_token(recipe, problem)
    peak = problem.cluster.peak_flops(recipe.arithmetic(problem.precision)) or FALLBACK_PEAK_FLOPS
    efficiency = BEST_EFFICIENCY * (1 - 0.3 / (recipe.micro_batch_seqs + 1))
    bubble = (
        recipe.accumulation + (recipe.pipeline_parallel - 1) / recipe.virtual_stages
    ) / recipe.accumulation
    kept = 1 - SPLIT_CHARGE * (_ranks_of_a_layer(recipe) - 1).bit_length()
    sharding = 1 + 0.02 * sum(degree > 1 for degree in recipe.sharding.degrees)
    return flops / (recipe.devices * peak * efficiency) * bubble * sharding / kept


def _memory_bytes(recipe: Recipe, problem: Problem) -> int:
    """Return the peak of the fullest rank by the formulas of `plan`."""
    code = coded(problem.software, recipe.engine)
    machine = Machine.of(problem.cluster, problem.precision, code)
    work = Workload.of([recipe], problem, code.pipeline.layer_split)
    return int(peak_memory(machine, work).total[0])


def _ranks_of_a_layer(recipe: Recipe) -> int:
    return recipe.devices // (recipe.pipeline_parallel * recipe.data_parallel)
