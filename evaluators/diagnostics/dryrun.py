"""Dry runs: memory and FLOPs of a recipe's real training step, traced over fake tensors without a
device.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.analytic.codes import ENGINES
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import runtime_bytes, verdict
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.diagnostics.ranks import Rank, await_ranks
from frontrunner.evaluators.programs.jobs import dry_run_job
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import INTERLEAVED_SCHEDULES, Recipe
from frontrunner.spaces.stages import layers_of_ranks, rank_of_stage

CHILD = "frontrunner.evaluators.trainer.dry_run"
DEADLINE_S = 600.0
ENOUGH_WITHOUT_PIPELINE = 2
"""Micro-batches: one that makes the gradients, and the last, which adds to them and reduces
them.
"""
MOST_LAYER_PASSES = 256
"""Layers x micro-batches of one trace; each takes about 0.1 s."""
ALL_IN_FLIGHT = ("gpipe", "looped-bfs")
"""Schedules that run every forward pass of a step before the first backward pass."""


@dataclass(frozen=True, kw_only=True)
class DryRunPlan:
    """Dry run that is ready to run: `ranks` over `micro_batches`, where `extrapolated` over twice
    as many too.
    """

    recipe_id: str
    recipe: Recipe
    problem: Problem
    probe: ProbeSettings
    ranks: tuple[int, ...]
    micro_batches: int
    extrapolated: bool


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    problem: Problem,
    probe: ProbeSettings,
    rank: int | None = None,
) -> DryRunPlan:
    """Choose what to trace of a legal recipe; `rank` None is the ranks that may need most
    memory.
    """
    reason = why_untraceable(recipe, problem)
    if reason is not None:
        raise InvalidInput(f"recipe {recipe_id} cannot be traced: {reason}")
    if rank is not None and not 0 <= rank < recipe.devices:
        raise bad_value("rank", rank, f"one of the recipe's ranks, 0 to {recipe.devices - 1}")
    needed = needed_micro_batches(recipe)
    layers = max(layers_of_ranks(recipe, len(problem.model.layers)))
    is_long = needed * layers > MOST_LAYER_PASSES and needed > 2 * recipe.stages
    extrapolated = recipe.schedule in ALL_IN_FLIGHT and is_long
    few = (
        min(recipe.stages, 4) if recipe.schedule == "gpipe" else recipe.stages
    )  # GPipe's all cost the same
    return DryRunPlan(
        recipe_id=recipe_id,
        recipe=recipe,
        problem=problem,
        probe=probe,
        ranks=worst_ranks(recipe, problem) if rank is None else (rank,),
        micro_batches=few if extrapolated else needed,
        extrapolated=extrapolated,
    )


def why_untraceable(recipe: Recipe, problem: Problem) -> str | None:
    """Return why fake tensors cannot show this recipe's memory, None if they can."""
    model, is_cpu = problem.model, problem.cluster.backend == "cpu"
    needs_device = (
        model.has_special_attention(problem.sequence_length)
        and model.attention.kernel == "flash"
        and not is_cpu
    )
    reasons = {
        "only the torch engine's steps can be traced": recipe.engine != "torch",
        "the built-in trainer has no multi-token prediction": model.prediction.layers > 0,
        "torch.compile plans the memory of compiled layers itself": recipe.compile,
        "windows, sinks and capped scores are another kernel's there than where the trace runs": (
            needs_device
        ),
        "a trace does not see the FLOPs of products in 8 bits; fp8=none needs the same memory": (
            recipe.fp8 != "none"
        ),
        "replication ddp keeps its buckets where no trace sees them": recipe.replication == "ddp",
        "fake tensors have one memory, and offload needs two": (
            recipe.offload != "none" or recipe.activation_offload
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def needed_micro_batches(recipe: Recipe) -> int:
    """Return how many micro-batches of a step show its peak.

    A pipeline is full after as many as it has stages; one more, of interleaved schedules one round
    of them, meets the gradients of the first. Interleaved rounds depend on the accumulation: where
    ranks do not divide it all are traced.
    """
    accumulation, ranks = recipe.accumulation, recipe.pipeline_parallel
    if ranks == 1:
        return min(accumulation, ENOUGH_WITHOUT_PIPELINE)
    uneven_rounds = recipe.virtual_stages > 1 and accumulation % ranks
    if recipe.schedule in ALL_IN_FLIGHT or uneven_rounds:
        return accumulation
    return min(
        accumulation, recipe.stages + (ranks if recipe.schedule in INTERLEAVED_SCHEDULES else 1)
    )


def worst_ranks(recipe: Recipe, problem: Problem) -> tuple[int, ...]:
    """Return the first replica's first and last pipeline rank, and the first rank with more layers
    than both.
    """
    layers = layers_of_ranks(recipe, len(problem.model.layers))
    chosen = {0, recipe.pipeline_parallel - 1}
    if max(layers) > max(layers[0], layers[-1]):
        chosen.add(layers.index(max(layers)))
    return tuple(recipe.rank_strides["pp"] * place for place in sorted(chosen))


@dataclass(frozen=True, kw_only=True)
class TracedRank:
    """Traced training step of one rank: what lives at the peak, by category, and FLOPs, a
    multiply-add counted as two.

    `memory_bytes` ends with `runtime`, the estimate that the formulas make of what no trace sees.
    `recomputed_flops` are those of what is computed a second time, within flash attention's
    backward pass too.
    """

    rank: int
    pipeline_rank: int
    layers: int
    memory_bytes: Mapping[str, int]
    forward_flops: int
    backward_flops: int
    recomputed_flops: int
    model_flops_by_formula: float
    trace_time_s: float

    @property
    def peak_bytes(self) -> int:
        """The sum of `memory_bytes`."""
        return sum(self.memory_bytes.values())

    @property
    def model_flops_per_step(self) -> int:
        """forward_flops + backward_flops."""
        return self.forward_flops + self.backward_flops

    @property
    def hardware_flops_per_step(self) -> int:
        """model_flops_per_step + recomputed_flops: what the device executes."""
        return self.model_flops_per_step + self.recomputed_flops


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Traced training step of a recipe, the rank that needs most memory first."""

    recipe_id: str
    recipe: Recipe
    device: str
    backend: str
    device_memory_bytes: int
    ranks: tuple[TracedRank, ...]
    micro_batches: int
    extrapolated: bool
    wall_time_s: float

    @property
    def worst(self) -> TracedRank:
        """Traced rank that needs most memory."""
        return self.ranks[0]

    @property
    def peak_bytes(self) -> int:
        """Peak of the worst rank."""
        return self.worst.peak_bytes

    @property
    def fit(self) -> str:
        """The verdict on that peak, one of memory.py's."""
        return verdict(self.peak_bytes, self.device_memory_bytes)

    @property
    def fits(self) -> bool:
        """Whether it is within the device's memory."""
        return self.margin_bytes >= 0

    @property
    def margin_bytes(self) -> int:
        """device_memory_bytes - peak_bytes: what is left; negative if too little."""
        return self.device_memory_bytes - self.peak_bytes


def run(chosen: DryRunPlan) -> DryRun:
    """Run a dry run, tracing all its ranks at the same time; raise `FrontrunnerError` if a trace
    fails.
    """
    start, few = time.monotonic(), chosen.micro_batches
    job = dry_run_job(chosen.problem, chosen.probe, chosen.recipe).to_json()
    traces: dict[tuple[int, int], Rank] = {}
    with tempfile.TemporaryDirectory(prefix="frontrunner-") as name, ExitStack() as stack:
        for times in (1, 2) if chosen.extrapolated else (1,):
            folder = Path(name, str(times))
            folder.mkdir()
            for rank in chosen.ranks:
                command = (CHILD, str(rank), str(times * few))
                traces[times, rank] = Rank(rank, command, job, {"OMP_NUM_THREADS": "1"}, folder)
                stack.callback(traces[times, rank].end)
        await_ranks(list(traces.values()), what="the trace of rank", limit_s=DEADLINE_S)
        lines = {
            key: [x for x in trace.log_tail.splitlines() if x.startswith("{")]
            for key, trace in traces.items()
        }
    seen = {key: json.loads(tables[-1]) for key, tables in lines.items()}
    ranks = [_traced_rank(chosen, seen[1, rank], seen.get((2, rank))) for rank in chosen.ranks]
    return DryRun(
        recipe_id=chosen.recipe_id,
        recipe=chosen.recipe,
        device=chosen.problem.cluster.device,
        backend=chosen.problem.cluster.backend,
        device_memory_bytes=chosen.problem.cluster.memory_bytes_per_device,
        ranks=tuple(sorted(ranks, key=lambda rank: -rank.peak_bytes)),
        micro_batches=few,
        extrapolated=chosen.extrapolated,
        wall_time_s=time.monotonic() - start,
    )


def _traced_rank(
    chosen: DryRunPlan, few: dict[str, Any], many: dict[str, Any] | None
) -> TracedRank:
    """Return what a trace shows; with a second one of twice as many micro-batches, the memory of
    all of them.
    """
    recipe, problem, model = chosen.recipe, chosen.problem, chosen.problem.model
    place = recipe.pipeline_rank(few["rank"])
    layers = layers_of_ranks(recipe, len(model.layers))[place]
    sizes, trace_time_s = few["memory_bytes"], few["trace_time_s"]
    if many is not None:
        steps = recipe.accumulation / chosen.micro_batches - 1
        sizes = {
            what: max(0, round(n + steps * (many["memory_bytes"][what] - n)))
            for what, n in sizes.items()
        }
        trace_time_s += many["trace_time_s"]
    machine = Machine.of(problem.cluster, problem.precision, ENGINES[recipe.engine])
    runtime = runtime_bytes(machine, Workload.of([recipe], problem), sizes["activations"])[0]
    # By formula: 3 x tokens of a copy x (layers x FLOPs of a layer + FLOPs of the head where it is)
    # / tensor_parallel.
    dense = layers_of_ranks(recipe, len(model.layers), first=model.dense_layers)[place]
    counts = (dense, layers - dense)[-len(model.kinds) :]
    kinds = zip(counts, (kind for _, kind in model.kinds), strict=True)
    forward = sum(count * kind.flops_per_token(problem.sequence_length) for count, kind in kinds)
    if rank_of_stage(recipe, recipe.stages - 1) == place:
        forward += model.head_flops_per_token()
    tokens = recipe.global_batch_seqs * problem.sequence_length / recipe.copies
    return TracedRank(
        rank=few["rank"],
        pipeline_rank=place,
        layers=layers,
        memory_bytes=sizes | {"runtime": int(runtime)},
        forward_flops=few["flops"]["forward"],
        backward_flops=few["flops"]["backward"],
        recomputed_flops=few["flops"]["recompute"],
        model_flops_by_formula=3.0 * tokens * forward / recipe.tensor_parallel,
        trace_time_s=trace_time_s,
    )
