"""How long ranks wait for data of other ranks, in collectives and between stages of a pipeline."""

from __future__ import annotations

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.operations import ContextExchange, ExpertDispatch
from frontrunner.evaluators.analytic.workload import Workload

LEAST_EXPOSED = 0.05
"""Share of traffic that no computation hides: nothing runs during the first and last message."""


def exposed_s(traffic_s: Rows, computing_s: Rows) -> Rows:
    """Return what is left of traffic that runs beside so much computation."""
    return np.maximum(traffic_s - computing_s, LEAST_EXPOSED * traffic_s)


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
    stride = work.degrees.strides["pp"]
    sent = 2 * point_to_point_s(machine, work.boundary_bytes, stride)
    sent = sent + np.where(stride >= machine.devices_per_node, machine.code.exchange_s, 0.0)
    return np.where(work.degrees.pipeline > 1, sent, 0.0)


def exchange_s(machine: Machine, work: Workload, exchange: ContextExchange) -> Rows:
    """Return the time of one layer's all-to-alls around attention per micro-batch.

    Both go again backward, and forward once more under full recompute (arXiv 2309.14509, decision
    9).
    """
    group, stride = work.degrees.context, work.degrees.strides["dp"]
    once = all_to_all_s(machine, exchange.inward_bytes, group=group, stride=stride)
    once = once + all_to_all_s(machine, exchange.outward_bytes, group=group, stride=stride)
    return np.where(work.recompute.full, 3.0, 2.0) * once


def dispatch_s(machine: Machine, work: Workload, dispatch: ExpertDispatch) -> Rows:
    """Return the time of one layer's all-to-alls to the experts and back per micro-batch; 0 where
    ranks share none.

    Both go again backward, and forward once more where they are recomputed. Ranks that share each
    expert gather what came to them all, and scatter the sums of their results. Sent once, a token
    crosses to a node that holds any of its experts one time, and goes to each such rank there
    (github.com/deepseek-ai/DeepEP); experts are taken to be chosen evenly.
    """
    if not (work.degrees.expert_ranks > 1).any():
        return np.zeros(1)
    group, ways = work.degrees.expert, work.degrees.expert_tensor
    row, copies = dispatch.copy_bytes, dispatch.copy_bytes * dispatch.experts_per_token
    shared = ring_s(
        machine, copies * ways, group=ways, stride=_stage_stride(machine, work, ways), passes=1
    )
    is_again = work.recompute.full | work.recompute.again(dispatch.again)
    times = np.where(is_again, 6.0, 4.0)
    if not machine.code.experts.dispatches_once:
        stride = ways * _stage_stride(machine, work, work.degrees.expert_ranks)
        return times * (all_to_all_s(machine, copies, group=group, stride=stride) + shared)
    per_node = np.minimum(machine.devices_per_node, group)
    nodes = group / per_node
    inside = row * group * _share_chosen(dispatch, group) * (per_node - 1) / per_node
    outside = row * (nodes - 1) * _share_chosen(dispatch, nodes) * per_node
    moving = np.maximum(
        inside / _inside_bytes_per_s(machine, per_node),
        outside / machine.network_bytes_per_s_per_node,
    )
    one_way = np.where(group > 1, moving + _start_s(machine, group > per_node), 0.0) + shared
    return times * one_way


def _stage_stride(machine: Machine, work: Workload, neighbors: Rows) -> Rows:
    """Return how far apart so many neighbors of a pipeline stage are: 1, unless ranks of other
    stages lie between.

    Then it is what leaves a node as many ranks of the stage as it has.
    """
    together = work.degrees.strides["pp"]
    between = np.clip(machine.devices_per_node / together, 1.0, work.degrees.pipeline)
    return np.where(neighbors > together, between, 1.0)


def _share_chosen(dispatch: ExpertDispatch, places: Rows) -> Rows:
    """Return how likely one of `places`, which share the experts evenly, holds any of a token's."""
    none: Rows = np.ones(1)
    for before in range(dispatch.experts_per_token):
        left = np.maximum(dispatch.experts - dispatch.experts / places - before, 0.0)
        none = none * left / max(dispatch.experts - before, 1)
    if dispatch.groups == 1:
        return 1 - none
    # A token's experts are in groups that the router keeps.
    reached = dispatch.groups_kept / np.minimum(places, dispatch.groups)
    return np.minimum(1 - none, reached)


def _start_s(machine: Machine, crosses: Flags) -> Rows:
    eff = machine.efficiencies
    started: Rows = np.where(crosses, eff.network_latency_s, eff.node_latency_s) + eff.kernel_s
    return started
