"""Running a dry run: a process for each trace, which imports the trainer and nothing of the store."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from frontrunner.evaluators.diagnostics.dry_run.plan import DryRunPlan, layers_of_pipeline_ranks
from frontrunner.evaluators.diagnostics.dry_run.report import DryRun, TracedRank
from frontrunner.evaluators.probe.job import dry_run_job
from frontrunner.evaluators.probe.processes import start_child
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.stages import rank_of_stage

CHILD = "frontrunner.evaluators.trainer.dry_run"
DEADLINE_S = 600.0
"""Of all traces together; on an idle machine they are done within two minutes."""
TAIL_LINES = 15

Seen = dict[str, Any]
"""What a trace prints: rank, memory_bytes by category, flops by phase, trace_time_s."""


def run(chosen: DryRunPlan) -> DryRun:
    """Trace what the plan says, all ranks at the same time.

    Raises `FrontrunnerError` with the end of its output if a trace fails.
    """
    start = time.monotonic()
    few, many = chosen.micro_batches, 2 * chosen.micro_batches
    traces = [(rank, few) for rank in chosen.ranks]
    if chosen.extrapolated:
        traces += [(rank, many) for rank in chosen.ranks]
    seen = _trace(json.dumps(dry_run_job(chosen.problem, chosen.probe, chosen.recipe)), traces)
    if chosen.extrapolated:
        pairs = zip(seen, seen[len(chosen.ranks) :], strict=False)
        seen = [_extrapolated(first, second, chosen) for first, second in pairs]
    ranks = [_traced_rank(found, chosen) for found in seen]
    return DryRun(
        recipe_id=chosen.recipe_id,
        recipe=chosen.recipe,
        device=chosen.problem.cluster.device,
        device_memory_bytes=chosen.problem.cluster.memory_bytes_per_device,
        ranks=tuple(sorted(ranks, key=lambda rank: -rank.peak_bytes)),
        micro_batches=few,
        extrapolated=chosen.extrapolated,
        wall_time_s=time.monotonic() - start,
    )


def _trace(job: str, traces: Sequence[tuple[int, int]]) -> list[Seen]:
    """What each trace of (rank, micro-batches) has seen; none is left running, whatever happens."""
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_child(job, rank, micro_batches)) for rank, micro_batches in traces]
        return [
            _answer(child, rank, deadline - time.monotonic()) for child, (rank, _) in zip(children, traces, strict=True)
        ]


@contextmanager
def _child(job: str, rank: int, micro_batches: int) -> Iterator[subprocess.Popen[str]]:
    process = start_child(
        [sys.executable, "-P", "-m", CHILD, str(rank), str(micro_batches)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        try:
            _hand_over(job, process)
            yield process
        finally:
            process.kill()


def _hand_over(job: str, child: subprocess.Popen[str]) -> None:
    """Write the job, which a pipe holds as a whole, to the child's input and close it: all children begin at once."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it ended at once; why is in its other pipes
            child.stdin.write(job)
            child.stdin.close()
    child.stdin = None  # so that `communicate` leaves it alone


def _answer(child: subprocess.Popen[str], rank: int, timeout_s: float) -> Seen:
    try:
        output, errors = child.communicate(timeout=max(0.0, timeout_s))
    except subprocess.TimeoutExpired:
        raise FrontrunnerError(f"the trace of rank {rank} was not done within {DEADLINE_S:.0f} s") from None
    if child.returncode != 0:
        tail = "\n".join(errors.splitlines()[-TAIL_LINES:])
        raise FrontrunnerError(f"the trace of rank {rank} ended with status {child.returncode}:\n{tail}")
    seen: Seen = json.loads(output)
    return seen


def _extrapolated(few: Seen, many: Seen, chosen: DryRunPlan) -> Seen:
    """The memory of all micro-batches, from traces of some and of twice as many."""
    steps = chosen.recipe.accumulation / chosen.micro_batches - 1
    sizes = {
        category: max(0, round(size + steps * (many["memory_bytes"][category] - size)))
        for category, size in few["memory_bytes"].items()
    }
    return {**few, "memory_bytes": sizes, "trace_time_s": few["trace_time_s"] + many["trace_time_s"]}


def _traced_rank(seen: Seen, chosen: DryRunPlan) -> TracedRank:
    recipe, flops = chosen.recipe, seen["flops"]
    place = recipe.pipeline_rank(seen["rank"])
    layers = layers_of_pipeline_ranks(recipe, chosen.problem)[place]
    return TracedRank(
        rank=seen["rank"],
        pipeline_rank=place,
        layers=layers,
        memory_bytes=seen["memory_bytes"],
        forward_flops=flops["forward"],
        backward_flops=flops["backward"],
        recomputed_flops=flops["recompute"],
        model_flops_by_formula=_by_formula(chosen, place, layers),
        trace_time_s=seen["trace_time_s"],
    )


def _by_formula(chosen: DryRunPlan, place: int, layers: int) -> float:
    """3 x tokens of a rank x (layers x FLOPs of a layer + FLOPs of the head where it is) / tensor_parallel."""
    recipe, problem = chosen.recipe, chosen.problem
    forward = layers * problem.model.layer_flops_per_token(problem.sequence_length)
    if rank_of_stage(recipe, recipe.stages - 1) == place:
        forward += problem.model.head_flops_per_token()
    tokens = recipe.micro_batch_seqs * recipe.accumulation * problem.sequence_length / recipe.context_parallel
    return 3.0 * tokens * forward / recipe.tensor_parallel
