"""What a cluster's devices and links reach in practice, and how long messages take on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.measured import with_measured
from frontrunner.evaluators.analytic.software import Software
from frontrunner.evaluators.analytic.workload import Flags, Rows
from frontrunner.spaces.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class Efficiencies:
    """What hardware and its libraries lose, as shares of what is stated or measured, and as seconds.

    All values but the last two are fitted, to five published tables of step times on A100 (docs/measurements.md says
    which, and how large the error is on a table that was left out).

    `matmul` is the share of the device's fastest matrix product that large ones reach beside other work. `tile_waves`
    is the part of a wave of tiles that is idle at a product's end; `reduction_depth` the length of the summed
    dimension that costs as much again as the sum. `memory` is the share of the stated memory bandwidth that
    streaming reaches, `elementwise` and `scores` how often the values between matrix products, and the attention's
    scores, are really read and written against the least. The `fused_attention` rates are shares of `matmul`'s.
    `kernel_s` is what starting a kernel costs the device. `node_links` and `network_links` are shares of stated
    bandwidths that collectives reach, the latencies those of a hop. `ring_node_hop_s` and `ring_network_hop_s` are what
    each further hop takes in rings of many ranks, inside a node and between nodes: NCCL's own figures for its "simple"
    protocol over NVLink and a network, by which it chooses algorithms (src/graph/tuning.cc, `hwLat`).
    """

    matmul: float = 1.0
    tile_waves: float = 0.54
    reduction_depth: float = 148.0
    memory: float = 0.844
    elementwise: float = 1.83
    scores: float = 1.19
    fused_attention_forward: float = 0.5
    fused_attention_backward: float = 0.4
    kernel_s: float = 2.5e-6
    node_links: float = 0.85
    network_links: float = 0.858
    node_latency_s: float = 21.3e-6
    network_latency_s: float = 25.4e-6
    ring_node_hop_s: float = 3.4e-6
    ring_network_hop_s: float = 14e-6


FITTED = Efficiencies()

ATTENTION_SCALES = {"h100-80gb": 0.35 / 0.73, "h200-141gb": 0.35 / 0.73}
"""What the common fused attention kernel, FlashAttention-2, reaches of a device's peak, against A100, on which the
shares above were fitted: at best 73 % there (arXiv 2307.08691) and 35 % on H100 (arXiv 2407.08608); 1 elsewhere."""

RUNTIME_BYTES = {"cpu": 0.26 * 2**30}
OTHER_RUNTIME_BYTES = 2.0**30
"""What a rank holds before its model: on CPU Python and torch as measured (README), else device context, collective
library and kernels, assumed."""

ASSUMED_COMPUTE_UNITS = {"cpu": 1}
OTHER_COMPUTE_UNITS = 108
ASSUMED_MATMUL_SHARE = 0.7
ASSUMED_PEAK_FLOPS = 1e14
ASSUMED_MEMORY_BYTES_PER_S = 1e12
ASSUMED_NODE_BYTES_PER_S = 50e9
ASSUMED_NIC_BYTES_PER_S = 12.5e9
ASSUMED_HOST_BYTES_PER_S = 25e9
"""For what a cluster file leaves out; an estimate that needs one of them is marked as uncertain. The host's link is
PCIe 4 x 16's 31.5 GB/s less a fifth."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster at one precision under one software, in the formulas' units: what is reached, not what is stated."""

    matmul_flops: float
    memory_bytes_per_s: float
    compute_units: float
    devices_per_node: int
    pair_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s_per_node: float
    host_bytes_per_s: float
    runtime_bytes: float
    attention_scale: float
    efficiencies: Efficiencies
    software: Software

    @classmethod
    def of(cls, cluster: Cluster, precision: str, software: Software, efficiencies: Efficiencies = FITTED) -> Machine:
        """The machine of a cluster file; what the file leaves out is assumed, and constants that it states count."""
        efficiencies, software = with_measured(cluster, efficiencies, software)
        links = cluster.links
        node = _stated(links.node_gb_per_s, ASSUMED_NODE_BYTES_PER_S) * efficiencies.node_links
        pair = (links.pair_gb_per_s or 0.0) * 1e9 * efficiencies.node_links
        ports = _stated(links.nic_gb_per_s, ASSUMED_NIC_BYTES_PER_S) * (links.nics_per_node or 1)
        peak = cluster.peak_flops(precision) or ASSUMED_PEAK_FLOPS
        fastest = cluster.matmul_flops(precision) or peak * (cluster.matmul_share or ASSUMED_MATMUL_SHARE)
        return cls(
            matmul_flops=fastest * efficiencies.matmul,
            memory_bytes_per_s=_stated(cluster.memory_gb_per_s, ASSUMED_MEMORY_BYTES_PER_S) * efficiencies.memory,
            compute_units=cluster.compute_units or ASSUMED_COMPUTE_UNITS.get(cluster.backend, OTHER_COMPUTE_UNITS),
            runtime_bytes=RUNTIME_BYTES.get(cluster.backend, OTHER_RUNTIME_BYTES),
            attention_scale=ATTENTION_SCALES.get(cluster.device, 1.0),
            devices_per_node=cluster.devices_per_node,
            pair_bytes_per_s=max(pair, node),
            node_bytes_per_s=node,
            network_bytes_per_s_per_node=ports * efficiencies.network_links,
            host_bytes_per_s=_stated(links.host_gb_per_s, ASSUMED_HOST_BYTES_PER_S),
            efficiencies=efficiencies,
            software=software,
        )

    def gradient_bytes(self, bytes_per_value: Rows) -> Rows:
        """Bytes in which a gradient is kept and reduced."""
        return np.full_like(bytes_per_value, 4.0) if self.software.wide_gradients else bytes_per_value


def assumptions(cluster: Cluster, precision: str) -> tuple[str, ...]:
    """The keys of a cluster file that an estimate needs and that this one leaves out, but for offloading."""
    links, measured = cluster.links, cluster.matmul_flops(precision)
    needed = {
        f"peak_tflops.{precision}": measured or cluster.peak_flops(precision),
        "matmul_share": measured or cluster.matmul_share,
        "memory_gb_per_s": cluster.memory_gb_per_s,
    }
    if cluster.devices_per_node > 1:
        needed["links.node_gb_per_s"] = links.node_gb_per_s
    if cluster.nodes > 1:
        needed["links.nic_gb_per_s"] = links.nic_gb_per_s
        needed["links.nics_per_node"] = links.nics_per_node
    return tuple(key for key, value in needed.items() if value is None)


def _stated(gb_per_s: float | None, assumed_bytes_per_s: float) -> float:
    return assumed_bytes_per_s if gb_per_s is None else gb_per_s * 1e9


def ring_s(
    machine: Machine, message_bytes: Rows, *, group: Rows, stride: Rows, passes: float, messages: Rows | float = 1.0
) -> Rows:
    """Time of a ring collective in groups of `group` ranks that lie `stride` ranks apart; 0 for groups of one.

    `message_bytes` is the size of the whole result, of all `messages` that it is cut into; `passes` is 2 for an
    all-reduce, 1 for a reduce-scatter or an all-gather. A ring moves passes (g - 1) / g of the message over each link.
    Between nodes, the groups that meet in a node share its network ports. Each message takes the latency once.
    """
    width = machine.devices_per_node
    per_node = np.clip(width / stride, 1, group)
    groups_per_node = np.minimum(width, group * stride) / per_node
    crosses = group > per_node
    inside = np.where((group == 2) & (stride == 1), machine.pair_bytes_per_s, machine.node_bytes_per_s)
    outside = machine.network_bytes_per_s_per_node / groups_per_node
    slowest = np.where(crosses, np.minimum(inside, outside), inside)
    latency = _latency_s(machine, group, per_node, crosses, passes)
    moved = passes * message_bytes * (group - 1) / group
    return np.where(group > 1, moved / slowest + messages * latency, 0.0)


def _latency_s(machine: Machine, group: Rows, per_node: Rows, crosses: Flags, passes: float) -> Rows:
    """Latency of one collective: of passes (g - 1) hops, or of twice a tree's depth where that is less.

    Collective libraries change from ring to tree for all-reduces alone. A reduce-scatter or all-gather has a hop for
    every rank, most of them inside nodes, and takes at least that (github.com/NVIDIA/nccl, issues 1473 and 1594).
    """
    eff = machine.efficiencies
    hops = np.minimum(group - 1, 2 * np.log2(np.maximum(group, 1)))
    latency: Rows = passes * hops * np.where(crosses, eff.network_latency_s, eff.node_latency_s) + eff.kernel_s
    if passes > 1:
        return latency
    nodes = group / per_node
    around: Rows = nodes * eff.ring_network_hop_s + (group - nodes) * eff.ring_node_hop_s
    return np.where(crosses, np.maximum(latency, around), latency)


def all_to_all_s(machine: Machine, message_bytes: Rows, *, group: Rows, stride: Rows) -> Rows:
    """Time in which each of `group` ranks, `stride` apart, sends an equal part of its message to each; 0 for one.

    What stays in the node takes the node's links and what leaves it the ports, at the same time; all groups that meet
    in a node do so at once.
    """
    width = machine.devices_per_node
    per_node = np.clip(width / stride, 1, group)
    groups_per_node = np.minimum(width, group * stride) / per_node
    inside = message_bytes * (per_node - 1) / group / machine.node_bytes_per_s
    leaving = message_bytes * (group - per_node) / group * per_node * groups_per_node
    outside = leaving / machine.network_bytes_per_s_per_node
    eff = machine.efficiencies
    latency = np.where(group > per_node, eff.network_latency_s, eff.node_latency_s) + eff.kernel_s
    return np.where(group > 1, np.maximum(inside, outside) + latency, 0.0)


def point_to_point_s(machine: Machine, message_bytes: Rows, stride: Rows) -> Rows:
    """Time to send a message to the rank `stride` further; between nodes all devices of a node send at once."""
    eff = machine.efficiencies
    crosses = stride >= machine.devices_per_node
    outside = machine.network_bytes_per_s_per_node / machine.devices_per_node
    speed = np.where(crosses, outside, machine.node_bytes_per_s)
    return message_bytes / speed + np.where(crosses, eff.network_latency_s, eff.node_latency_s)
