"""The time of one layer: its operations' prices, what waits for other ranks, and the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic import communication, pricing, replicas
from frontrunner.evaluators.analytic.arrays import Rows, Sum
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.operations import (
    AttentionCore,
    ContextExchange,
    Elementwise,
    ExpertDispatch,
    HostWork,
    MemoryPass,
    Operation,
    Product,
    TensorReduction,
)
from frontrunner.evaluators.analytic.parts import layer as layer_part
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.pricing import Passes
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model.layer import Layer

CASTING_HOST = 4.5
"""The host's work per layer where torchao casts uncompiled, over that without: 14 casts forward of
ten kernels each, and twice as many backward, beside 40 and 80.
"""
COMPILED_HOST_SHARE = 0.5
"""What is left of the host's work per layer where it is compiled and few kernels are started;
assumed.
"""
GRAPHS_HOST_SHARE = {"none": 1.0, "layers": 0.5, "step": 0.0}
"""What is left of it under CUDA graphs, by what they hold; that of parts of a layer is assumed."""


@dataclass(frozen=True, kw_only=True)
class LayerTime(Sum):
    """Seconds of one micro-batch in one layer. Waits are for tensor-parallel traffic, exchanges of
    context parallelism, and dispatch to experts.
    """

    forward: Rows
    backward: Rows
    recompute: Rows
    tensor_parallel: Rows
    context_parallel: Rows
    expert_parallel: Rows

    @property
    def waits(self) -> Rows:
        """What is not computing, or its repetition."""
        return self.tensor_parallel + self.context_parallel + self.expert_parallel


def layer_time(machine: Machine, work: Workload, layer: Layer) -> LayerTime:
    """Return the seconds of one kind of layer."""
    setting = Setting(
        work=work, code=machine.code, rank_imbalance=machine.efficiencies.rank_imbalance
    )
    operations = list(layer_part.operations(layer, setting))
    products, attention, elementwise, moved = (
        pricing.priced(machine, work, operations, kind)
        for kind in (Product, AttentionCore, Elementwise, MemoryPass)
    )
    elementwise = elementwise + pricing.starts_s(machine, work)
    computed = products + attention + elementwise + moved
    parameters = layer_part.weights(layer, work).on_rank(work)
    again = pricing.repeated_s(machine, work, operations)
    adding = pricing.accumulation_s(machine, work, parameters, products)
    starts = _host_s(machine, work, operations)
    forward = np.maximum(computed.forward, starts.forward)
    backward = np.maximum(computed.backward + again + adding, starts.backward)
    busy = forward + backward
    exchange, dispatch, has_experts = np.zeros(1), np.zeros(1), False
    for operation in operations:
        if isinstance(operation, ContextExchange):
            exchange = exchange + communication.exchange_s(machine, work, operation)
        elif isinstance(operation, ExpertDispatch):
            dispatch = dispatch + communication.dispatch_s(machine, work, operation)
            has_experts = True
    if machine.code.experts.overlaps_dispatch:
        dispatch = communication.exposed_s(dispatch, busy)
    tensor_parallel = _tensor_parallel_s(machine, work, operations)
    if machine.code.products.overlaps_tensor_traffic and not has_experts:
        beside = communication.exposed_s(tensor_parallel, busy)
        tensor_parallel = np.where(work.choices.sequence_parallel, beside, tensor_parallel)
    return LayerTime(
        forward=forward,
        backward=backward,
        recompute=_recompute_s(machine, work, operations, forward, attention, elementwise),
        tensor_parallel=tensor_parallel,
        context_parallel=exchange,
        expert_parallel=dispatch,
    )


def _recompute_s(
    machine: Machine,
    work: Workload,
    operations: Sequence[Operation],
    forward: Rows,
    attention: Passes,
    elementwise: Passes,
) -> Rows:
    """Return what a layer computes a second time, of a forward pass that takes `forward`."""
    kept = machine.code.activations
    again = attention.forward
    if kept.keeps_products(fused_attention=work.fused_attention):
        again = elementwise.forward
    if kept.selective == "alternate":
        again = again + pricing.dropped_products_s(machine, work, operations)
    selective = np.where(work.recompute.selective, again, 0.0)
    parts = pricing.recomputed_parts_s(machine, work, operations)
    return np.where(work.recompute.full, forward, selective + parts)


def _reduce_s(machine: Machine, work: Workload, message_bytes: Rows) -> Rows:
    """Return the time of one all-reduce, or of its two halves (arXiv 2205.05198)."""
    ways, stride = work.degrees.tensor, work.degrees.strides["tp"]
    return communication.ring_s(machine, message_bytes, group=ways, stride=stride, passes=2)


def _tensor_parallel_s(machine: Machine, work: Workload, operations: Sequence[Operation]) -> Rows:
    """Return the time of the sums over tensor-parallel ranks, each forward, backward, and again
    where it is recomputed.
    """
    choices, code = work.choices, machine.code
    selective: Rows | float = 0.0
    if code.activations.keeps_products(fused_attention=work.fused_attention):
        # Of a reduce-scatter and an all-gather the latter alone is repeated.
        selective = np.where(choices.sequence_parallel, 0.5, 1.0)
    again = np.where(work.recompute.selective, selective, 0.0)
    again = np.where(work.recompute.full, 1.0, again)
    time = np.zeros(1)
    for reduction in operations:
        if not isinstance(reduction, TensorReduction):
            continue
        is_again = work.recompute.again(reduction.again) & ~work.recompute.full
        passes = 2.0 + again + is_again + reduction.more_backward
        time = time + passes * _reduce_s(machine, work, reduction.bytes)
    # Gathers in 8 bits take half of a gather's time.
    is_narrow = (choices.fp8 > 0) & code.products.transformer_engine
    if not code.products.transformer_engine:
        is_narrow = replicas.gathers_in_8_bits(machine, work)
    return np.where(is_narrow & choices.sequence_parallel, 0.75, 1.0) * time


def _host_s(machine: Machine, work: Workload, operations: Sequence[Operation]) -> Passes:
    """Return what the host takes to start a layer's kernels, less the time of two sums over the
    tensor-parallel ranks, in which the device does not wait for it.
    """
    code, choices, degrees = machine.code, work.choices, work.degrees
    extra = [one for one in operations if isinstance(one, HostWork)]
    issued = np.where(choices.sequence_parallel, 4.0, 2.0)
    issued = np.where(degrees.tensor > 1, issued, 0.0)
    issued = issued + sum(one.collectives for one in extra)
    started = np.where(choices.compile, COMPILED_HOST_SHARE, 1.0)
    started = started * GRAPHS_HOST_SHARE[code.cuda_graphs] * code.host_layer_s
    casts = (choices.fp8 > 0) & ~choices.compile & (not code.products.transformer_engine)
    layer: Rows = started * np.where(casts, CASTING_HOST, 1.0)
    for one in extra:
        layer = layer * one.factor
    result_bytes = work.tokens * work.model.hidden * work.bytes_per_value
    layer = layer + issued * code.host_collective_s - 2 * _reduce_s(machine, work, result_bytes)
    return Passes(
        forward=layer + started * sum(one.forward_share for one in extra),
        backward=layer + started * sum(one.backward_share for one in extra),
    )
