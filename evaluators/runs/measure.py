"""Measurement from what the ranks wrote: the one place where tokens and FLOPs are counted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    ProbeEnding,
    Telemetry,
    implausibility,
    memory_above_idle,
)
from frontrunner.spaces.document import read_plain
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


def tokens_per_step(recipe: Recipe, problem: Problem) -> int:
    """Return global_batch_seqs * sequence_length."""
    return recipe.global_batch_seqs * problem.sequence_length


def nodes_used(recipe: Recipe, problem: Problem) -> int:
    """Return the whole nodes that a recipe's devices occupy: ceil(devices / devices_per_node)."""
    return math.ceil(recipe.devices / problem.cluster.devices_per_node)


def hardware_flops_per_token(recipe: Recipe, problem: Problem, *, causal: bool = False) -> float:
    """Return `Model.hardware_flops_per_token` with what this recipe computes twice; `causal` halves
    attention.
    """
    return problem.model.hardware_flops_per_token(
        problem.sequence_length,
        recipe.recompute,
        causal=causal,
        feed_forward_tiles=recipe.feed_forward_tiles,
        chunked_loss=recipe.loss_chunks > 1,
    )


def rates(recipe: Recipe, problem: Problem, step_time_s: float) -> dict[str, Any]:
    """Return tokens_per_s, model_tflops_per_device, hardware_tflops_per_device and mfu for a step
    of `step_time_s`.

    TFLOPS per device = tokens/s * FLOPs per token / devices / 1e12; MFU = model FLOPs over the
    device's peak, in 8 bits where the layers' products are.
    """
    model, length = problem.model, problem.sequence_length
    tokens_per_s = tokens_per_step(recipe, problem) / step_time_s
    per_device = tokens_per_s / recipe.devices / 1e12
    model_tflops = per_device * model.model_flops_per_token(length)
    peak = problem.cluster.peak_flops(recipe.arithmetic(problem.precision))
    return {
        "tokens_per_s": tokens_per_s,
        "model_tflops_per_device": model_tflops,
        "hardware_tflops_per_device": per_device * hardware_flops_per_token(recipe, problem),
        "mfu": None if peak is None else model_tflops * 1e12 / peak,
    }


def measured_steps(
    recipe: Recipe, problem: Problem, step_times_s: tuple[float, ...], **more: Any
) -> Measurement:
    """Return the measurement of these steps, with the rates of their median; `more` are its other
    fields.
    """
    unknown: dict[str, Any] = {
        "losses": (),
        "build_time_s": 0.0,
        "first_step_time_s": step_times_s[0],
    }
    return Measurement(
        step_times_s=step_times_s,
        tokens_per_step=tokens_per_step(recipe, problem),
        **(rates(recipe, problem, statistics.median(step_times_s)) | unknown | more),
    )


def peaks_of_stages(recipe: Recipe, peaks_of_ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the peak of the fullest rank of each pipeline stage, the first stage first.

    Where the peaks are not one per rank, as of a command that states one in all, the largest is
    the only one that is known.
    """
    if len(peaks_of_ranks) != recipe.devices:
        return (max(peaks_of_ranks, default=0),)
    stride = recipe.rank_strides["pp"]
    peaks = [0] * recipe.pipeline_parallel
    for rank, peak in enumerate(peaks_of_ranks):
        stage = rank // stride % recipe.pipeline_parallel
        peaks[stage] = max(peaks[stage], peak)
    return tuple(peaks)


def measurement(
    result: Mapping[str, Any],
    recipe: Recipe,
    problem: Problem,
    node_seconds: float,
    *,
    memory_is_known: bool = True,
) -> Measurement | Failure:
    """Return the outcome that follows from a `result.json`: a measurement, or a NOT_FINITE or
    IMPLAUSIBLE failure.

    A trainer's log may state no peak (`memory_is_known`). Raises KeyError, TypeError or ValueError
    for a damaged file.
    """
    if result["status"] == "not-finite":
        losses, overflowed = result["losses"], result.get("overflowed_steps", [])
        message = (
            f"gradients overflowed fp16 in {len(overflowed)} of {len(losses)} steps, and in every"
            " measured one"
        )
        if losses[-1] is None or not overflowed:
            message = f"the loss was not finite at step {len(losses)}"
        return Failure(kind=FailureKind.NOT_FINITE, message=message, node_seconds=node_seconds)
    times = tuple(float(t) for t in result["step_times_s"])
    median = statistics.median(times)
    if not (math.isfinite(median) and median > 0):
        message = f"the median step took {median} s"
        return Failure(kind=FailureKind.IMPLAUSIBLE, message=message, node_seconds=node_seconds)
    peaks_of_ranks = [int(peak) for peak in result["peak_memory_bytes"]]
    measured = measured_steps(
        recipe,
        problem,
        times,
        peak_memory_bytes=peaks_of_stages(recipe, peaks_of_ranks),
        losses=tuple(float(loss) for loss in result["losses"]),
        node_seconds=node_seconds,
        build_time_s=float(result["build_time_s"]),
        first_step_time_s=float(result["first_step_time_s"]),
        ended=ProbeEnding(result["ended"]) if "ended" in result else None,
        telemetry=_telemetry(result, peaks_of_ranks),
    )
    # numpy, which counting alone does not need
    from frontrunner.evaluators.analytic.accuracy_bounds import why_too_fast

    peak_flops = problem.cluster.peak_flops(recipe.arithmetic(problem.precision))
    executed = (
        hardware_flops_per_token(recipe, problem, causal=True)
        * measured.tokens_per_s
        / recipe.devices
    )
    known_peaks = peaks_of_ranks if memory_is_known else None
    doubt = implausibility(measured, executed, peak_flops, known_peaks)
    if (doubt := doubt or why_too_fast(recipe, problem, median)) is not None:
        return Failure(kind=FailureKind.IMPLAUSIBLE, message=doubt, node_seconds=node_seconds)
    return measured


def _telemetry(result: Mapping[str, Any], peaks_of_ranks: Sequence[int]) -> Telemetry | None:
    if "telemetry" not in result:
        return None
    recorded: Telemetry = read_plain(Telemetry, result["telemetry"], "telemetry")
    above_idle = memory_above_idle(peaks_of_ranks, recorded.idle_memory_bytes)
    return replace(recorded, memory_above_idle_bytes_max_rank=above_idle)
