"""The time of an optimizer step: the pipeline's ranks and bubble, the replicas' traffic, the
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from frontrunner.evaluators.analytic import communication, compute
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import fullest_parameters
from frontrunner.evaluators.analytic.software import Software
from frontrunner.evaluators.analytic.workload import Flags, Parts, Rows, Workload, number

UNFUSED_HOST_SHARE = 0.2
"""Of the host's work per layer, what softmax adds where it is not one kernel: four beside 15
forward and four beside 29 backward, as `compute` counts them, with the forward pass run twice.
"""
CASTING_HOST = 4.5
"""The host's work per layer where torchao casts uncompiled, over that without: 14 casts forward of
ten kernels each, and twice as many backward, beside 40 and 80.
"""
COMPILED_HOST_SHARE = 0.5
"""What is left of the host's work per layer where it is compiled and few kernels are started;
assumed.
"""
OPERATIONS = 44, 88
"""Of a layer without experts, which the host starts in Megatron-core's forward and backward
passes.
"""
OPERATIONS_PER_BIAS = 2, 9
"""Of an expert's weighted bias, where each is added by itself: multiplied and added; backward
converted, for bias and weight multiplied and summed, and added to two biases' gradients, with a
hook of the replicas' for each.
"""
OPERATIONS_PER_ROTATION = 26, 16
"""Of eager rotations of queries and keys over fused ones: cosine and sine, scaled and converted, a
half negated and joined, two products, a sum and what is not rotated joined; backward products, sums
and joins.
"""
OPERATIONS_OF_LATENTS = 16, 16
"""Of latent attention over plain: products and norms of latent vectors, splits, and joins with the
rotated part.
"""
GRAPHS_HOST_SHARE = {"none": 1.0, "layers": 0.5, "step": 0.0}
"""What is left of it under CUDA graphs, by what they hold; that of parts of a layer is assumed."""


@dataclass(frozen=True, kw_only=True)
class StepTime(Parts):
    """Seconds of one optimizer step by what the slowest pipeline rank spends them on, waits beyond
    what overlaps.
    """

    compute: Rows
    recompute: Rows
    tensor_parallel: Rows
    context_parallel: Rows
    expert_parallel: Rows
    pipeline_transfer: Rows
    bubble: Rows
    data_parallel: Rows
    host_transfer: Rows
    optimizer: Rows


TRAFFIC = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_transfer",
    "data_parallel",
)


@dataclass(frozen=True, kw_only=True)
class _Layer(Parts):
    forward: Rows
    backward: Rows
    recompute: Rows
    traffic: Rows
    exchanges: Rows
    dispatch: Rows

    @property
    def waits(self) -> Rows:
        """What is not computing, or its repetition."""
        return self.traffic + self.exchanges + self.dispatch


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """The seconds of a layer, and of one without experts where some are."""

    mixed: _Layer
    dense: _Layer | None

    def held(self, layers: Rows, dense: Rows, part: Callable[[_Layer], Rows]) -> Rows:
        """Return the seconds of a part of so many layers, of which `dense` have no experts."""
        found = layers * part(self.mixed)
        return (
            found if self.dense is None else found + dense * (part(self.dense) - part(self.mixed))
        )


def step_time(machine: Machine, work: Workload) -> StepTime:
    """Return the step time of each recipe: micro-batches at the slowest rank's pace, and the
    bubble.
    """
    kinds = _kinds(machine, work)
    head_s, embedding_s = compute.head(machine, work).total, compute.embedding(machine, work).total
    first, between, last = _of_ranks(work, kinds, head_s, embedding_s)
    slowest = np.maximum(np.maximum(first, last), between)
    held = np.where(slowest == first, work.layers_first, work.layers_middle)
    held = np.where(slowest == last, work.layers_last, held)
    dense = np.where(slowest == first, work.dense_first, work.dense_middle)
    dense = np.where(slowest == last, work.dense_last, dense)
    part = {
        name: kinds.held(held, dense, attrgetter(name)) for name in (f.name for f in fields(_Layer))
    }
    transfer = communication.pipeline_transfer_s(machine, work)
    through = (
        kinds.held(work.layers, work.dense_layers, attrgetter("total"))
        + head_s
        + embedding_s
        + transfer * (work.pipeline_parallel - 1)
    )
    m = work.accumulation
    waits = transfer * work.virtual_stages * exposed_transfers(machine, work)
    parameters = fullest_parameters(machine, work)
    passes = (part["forward"], part["backward"])
    experts, o = (held - dense) * work.expert_share_over(number(1)), work.sharding_optimizer
    updated = (parameters - experts + (held - dense) * work.expert_share_over(o)) / o
    return StepTime(
        compute=m
        * (slowest - part["recompute"] - part["traffic"] - part["exchanges"] - part["dispatch"]),
        recompute=m * part["recompute"],
        tensor_parallel=m * part["traffic"],
        context_parallel=m * part["exchanges"],
        expert_parallel=m * part["dispatch"],
        pipeline_transfer=m * waits,
        bubble=bubble_s(
            work, slowest=slowest, through=through, left=_left_of_bubble(work, kinds.mixed)
        ),
        data_parallel=communication.replicas_s(machine, work, parameters, *passes, experts=experts),
        host_transfer=communication.host_transfer_s(
            machine, work, parameters, layers=held, passes=passes
        ),
        optimizer=compute.optimizer_s(machine, work, updated),
    )


def exposed_transfers(machine: Machine, work: Workload) -> Rows:
    """Return the time that a pass waits for the transfer before it over what the transfer takes.

    Twice as much where a rank does not send while it receives.
    """
    exposed = number(2.0 if machine.software.sends_in_turn else 1.0)
    if not machine.software.overlaps_interleaved:
        return exposed
    return np.where(work.virtual_stages > 1, communication.LEAST_EXPOSED, 1.0) * exposed


@dataclass(frozen=True, kw_only=True)
class PassTime(Parts):
    """Seconds of one micro-batch's pass through each stage, by what they are spent on."""

    compute: Rows
    recompute: Rows
    tensor_parallel: Rows
    context_parallel: Rows
    expert_parallel: Rows


def stage_passes(
    machine: Machine, work: Workload, layers: Rows, dense: Rows
) -> dict[str, PassTime]:
    """Return one recipe's forward passes (F), backward passes for inputs (I) and for weights (W),
    by stage.

    A stage has so many `layers`, `dense` of them without experts; the first has the embedding, the
    last the head. Half of the waits are the forward pass's. A backward pass that is not split is I
    and W together.
    """
    kinds = _kinds(machine, work)
    of = {one.name: kinds.held(layers, dense, attrgetter(one.name)) for one in fields(_Layer)}
    ends = np.eye(len(layers))[[0, -1]]
    tables = compute.embedding(machine, work), compute.head(machine, work)
    forward = of["forward"] + sum(end * one.forward for end, one in zip(ends, tables, strict=True))
    backward = of["backward"] + sum(
        end * one.backward for end, one in zip(ends, tables, strict=True)
    )
    weights = np.where(work.split_backward, compute.WEIGHTS_SHARE, 0.0) * backward
    none = np.zeros(len(layers))
    waits = {
        name: of[its] / 2
        for name, its in zip(TRAFFIC[:3], ("traffic", "exchanges", "dispatch"), strict=True)
    }
    return {
        "F": PassTime(compute=forward, recompute=none, **waits),
        "I": PassTime(compute=backward - weights, recompute=of["recompute"], **waits),
        "W": PassTime(compute=weights, recompute=none, **dict.fromkeys(waits, none)),
    }


def _kinds(machine: Machine, work: Workload) -> _Kinds:
    dense = _layer(machine, work.without_experts) if work.dense_layers.any() else None
    return _Kinds(mixed=_layer(machine, work), dense=dense)


def _of_ranks(
    work: Workload, kinds: _Kinds, head_s: Rows, embedding_s: Rows
) -> tuple[Rows, Rows, Rows]:
    """Return the seconds of one micro-batch on the ranks with the embedding, the fullest between,
    with the head.
    """
    total = attrgetter("total")
    first = kinds.held(work.layers_first, work.dense_first, total)
    last = kinds.held(work.layers_last, work.dense_last, total)
    first = first + embedding_s + np.where(work.head_on_first, head_s, 0.0)
    last = np.where(work.head_on_first, 0.0, last + head_s)
    return first, kinds.held(work.layers_middle, work.dense_middle, total), last


def busy_of_ranks(machine: Machine, work: Workload) -> tuple[Rows, Rows, Rows]:
    """Return the seconds of a step in which each of these ranks computes, or communicates within
    its layers.
    """
    head_s, embedding_s = compute.head(machine, work).total, compute.embedding(machine, work).total
    first, between, last = _of_ranks(work, _kinds(machine, work), head_s, embedding_s)
    return work.accumulation * first, work.accumulation * between, work.accumulation * last


def _left_of_bubble(work: Workload, layer: _Layer) -> Rows:
    """Return the share of the bubble that gradients of weights do not fill; 1 where they are not
    computed apart.
    """
    if not work.split_backward.any():
        return number(1)
    between = layer.waits / 2
    weights = compute.WEIGHTS_SHARE * layer.backward
    parts = {
        "forward": layer.forward + between,
        "backward": layer.backward - weights + layer.recompute + between,
        "weights": weights,
    }
    shape = {"is_v_shaped": work.head_on_first, "is_dual": work.dual_pipeline}
    left = share_left(work.pipeline_parallel, work.accumulation, parts, **shape)
    return np.where(work.split_backward, left, 1.0)


def _layer(machine: Machine, work: Workload) -> _Layer:
    passes = compute.layer(machine, work)
    # One all-reduce over the tensor-parallel ranks, or its two halves (arXiv 2205.05198).
    message, ways = work.tokens * work.hidden * work.bytes_per_value, work.tensor_parallel
    reduces = communication.ring_s(
        machine, message, group=ways, stride=work.strides["tp"], passes=2
    )
    software = machine.software
    exchanges = communication.exchanges_s(machine, work)
    issued = np.where(work.tensor_parallel > 1, np.where(work.sequence_parallel, 4.0, 2.0), 0.0)
    issued = (
        issued
        + np.where(work.context_parallel > 1, 2.0, 0.0)
        + np.where(work.expert_parallel > 1, 3.0, 0.0)
    )
    issued = issued + np.where(work.expert_tensor_parallel > 1, 3.0, 0.0)
    host = (
        software.host_layer_s
        * GRAPHS_HOST_SHARE[software.graphs]
        * np.where(work.compile, COMPILED_HOST_SHARE, 1.0)
    )
    host = host * np.where(work.experts > 0, software.host_of_experts, 1.0)
    host = host * np.where(software.lacks_fused_softmax(work), 1 + UNFUSED_HOST_SHARE, 1.0)
    host = host * np.where(
        (work.fp8 > 0) & ~work.compile & (not software.transformer_engine), CASTING_HOST, 1.0
    )
    host = host + issued * software.host_collective_s - 2 * reduces
    starts = [host + more for more in _host_of_forms(software, work)]
    # Of a reduce-scatter and all-gather, selective recompute that keeps products repeats the
    # all-gather alone.
    selective = np.where(
        software.keeps_products(work), np.where(work.sequence_parallel, 1.0, 2.0), 0.0
    )
    again = np.where(work.recompute_full, 2.0, np.where(work.recompute_selective, selective, 0.0))
    if software.reduces_gate_twice:
        again = again + np.where((work.ffn_matrices == 3) & ~work.sequence_parallel, 1.0, 0.0)
    forward, backward = (
        np.maximum(passes.forward, starts[0]),
        np.maximum(passes.backward, starts[1]),
    )
    dispatch = communication.dispatch_s(machine, work)
    if software.overlaps_dispatch:
        dispatch = np.maximum(dispatch - forward - backward, communication.LEAST_EXPOSED * dispatch)
    # Experts take each tensor-parallel rank's own positions, shared ones all.
    of_own = (work.experts > 0) & (work.shared_experts == 0)
    traffic = software.share_sent(work) * (4.0 + again) * np.where(of_own, 0.5, 1.0) * reduces
    if software.overlaps_tensor:
        hides = work.sequence_parallel & (work.experts == 0)
        beside = np.maximum(traffic - forward - backward, communication.LEAST_EXPOSED * traffic)
        traffic = np.where(hides, beside, traffic)
    return _Layer(
        forward=forward,
        backward=backward,
        recompute=compute.recompute_s(machine, work, forward),
        traffic=traffic,
        exchanges=exchanges,
        dispatch=dispatch,
    )


def _host_of_forms(software: Software, work: Workload) -> Iterator[Rows]:
    """Yield the host's time for what only some models need, forward and backward.

    Biases that are added expert by expert, rotations that no fused kernel takes, and latent
    vectors.
    """
    held = work.held_experts
    singly = work.expert_biases & (software.expert_biases == "singly")
    share = GRAPHS_HOST_SHARE[software.graphs] * np.where(work.compile, COMPILED_HOST_SHARE, 1.0)
    kinds = (OPERATIONS, OPERATIONS_PER_BIAS, OPERATIONS_PER_ROTATION, OPERATIONS_OF_LATENTS)
    for of_layer, biases, rotations, latents in zip(*kinds, strict=True):
        more = (
            singly * held * biases
            + software.rotates_eagerly(work) * rotations
            + (work.key_value_rank > 0) * latents
        )
        yield share * more / of_layer * software.host_layer_s


# Bubbles: closed forms over equal stages, in seconds of the slowest rank. One of its chunks takes
# `forward`, `backward` for the gradients of its input and `weights` for those of its weights; p
# ranks, m micro-batches. They were found by simulating the orders of operations that torch's
# schedules run, and a test holds them to those orders (tests/unit/test_analytic_schedules.py). The
# schedules are those of arXiv 2401.10241 and of DeepSeek's DualPipeV. 1F1B, GPipe and their
# interleaved variants wait exactly (p - 1) (forward + backward + weights).


def bubble_s(work: Workload, *, slowest: Rows, through: Rows, left: Rows | float = 1.0) -> Rows:
    """Return the time that the slowest rank waits; a micro-batch takes it `slowest`, and all ranks
    in turn `through`.

    Virtual stages divide it (arXiv 2104.04473, section 2.2); `left` is the share left where the
    backward pass is split.
    """
    return np.where(
        work.pipeline_parallel > 1, (through - slowest) * left / work.virtual_stages, 0.0
    )


def interleaved(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """Return (p - 1) max(forward, backward, forward + backward - weights); exact for m of at least
    p.
    """
    return (p - 1) * np.maximum(np.maximum(forward, backward), forward + backward - weights)


def v_shaped(p: Rows, m: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """Return (p - 1) max(forward, backward, 2 (backward - weights)), and what fewer than 2 p
    micro-batches leave.

    Exact for m of at least 2 p where backward is at least forward, else within a tenth; a quarter
    with fewer.
    """
    steady = (p - 1) * np.maximum(np.maximum(forward, backward), 2 * (backward - weights))
    starved = 2 * p * (forward + backward) - 2 * m * forward - 2 * backward
    return np.where(m < 2 * p, np.maximum(steady, starved), steady)


def dual(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """Return max((p - 1) max(forward, forward + backward - weights), (p - 1) (2 backward - weights)
    - forward).

    Exact for m of at least 2 p, which DualPipeV needs.
    """
    filling = (p - 1) * np.maximum(forward, forward + backward - weights)
    return np.maximum(filling, (p - 1) * (2 * backward - weights) - forward)


def share_left(
    p: Rows, m: Rows, parts: Mapping[str, Rows], *, is_v_shaped: Flags, is_dual: Flags
) -> Rows:
    """Return the bubble of a schedule that splits the backward pass over that of one that does not;
    1 for one rank.

    `parts` are the seconds named forward, backward and weights.
    """
    split = np.where(
        is_dual,
        dual(p, **parts),
        np.where(is_v_shaped, v_shaped(p, m, **parts), interleaved(p, **parts)),
    )
    whole = (p - 1) * (parts["forward"] + parts["backward"] + parts["weights"])
    return np.divide(split, whole, out=np.ones(np.broadcast(split, whole).shape), where=whole > 0)
