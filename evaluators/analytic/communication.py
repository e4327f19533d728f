"""How long ranks wait for data: of other ranks in collectives and pipelines, and of the host's
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import boundary_bytes, layer_activations
from frontrunner.evaluators.analytic.workload import Flags, Rows, Workload, number

LEAST_EXPOSED = 0.05
"""Share of traffic that no computation hides: nothing runs during the first and last message."""

QUANTIZED_GROUP = 8000.0
"""Parameters to one fp32 scale in int8 gathers (`target_group_size` of DeepSpeed's
`CUDAQuantizer`).
"""
HALF_BYTES, SCALE_BYTES = 2.0, 4.0
"""DeepSpeed's quantizers read and write fp16, with scales in fp32 (`csrc/quantization`)."""


def ring_s(
    machine: Machine,
    message_bytes: Rows,
    *,
    group: Rows,
    stride: Rows,
    passes: float,
    messages: Rows | float = 1.0,
) -> Rows:
    """Return the time of a ring collective in groups of `group` ranks that are `stride` ranks
    apart; 0 for one rank.

    A ring moves passes (g - 1) / g of `message_bytes` over each link; `passes` is 2 for an
    all-reduce, else 1. Groups that meet in a node share its network ports; each of `messages` takes
    the latency once, and where nodes are crowded no less than its hops do there, whatever its size.
    """
    per_node, groups_per_node = _in_nodes(machine, group, stride)
    crosses = group > per_node
    in_package = (group == 2) & (stride == 1)
    inside = np.where(in_package, machine.pair_bytes_per_s, _inside_bytes_per_s(machine, per_node))
    outside = machine.network_bytes_per_s_per_node / groups_per_node
    slowest = np.where(crosses, np.minimum(inside, outside), inside)
    latency = _latency_s(machine, group, per_node, crosses, passes)
    moving = passes * message_bytes * (group - 1) / group / slowest
    if passes == 1:
        eff = machine.efficiencies
        crowded = np.where(group / per_node > eff.crowded_nodes, group * eff.crowded_hop_s, 0.0)
        moving = np.maximum(moving, messages * crowded)
    return np.where(group > 1, moving + messages * latency, 0.0)


def _in_nodes(machine: Machine, group: Rows, stride: Rows) -> tuple[Rows, Rows]:
    width = machine.devices_per_node
    per_node = np.clip(width / stride, 1, group)
    return per_node, np.minimum(width, group * stride) / per_node


def _inside_bytes_per_s(machine: Machine, per_node: Rows) -> Rows:
    """Return what a rank reaches of its node's links in a group that has `per_node` ranks in the
    node.

    A mesh has a link per pair of devices: a group of g uses g - 1 of them, and only the whole node
    uses all (rocm.blogs.amd.com, "Understanding RCCL Bandwidth and xGMI Performance on MI300X").
    Through a switch any two devices reach all of it.
    """
    links: Rows = machine.pair_bytes_per_s * np.maximum(per_node - 1, 1.0)
    return np.minimum(machine.node_bytes_per_s, links)


def _latency_s(
    machine: Machine, group: Rows, per_node: Rows, crosses: Flags, passes: float
) -> Rows:
    """Return the latency of one collective: of passes (g - 1) hops, or of twice a tree's depth
    where that is less.

    Only all-reduces have trees; the others take one hop per rank (github.com/NVIDIA/nccl, issues
    1473 and 1594).
    """
    eff = machine.efficiencies
    hops = np.minimum(group - 1, 2 * np.log2(np.maximum(group, 1)))
    latency: Rows = (
        passes * hops * np.where(crosses, eff.network_latency_s, eff.node_latency_s) + eff.kernel_s
    )
    if passes > 1:
        return latency
    nodes = group / per_node
    around: Rows = nodes * eff.ring_network_hop_s + (group - nodes) * eff.ring_node_hop_s
    return np.where(crosses, np.maximum(latency, around), latency)


def all_to_all_s(machine: Machine, message_bytes: Rows, *, group: Rows, stride: Rows) -> Rows:
    """Return the time of an all-to-all in groups of `group` ranks, `stride` apart, inside and
    between nodes at once.
    """
    per_node, groups_per_node = _in_nodes(machine, group, stride)
    inside = message_bytes * (per_node - 1) / group / _inside_bytes_per_s(machine, per_node)
    leaving = message_bytes * (group - per_node) / group * per_node * groups_per_node
    outside = leaving / machine.network_bytes_per_s_per_node
    return np.where(
        group > 1, np.maximum(inside, outside) + _start_s(machine, group > per_node), 0.0
    )


def point_to_point_s(machine: Machine, message_bytes: Rows, stride: Rows) -> Rows:
    """Return the time to send a message to the rank `stride` further; all devices of a node send at
    once.
    """
    eff = machine.efficiencies
    crosses = stride >= machine.devices_per_node
    outside = machine.network_bytes_per_s_per_node / machine.devices_per_node
    inside = np.minimum(machine.node_bytes_per_s, machine.pair_bytes_per_s)
    speed = np.where(crosses, outside, inside)
    return message_bytes / speed + np.where(crosses, eff.network_latency_s, eff.node_latency_s)


def pipeline_transfer_s(machine: Machine, work: Workload) -> Rows:
    """Return the time to send activations to the next rank and their gradients back, per
    micro-batch.
    """
    stride = work.strides["pp"]
    sent = 2 * point_to_point_s(machine, boundary_bytes(work), stride)
    sent = sent + np.where(stride >= machine.devices_per_node, machine.software.exchange_s, 0.0)
    return np.where(work.pipeline_parallel > 1, sent, 0.0)


def exchanges_s(machine: Machine, work: Workload) -> Rows:
    """Return the time of one layer's all-to-alls around attention per micro-batch; 0 without
    context parallelism.

    One message holds query, key and value, another the result; both go again backward, and forward
    once more under full recompute (arXiv 2309.14509, decision 9).
    """
    if not (work.context_parallel > 1).any():
        return np.zeros(1)
    query = work.q_hidden / work.tensor_parallel
    # At least one head of keys for each of the ranks that share a sequence.
    keys = np.maximum(
        work.kv_hidden / work.tensor_parallel, work.context_parallel * work.q_hidden / work.heads
    )
    inwards = work.tokens * work.bytes_per_value * (query + 2 * keys)
    outwards = work.tokens * work.bytes_per_value * work.mixed_hidden / work.tensor_parallel
    group, stride = work.context_parallel, work.strides["dp"]
    once = all_to_all_s(machine, inwards, group=group, stride=stride)
    once = once + all_to_all_s(machine, outwards, group=group, stride=stride)
    return np.where(work.recompute_full, 3.0, 2.0) * once


def dispatch_s(machine: Machine, work: Workload) -> Rows:
    """Return the time of one layer's all-to-alls to the experts and back per micro-batch; 0 where
    ranks share none.

    Both go again backward, and forward once more under full recompute. Ranks that share each expert
    gather what came to them all, and scatter the sums of what they found. Sent once, a token
    crosses to a node that holds any of its experts one time, and goes to each such rank there
    (github.com/deepseek-ai/DeepEP); experts are taken to be chosen evenly.
    """
    if not (work.expert_ranks > 1).any():
        return np.zeros(1)
    row, group = (
        work.tokens / work.sequence_shards * work.hidden * work.bytes_per_value,
        work.expert_parallel,
    )
    row = row * machine.rank_imbalance(work)
    ways = work.expert_tensor_parallel
    gathered = row * work.experts_per_token * ways
    shared = ring_s(
        machine, gathered, group=ways, stride=_stage_stride(machine, work, ways), passes=1
    )
    if not machine.software.dispatches_once:
        stride = ways * _stage_stride(machine, work, work.expert_ranks)
        one_way = (
            all_to_all_s(machine, row * work.experts_per_token, group=group, stride=stride) + shared
        )
        return np.where(work.recompute_full, 6.0, 4.0) * one_way
    per_node = np.minimum(machine.devices_per_node, group)
    nodes = group / per_node
    inside = row * group * _share_chosen(work, group) * (per_node - 1) / per_node
    outside = row * (nodes - 1) * _share_chosen(work, nodes) * per_node
    moving = np.maximum(
        inside / _inside_bytes_per_s(machine, per_node),
        outside / machine.network_bytes_per_s_per_node,
    )
    one_way = np.where(group > 1, moving + _start_s(machine, group > per_node), 0.0) + shared
    return np.where(work.recompute_full, 6.0, 4.0) * one_way


def _stage_stride(machine: Machine, work: Workload, neighbors: Rows) -> Rows:
    """Return how far apart so many neighbors of a pipeline stage are: 1, unless ranks of other
    stages lie between.

    Then it is what leaves a node as many ranks of the stage as it has.
    """
    together = work.strides["pp"]
    between = np.clip(machine.devices_per_node / together, 1.0, work.pipeline_parallel)
    return np.where(neighbors > together, between, 1.0)


def _share_chosen(work: Workload, places: Rows) -> Rows:
    """Return how likely one of `places`, which share the experts evenly, holds any of a token's."""
    none: Rows = np.ones(1)
    for before in range(int(work.experts_per_token.max())):
        left = np.maximum(work.experts - work.experts / places - before, 0.0) / np.maximum(
            work.experts - before, 1.0
        )
        none = none * np.where(before < work.experts_per_token, left, 1.0)
    # A token's experts are in groups that the router keeps.
    reached = work.router_groups_kept / np.minimum(places, work.router_groups)
    return np.where(work.router_groups > 1, np.minimum(1 - none, reached), 1 - none)


def _start_s(machine: Machine, crosses: Flags) -> Rows:
    eff = machine.efficiencies
    started: Rows = np.where(crosses, eff.network_latency_s, eff.node_latency_s) + eff.kernel_s
    return started


@dataclass(frozen=True, kw_only=True)
class ReplicaWaits:
    """Seconds that a rank waits for its replicas: at each micro-batch, after the last, and after
    the optimizer.
    """

    each: Rows
    last: Rows
    published: Rows


def replicas_s(
    machine: Machine,
    work: Workload,
    parameters: Rows,
    forward: Rows,
    backward: Rows,
    experts: Rows | None = None,
) -> Rows:
    """Return the time per step that a rank waits for the replicas; see `replica_waits`."""
    found = replica_waits(machine, work, parameters, forward, backward, experts)
    return work.accumulation * found.each + found.last + found.published


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
    software = machine.software
    hides = software.overlaps_unsharded | (work.sharding_parameters > 1)
    hides = hides & (software.overlaps_scattered | (work.sharding_optimizer == 1))
    overlap: Rows = np.where(hides, software.gradient_overlap, 0.0)
    waits = _waits(machine, work, parameters)
    if experts is not None and (work.expert_ranks > 1).any():
        apart = zip(
            _waits(machine, work, parameters - experts),
            _waits(machine, work.stage_of_experts, experts),
            strict=True,
        )
        waits = tuple(
            np.where(work.expert_ranks > 1, one + other, whole)
            for (one, other), whole in zip(apart, waits, strict=True)
        )
    each, once, published = waits
    repeated = np.where(work.reduces_each & (work.sharding_gradients == 1), once, 0.0)
    per_pass = np.where(work.sharding_parameters > 1, forward + backward, backward)
    exposed = np.maximum(each + repeated - overlap * per_pass, LEAST_EXPOSED * (each + repeated))
    last = np.where(
        work.reduces_each, 0.0, np.maximum(once - overlap * backward, LEAST_EXPOSED * once)
    )
    return ReplicaWaits(each=exposed, last=last, published=published)


def _waits(machine: Machine, work: Workload, parameters: Rows) -> tuple[Rows, ...]:
    """Return what each micro-batch's messages take, those of the gradients once, and those of the
    new parameters.
    """
    p, o, stride = work.sharding_parameters, work.sharding_optimizer, work.strides["dp"]
    weights = parameters * work.bytes_per_value - _left_out(machine, work, parameters)
    published = ring_s(machine, weights / p, group=o / p, stride=stride * p, passes=1)
    return _each_micro_batch(machine, work, parameters), _once(machine, work, parameters), published


def _left_out(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """Return the bytes of the layers' weights that a gather in 8 bits saves."""
    if not (work.fp8 > 0).any():
        return number(0)
    narrow = np.minimum(work.layers_first * work.layer_share, parameters) * (
        work.bytes_per_value - 1
    )
    return np.where(machine.software.gathers_so(work), narrow, 0.0)


def _each_micro_batch(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    p, g, stride = work.sharding_parameters, work.sharding_gradients, work.strides["dp"]
    weights, dequantized = (
        parameters * work.bytes_per_value - _left_out(machine, work, parameters),
        number(0),
    )
    if work.quantized_weights.any():
        weights = np.where(
            work.quantized_weights, parameters * (1 + SCALE_BYTES / QUANTIZED_GROUP), weights
        )
        # What arrives twice in int8 is read, written in fp16, read again and converted.
        moved = 2 * parameters * (1 + 2 * HALF_BYTES + work.bytes_per_value)
        dequantized = np.where(work.quantized_weights, moved / machine.memory_bytes_per_s, 0.0)
    gradients = parameters * machine.gradient_bytes(work.bytes_per_value)
    layers = np.maximum(parameters / work.layer_share, 1)
    gathers = layers * machine.software.gathers_per_layer
    gathered = ring_s(machine, weights, group=p, stride=stride, passes=1, messages=gathers)
    again = gathered
    if (work.secondary_partition > 1).any():
        near = ring_s(
            machine,
            weights,
            group=work.secondary_partition,
            stride=stride,
            passes=1,
            messages=gathers,
        )
        again = np.where((p > 1) & (work.secondary_partition > 1), near, gathered)
    reduced = ring_s(machine, gradients, group=g, stride=stride, passes=1, messages=layers)
    if work.quantized_gradients.any():
        reduced = np.where(
            work.quantized_gradients, _two_hops_s(machine, work, parameters, layers), reduced
        )
    return gathered + again + dequantized + reduced


def _two_hops_s(machine: Machine, work: Workload, parameters: Rows, layers: Rows) -> Rows:
    """Return the time to reduce gradients in int4 as ZeRO++ does (arXiv 2306.10209, section 3.3).

    All-to-alls within nodes, and then of what a node's device has summed between the nodes. Memory
    is passed over to convert the gradients to fp16 and quantize them, to sum what arrives and
    quantize it, and to dequantize and sum that. A scale is for a row of a matrix.
    """
    width, held = machine.devices_per_node, HALF_BYTES + work.bytes_per_value
    nodes, int4 = np.maximum(work.sharding_gradients / width, 1.0), 0.5 + SCALE_BYTES / work.hidden
    within = all_to_all_s(
        machine, parameters * int4 / layers, group=number(width), stride=number(1)
    )
    between = all_to_all_s(
        machine, parameters * int4 / width / layers, group=nodes, stride=number(width)
    )
    moved = held + HALF_BYTES + int4 + (1 + 1 / width) * int4 + (int4 + 2 * HALF_BYTES) / width
    return layers * (within + between) + parameters * moved / machine.memory_bytes_per_s


def _once(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    software, g, stride = machine.software, work.sharding_gradients, work.strides["dp"]
    o = g if software.reduces_whole else work.sharding_optimizer
    gradients = parameters * (
        4.0 if software.reduces_wide else machine.gradient_bytes(work.bytes_per_value)
    )
    message = np.maximum(
        machine.software.message_elements, machine.software.message_layers * work.layer_share
    )
    if bucket := machine.software.whole_bucket_elements:
        message = np.where(o == 1, bucket, message)
    messages = np.maximum(parameters / message, 1.0)
    scatter = ring_s(
        machine, gradients / g, group=o / g, stride=stride * g, passes=1, messages=messages
    )
    copies = work.copies / o
    return scatter + ring_s(
        machine, gradients / o, group=copies, stride=stride * o, passes=2, messages=messages
    )


def host_transfer_s(
    machine: Machine, work: Workload, parameters: Rows, *, layers: Rows, passes: tuple[Rows, Rows]
) -> Rows:
    """Return the time per step that a rank of `layers` layers and `parameters` parameters waits for
    the host's link.

    `passes` are forward and backward time per micro-batch. Activations travel beside the forward
    pass and back beside the backward pass; parameters and gradients overlap as collectives do. No
    measurement has validated these times.
    """
    if not work.uses_host:
        return np.zeros(1)
    _, kept = layer_activations(machine, work)
    one_way_s = np.where(work.activation_offload, layers * kept, 0.0) / machine.host_bytes_per_s
    activations = sum(np.maximum(one_way_s - one, LEAST_EXPOSED * one_way_s) for one in passes)
    # The fp32 parameters are fetched where these are the only copy.
    parameter_bytes = 4.0 if machine.software.shards_only_masters else work.bytes_per_value
    fetched = 2 * parameters / work.sharding_parameters * parameter_bytes
    reduces_each = (work.sharding_gradients > 1) | work.reduces_each | work.parameters_on_host
    gradients = parameters / work.sharding_gradients * machine.gradient_bytes(work.bytes_per_value)
    each = np.where(work.parameters_on_host, fetched, 0.0) + np.where(reduces_each, gradients, 0.0)
    updated = parameters / work.sharding_optimizer * work.bytes_per_value
    once = np.where(reduces_each, 0.0, gradients) + np.where(work.parameters_on_host, 0.0, updated)
    each_s, once_s = (moved / machine.host_bytes_per_s for moved in (each, once))
    hidden = np.where(work.parameters_on_host, machine.software.gradient_overlap, 0.0) * (
        passes[0] + passes[1]
    )
    states = work.accumulation * np.maximum(each_s - hidden, LEAST_EXPOSED * each_s) + once_s
    return work.accumulation * activations + np.where(work.optimizer_on_host, states, 0.0)
