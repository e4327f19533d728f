"""How long ranks wait for their replicas, and for the link to the host's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows, number
from frontrunner.evaluators.analytic.communication import all_to_all_s, exposed_s, ring_s
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.parts.layer import weights_of_kinds
from frontrunner.evaluators.analytic.workload import FP8_SCALINGS, ShardingRows, Workload

QUANTIZED_GROUP = 8000.0
"""Parameters to one fp32 scale in int8 gathers (`target_group_size` of DeepSpeed's
`CUDAQuantizer`).
"""
HALF_BYTES, SCALE_BYTES = 2.0, 4.0
"""DeepSpeed's quantizers read and write fp16, with scales in fp32 (`csrc/quantization`)."""


@dataclass(frozen=True, kw_only=True)
class ReplicaWaits:
    """Seconds that a rank waits for its replicas: at each micro-batch, after the last, and after
    the optimizer.
    """

    each: Rows
    last: Rows
    published: Rows

    def per_step(self, work: Workload) -> Rows:
        """Return the seconds of a whole step."""
        return work.schedule.accumulation * self.each + self.last + self.published


@dataclass(frozen=True, kw_only=True)
class _Replicas:
    """Ranks with copies of the same parameters, `stride` ranks apart."""

    parameters: Rows
    """Those of a rank, before any sharding."""
    layer_parameters: Rows
    """Those of one layer."""
    copies: Rows
    stride: Rows
    sharding: ShardingRows
    narrow_parameters: Rows
    """Parameters that are gathered in 8 bits."""

    @property
    def layers(self) -> Rows:
        """The parameters in units of a layer's."""
        return np.maximum(self.parameters / self.layer_parameters, 1)


def replica_waits(
    machine: Machine,
    work: Workload,
    parameters: Rows,
    forward: Rows,
    backward: Rows,
    experts: Rows | None = None,
) -> ReplicaWaits:
    """Return when and how long a rank of `parameters`, before any sharding, waits for the replicas.

    `experts` of these are shared by expert-parallel ranks, and have other replicas. `forward` and
    `backward` are that rank's times per micro-batch. With degrees p, g, o of N copies: parameters
    are gathered over p for each pass of each micro-batch, over a secondary partition for the
    backward pass where there is one; gradients are reduced over g after each, if g > 1, and then
    once per step over o / g, and over the N / o copies that are left; new parameters are gathered
    over o / p. Quantized messages are smaller, and pass through memory.
    """
    code, sharding = machine.code, work.sharding
    hides = code.gradients.overlaps_unsharded | (sharding.parameters > 1)
    hides = hides & (code.gradients.overlaps_scattered | (sharding.optimizer == 1))
    overlap: Rows = np.where(hides, code.gradient_overlap, 0.0)
    waits = _waits(machine, work, _replicas(machine, work, parameters))
    expert_ranks = work.degrees.expert_ranks
    if experts is not None and (expert_ranks > 1).any():
        others = _waits(machine, work, _replicas(machine, work, parameters - experts))
        of_experts = _waits(machine, work, _expert_replicas(machine, work, experts))
        waits = tuple(
            np.where(expert_ranks > 1, other + expert, together)
            for other, expert, together in zip(others, of_experts, waits, strict=True)
        )
    each, once, published = waits
    each = each + np.where(sharding.reduces_each, once, 0.0)
    pass_s = np.where(sharding.parameters > 1, forward + backward, backward)
    return ReplicaWaits(
        each=exposed_s(each, overlap * pass_s),
        last=np.where(sharding.reduces_each, 0.0, exposed_s(once, overlap * backward)),
        published=published,
    )


def _replicas(machine: Machine, work: Workload, parameters: Rows) -> _Replicas:
    layer_parameters = weights_of_kinds(work)[-1].on_rank(work)
    return _with_narrow(
        machine,
        work,
        _Replicas(
            parameters=parameters,
            layer_parameters=layer_parameters,
            copies=work.degrees.copies,
            stride=work.degrees.strides["dp"],
            sharding=work.sharding,
            narrow_parameters=np.zeros(1),
        ),
    )


def _expert_replicas(machine: Machine, work: Workload, parameters: Rows) -> _Replicas:
    """Return the ranks with copies of the same experts.

    Groups that share all experts stand where tensor-parallel ranks do.
    """
    degrees, sharding, model = work.degrees, work.sharding, work.model
    ranks = degrees.expert_ranks
    copies = degrees.tensor * degrees.copies / ranks
    spread = replace(
        sharding,
        parameters=np.where(sharding.parameters > 1, copies, 1.0),
        gradients=np.where(sharding.gradients > 1, copies, 1.0),
        optimizer=np.where(sharding.optimizer > 1, copies, 1.0),
    )
    grouped = replace(degrees, tensor=ranks, data=copies, context=number(1))
    router = model.hidden * (model.mixture.experts if model.mixture else 0)
    return _with_narrow(
        machine,
        work,
        _Replicas(
            parameters=parameters,
            layer_parameters=(router + weights_of_kinds(work)[-1].experts) / ranks,
            copies=copies,
            stride=grouped.strides["dp"],
            sharding=spread,
            narrow_parameters=np.zeros(1),
        ),
    )


def _with_narrow(machine: Machine, work: Workload, replicas: _Replicas) -> _Replicas:
    """Return the replicas with the parameters that they gather in 8 bits: those of layers."""
    if not (work.choices.fp8 > 0).any():
        return replicas
    layers = sum(work.layers.first[1:], start=work.layers.first[0])
    of_layers = np.minimum(layers * replicas.layer_parameters, replicas.parameters)
    narrow = np.where(gathers_in_8_bits(machine, work), of_layers, 0.0)
    return replace(replicas, narrow_parameters=narrow)


def gathers_in_8_bits(machine: Machine, work: Workload) -> Flags:
    """Return the recipes whose parameters are gathered in 8 bits.

    Under torchao they have one factor for each tensor. Transformer Engine, which has no factors by
    row, gathers all but MXFP8.
    """
    products = machine.code.products
    names = ["tensorwise"]
    if products.transformer_engine:
        names = [name for name in FP8_SCALINGS[1:] if name not in ("rowwise", "mxfp8")]
    narrow: Flags = np.isin(work.choices.fp8, [FP8_SCALINGS.index(name) for name in names])
    return narrow & products.gathers_in_8_bits


def _waits(machine: Machine, work: Workload, replicas: _Replicas) -> tuple[Rows, ...]:
    """Return what each micro-batch's messages take, those of the gradients once, and those of the
    new parameters.
    """
    p, o = replicas.sharding.parameters, replicas.sharding.optimizer
    published = ring_s(
        machine,
        _weight_bytes(work, replicas) / p,
        group=o / p,
        stride=replicas.stride * p,
        passes=1,
    )
    return _each_micro_batch_s(machine, work, replicas), _once_s(machine, work, replicas), published


def _weight_bytes(work: Workload, replicas: _Replicas) -> Rows:
    """Return the bytes of the parameters as they are gathered."""
    saved = replicas.narrow_parameters * (work.bytes_per_value - 1)
    return replicas.parameters * work.bytes_per_value - saved


def _each_micro_batch_s(machine: Machine, work: Workload, replicas: _Replicas) -> Rows:
    sharding, parameters, size = replicas.sharding, replicas.parameters, work.bytes_per_value
    p, stride = sharding.parameters, replicas.stride
    weights, dequantized = _weight_bytes(work, replicas), np.zeros(1)
    if sharding.quantized_weights.any():
        quantized = parameters * (1 + SCALE_BYTES / QUANTIZED_GROUP)
        weights = np.where(sharding.quantized_weights, quantized, weights)
        # What arrives twice in int8 is read, written in fp16, read again and converted.
        moved = 2 * parameters * (1 + 2 * HALF_BYTES + size)
        dequantized = np.where(sharding.quantized_weights, moved / machine.memory_bytes_per_s, 0.0)
    messages = replicas.layers * machine.code.replicas.gathers_per_layer
    gathered = ring_s(machine, weights, group=p, stride=stride, passes=1, messages=messages)
    again, near = gathered, sharding.secondary_partition
    if (near > 1).any():
        nearby = ring_s(machine, weights, group=near, stride=stride, passes=1, messages=messages)
        again = np.where((p > 1) & (near > 1), nearby, gathered)
    reduced = ring_s(
        machine,
        parameters * machine.code.gradient_bytes(size),
        group=sharding.gradients,
        stride=stride,
        passes=1,
        messages=replicas.layers,
    )
    if sharding.quantized_gradients.any():
        in_int4 = _two_hops_s(machine, work, replicas)
        reduced = np.where(sharding.quantized_gradients, in_int4, reduced)
    return gathered + again + dequantized + reduced


def _two_hops_s(machine: Machine, work: Workload, replicas: _Replicas) -> Rows:
    """Return the time to reduce gradients in int4 as ZeRO++ does (arXiv 2306.10209, section 3.3).

    All-to-alls within nodes, and then of what a node's device has summed between the nodes. Memory
    is passed over to convert the gradients to fp16 and quantize them, to sum what arrives and
    quantize it, and to dequantize and sum that. A scale is for a row of a matrix.
    """
    width, wide = machine.devices_per_node, HALF_BYTES + work.bytes_per_value
    nodes = np.maximum(replicas.sharding.gradients / width, 1.0)
    int4 = 0.5 + SCALE_BYTES / work.model.hidden
    layers = replicas.layers
    message = replicas.parameters * int4 / layers
    within = all_to_all_s(machine, message, group=number(width), stride=number(1))
    between = all_to_all_s(machine, message / width, group=nodes, stride=number(width))
    moved = wide + HALF_BYTES + int4 + (1 + 1 / width) * int4 + (int4 + 2 * HALF_BYTES) / width
    return layers * (within + between) + replicas.parameters * moved / machine.memory_bytes_per_s


def _once_s(machine: Machine, work: Workload, replicas: _Replicas) -> Rows:
    code, sharding, stride = machine.code, replicas.sharding, replicas.stride
    g = sharding.gradients
    o = g if code.gradients.reduced_whole else sharding.optimizer
    bytes_each = code.gradient_bytes(work.bytes_per_value)
    if code.gradients.reduced_wide:
        bytes_each = 4.0
    gradients = replicas.parameters * bytes_each
    message = np.maximum(
        code.replicas.message_elements, code.replicas.message_layers * replicas.layer_parameters
    )
    if bucket := code.replicas.whole_bucket_elements:
        message = np.where(o == 1, bucket, message)
    messages = np.maximum(replicas.parameters / message, 1.0)
    scatter = ring_s(
        machine, gradients / g, group=o / g, stride=stride * g, passes=1, messages=messages
    )
    left = replicas.copies / o
    return scatter + ring_s(
        machine, gradients / o, group=left, stride=stride * o, passes=2, messages=messages
    )


def host_transfer_s(
    machine: Machine,
    work: Workload,
    parameters: Rows,
    *,
    activation_bytes: Rows,
    passes: tuple[Rows, Rows],
) -> Rows:
    """Return the time per step that a rank of `parameters` parameters waits for the host's link.

    Its layers keep `activation_bytes` of a micro-batch, and `passes` are forward and backward time
    per micro-batch. Activations travel beside the forward pass and back beside the backward pass;
    parameters and gradients overlap as collectives do. No measurement has validated these times.
    """
    states, sharding, code = work.states, work.sharding, machine.code
    if not states.uses_host:
        return np.zeros(1)
    one_way_s = np.where(states.activation_offload, activation_bytes, 0.0)
    one_way_s = one_way_s / machine.host_bytes_per_s
    activations = sum(exposed_s(one_way_s, pass_s) for pass_s in passes)
    # The fp32 parameters are fetched where these are the only copy.
    parameter_bytes = 4.0 if code.replicas.holds_only_masters else work.bytes_per_value
    fetched = 2 * parameters / sharding.parameters * parameter_bytes
    reduces_each = (sharding.gradients > 1) | sharding.reduces_each | states.parameters_on_host
    gradients = parameters / sharding.gradients * code.gradient_bytes(work.bytes_per_value)
    updated = parameters / sharding.optimizer * work.bytes_per_value
    each = np.where(states.parameters_on_host, fetched, 0.0)
    each = each + np.where(reduces_each, gradients, 0.0)
    once = np.where(reduces_each, 0.0, gradients)
    once = once + np.where(states.parameters_on_host, 0.0, updated)
    each_s, once_s = (moved / machine.host_bytes_per_s for moved in (each, once))
    overlap = np.where(states.parameters_on_host, code.gradient_overlap, 0.0)
    hidden = overlap * (passes[0] + passes[1])
    accumulation = work.schedule.accumulation
    of_states = accumulation * exposed_s(each_s, hidden) + once_s
    return accumulation * activations + np.where(states.optimizer_on_host, of_states, 0.0)
