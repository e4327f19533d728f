"""Physical constants with priors: how far estimates may be off.

A constant is its logarithm, or the logit of a share that is hidden, in units of its prior standard deviation about what
ships or a cluster states. Rows of `sensitivities` differ between models while the constants are those of one training
code on one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from frontrunner.evaluators.analytic.machine import Machine, assumptions
from frontrunner.evaluators.analytic.software import Software
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Rows, Workload
from frontrunner.spaces.cluster import Cluster

DEVIATIONS: Mapping[str, float] = {
    "matmul": 0.1,
    "tile_waves": 0.4,
    "reduction_depth": 0.4,
    "memory": 0.1,
    "elementwise": 0.3,
    "scores": 0.35,
    "fused_attention_forward": 0.25,
    "fused_attention_backward": 0.25,
    "kernel_s": 0.5,
    "node_links": 0.15,
    "node_latency_s": 0.6,
    "network_links": 0.5,
    "network_latency_s": 0.7,
    "host_layer_s": 0.2,
    "host_collective_s": 0.4,
    "gradient_overlap": 1.0,
}
"""Prior standard deviation of each constant's logarithm (`gradient_overlap`: logit) on a validated device.

Assumed, but for attention: FlashAttention-2 is up to 1.7 times as fast as its first version (arXiv 2307.08691).
Products of training shapes and copies of large arrays reach shares of the peak that differ by a tenth between clocks
and library versions; how often kernels move values depends on what a code fuses. Networks are wide, since clusters
reach a tenth to 0.9 of what is stated; latencies depend on library and topology, by a factor of two either way. The
host's and `elementwise`'s were narrowed after a look at how far published tables on A100 are off.
"""
OTHER_DEVICES = 1.5
"""How much wider all of these are where no measurement has validated the formulas; assumed."""
STATED = 0.5
"""How much narrower, where the cluster states the constant: measured or fitted there; assumed."""
ASSUMED_DEVIATIONS: Mapping[str, tuple[str, float]] = {
    "matmul_share": ("matmul", 0.3),
    "memory_gb_per_s": ("memory", 0.7),
    "links.node_gb_per_s": ("node_links", 1.0),
    "links.nic_gb_per_s": ("network_links", 1.0),
    "links.nics_per_node": ("network_links", 0.7),
}
"""A cluster's key that is not given -> the constant that it scales, and how far the assumed value may be off."""
SHARES = frozenset({"gradient_overlap"})
LEAST, MOST = 0.02, 0.98
"""A share of 0 or 1 has no logit: it is taken as this."""


def deviations_of(cluster: Cluster, precision: str, *, is_validated: bool, is_fitted: bool) -> dict[str, float]:
    """Return the prior deviation of each constant on a cluster; `is_fitted` where its own constants were measured."""
    factor, own = 1.0 if is_validated else OTHER_DEVICES, cluster.efficiencies if is_fitted else {}
    found = {name: deviation * (STATED if name in own else factor) for name, deviation in DEVIATIONS.items()}
    for key in assumptions(cluster, precision) if not is_fitted else ():
        if key in ASSUMED_DEVIATIONS:
            name, more = ASSUMED_DEVIATIONS[key]
            found[name] = math.hypot(found[name], more)
    return found


def moved(name: str, value: float, by: float) -> float:
    """Return a constant moved by a difference of its logarithm, or of its logit."""
    if name not in SHARES:
        return value * math.exp(by)
    share = min(max(value, LEAST), MOST)
    return 1 / (1 + (1 - share) / share * math.exp(-by))


def place(name: str, value: float) -> float:
    """Return the constant's logarithm, or its logit."""
    if name not in SHARES:
        return math.log(value) if value > 0 else -math.inf
    share = min(max(value, LEAST), MOST)
    return math.log(share / (1 - share))


def sensitivities(
    cluster: Cluster, precision: str, software: Software, work: Workload, deviations: Mapping[str, float]
) -> Rows:
    """Return the change of each row's log step time per deviation of each constant, one column per constant.

    These are slopes over a whole deviation downwards, which is slower for a share of a rate: links that are as fast as
    stated hide behind computation, and ones that are slower do not.
    """
    machine = Machine.of(cluster, precision, software)
    before, columns = np.log(step_time(machine, work).total), []
    for name, value in machine.constants().items():
        constants = {**cluster.efficiencies, name: moved(name, value, -deviations[name])}
        other = Machine.of(replace(cluster, efficiencies=constants), precision, software)
        columns.append(before - np.log(step_time(other, work).total))
    return np.stack(np.broadcast_arrays(*columns), axis=1)
