"""Physical constants with priors: how far estimates may be off.

A constant is its logarithm, or the logit of a share that is hidden, with a prior standard deviation
about what ships or a cluster states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.machine import CODE_CONSTANTS, Machine, assumptions
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import Cluster, FittedCode

NORMAL_95 = 1.96
"""Of a normal's values, 95 % are within this many standard deviations."""
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
"""Prior standard deviation of each constant's logarithm (`gradient_overlap`: logit) on a validated
device.

Assumed, but for attention: FlashAttention-2 is up to 1.7 times as fast as its first version (arXiv
2307.08691). Products of training shapes and copies of large arrays reach shares of the peak that
differ by a tenth between clocks and library versions; how often kernels move values depends on what
a code fuses; latencies depend on library and topology, by a factor of two either way. The host's
and `elementwise`'s were narrowed after a look at how far published tables on A100 are off.
"""
OTHER_DEVICES = 1.5
"""How much wider all of these are where no measurement has validated the formulas; assumed."""
SHIPPED_SHARE = 0.6
"""What is left of the deviations in intervals of step times. The constants that ship were fitted
to 831 steps. With whole deviations 99 to 100 % of the rows of most published tables are inside the
95 % intervals, with this share 90 to 98 % of most (docs/measurements.md).
"""
UNSEEN_NETWORK = 0.6
"""The deviation of `network_links` there, not widened further."""
PER_DOUBLING = 0.3
"""More of that with each doubling of nodes, as an independent factor. The networks of published
steps on H100, GB200, PVC and V100 are inside, and one published cluster is not: its all-gathers
fell from 185 GB/s on 2 nodes to 11 GB/s on 64 (the nanotron playbook's `pp_comm_bandwidth`).
"""
UNSEEN_EXCHANGE = 2.0
"""The deviation of the time that a training code waits in each exchange between stages. It is 1 to
2 ms by count, and was measured of one code only, whose waits differ up to a hundredfold.
"""
STATED = 0.5
"""How much narrower, where the cluster states the constant: measured or fitted there; assumed."""
ASSUMED_DEVIATIONS: Mapping[str, tuple[str, float]] = {
    "matmul_share": ("matmul", 0.3),
    "memory_gb_per_s": ("memory", 0.7),
    "links.node_gb_per_s": ("node_links", 1.0),
    "links.nic_gb_per_s": ("network_links", 1.0),
    "links.nics_per_node": ("network_links", 0.7),
}
"""A cluster's key that is not given -> the constant that it scales, and how far the assumed value
may be off.
"""
AT_MOST_STATED = frozenset({"memory", "node_links", "network_links"})
"""Shares of a bandwidth that a cluster states; `matmul` is one of a rate that is itself known to a
tenth.
"""
NETWORK = {"network_links": 1, "network_latency_s": -1, "exchange_s": -1}
"""What is slow together between nodes, with the direction in which it grows."""
INDEPENDENT: Mapping[str, Mapping[str, int]] = {"network_links": NETWORK} | {
    name: {name: 1} for name in DEVIATIONS if name not in NETWORK
}
"""What moves with each constant that moves by itself, the network first."""
LEARNED: Mapping[str, Mapping[str, int]] = {name: {name: 1} for name in (*DEVIATIONS, "exchange_s")}
"""The constants that measurements tell apart: slow collectives say nothing of a code's exchanges
between stages.
"""
NUMBERS_AT_ONCE = 16_384
"""Moves times recipes in one pass: arrays of so many numbers fit a core's cache."""
Direction = Mapping[str, float | Rows]
"""What moves together by one standard deviation: the change of each constant's logarithm, or of a
share's logit.
"""
SLIGHTLY = 0.1
ALIKE = 0.3
"""What errors of rows of one problem have in common, so that many of them are worth few; as in
published tables.
"""
SHARES = frozenset({"gradient_overlap"})
LEAST, MOST = 0.02, 0.98
"""A share of 0 or 1 has no logit: it is taken as this."""


def deviations_of(
    cluster: Cluster, assumed: Sequence[str], *, is_validated: bool, share: float = 1.0
) -> dict[str, float]:
    """Return the prior deviation of each constant on a cluster.

    `assumed` are the keys that the cluster does not give. `share` scales the deviations of
    constants that ship or that the cluster states.
    """
    factor, own = 1.0 if is_validated else OTHER_DEVICES, cluster.efficiencies
    found = {
        name: share * deviation * (STATED if name in own else factor)
        for name, deviation in DEVIATIONS.items()
    }
    if not is_validated and not has_measured_network(cluster):
        found["network_links"] = UNSEEN_NETWORK
    for name, more in (ASSUMED_DEVIATIONS[key] for key in assumed if key in ASSUMED_DEVIATIONS):
        found[name] = math.hypot(found[name], more)
    return found


def has_measured_network(cluster: Cluster) -> bool:
    """Return whether a cluster states what collectives between its nodes were measured to reach."""
    return not {"network_links", "network_latency_s", "crowded_hop_s"}.isdisjoint(
        cluster.efficiencies
    )


def scaled_by(assumed: Sequence[str]) -> frozenset[str]:
    """Return the constants that these keys of a cluster scale."""
    return frozenset(ASSUMED_DEVIATIONS[key][0] for key in assumed if key in ASSUMED_DEVIATIONS)


def moved(name: str, value: float, by: float | Rows) -> Any:
    """Return a constant moved by a difference of its logarithm, or of its logit; by an array where
    that is one.
    """
    if name not in SHARES:
        return value * np.exp(by)
    share = min(max(value, LEAST), MOST)
    return 1 / (1 + (1 - share) / share * np.exp(-by))


def place(name: str, value: float) -> float:
    """Return the constant's logarithm, or its logit."""
    if name not in SHARES:
        return math.log(value) if value > 0 else -math.inf
    share = min(max(value, LEAST), MOST)
    return math.log(share / (1 - share))


def of_network(deviation: float | Rows) -> Direction:
    """Return all that is slow between nodes as one direction, as wide as `network_links` is
    uncertain.
    """
    return {name: sign * deviation for name, sign in NETWORK.items()}


def directions(
    deviations: Mapping[str, float | Rows],
    fit: FittedCode | None,
    independent: Mapping[str, Mapping[str, int]] = INDEPENDENT,
) -> list[Direction]:
    """Return what is unknown of the constants as independent directions: a fit's posterior, and
    priors of the rest.

    A direction of the posterior is in the place of the constant that it is nearest to.
    """
    posterior = {} if fit is None else _posterior(fit)
    found = [posterior[name] for name in posterior if name not in independent]
    for name, together in independent.items():
        found += [posterior[name]] if name in posterior else []
        free = {
            one: sign
            for one, sign in together.items()
            if name in deviations and one not in posterior
        }
        found += [{one: sign * deviations[name] for one, sign in free.items()}] if free else []
    return found


def _posterior(fit: FittedCode) -> dict[str, Direction]:
    """Return the columns of the correlations' symmetric root, which is a root of the covariance
    once scaled.
    """
    names, deviations = (
        [one.name for one in fit.constants],
        np.array([one.deviation for one in fit.constants]),
    )
    correlations = np.eye(len(names))
    for place, one in enumerate(fit.constants):
        correlations[place, :place] = one.correlations
    values, vectors = np.linalg.eigh(
        correlations
    )  # of the lower half; rounding may have made one slightly negative
    columns = deviations[:, None] * (vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)
    return {
        name: dict(zip(names, column.tolist(), strict=True))
        for name, column in zip(names, columns.T, strict=True)
    }


def end_changes(
    cluster: Cluster,
    precision: str,
    code: TrainingCode,
    work: Workload,
    unknown: Sequence[Direction],
) -> Rows:
    """Return how the log step time changes at both 95 % ends of each direction.

    The shape is (ends, directions, recipes).
    """
    ends = [_times(side * NORMAL_95, one) for side in (-1, 1) for one in unknown]
    return np.stack(np.split(_changes(cluster, precision, code, work, ends), 2))


def log_ends(changes: Rows) -> tuple[Rows, Rows]:
    """Return how far `end_changes` take each row's step time below and above its estimate.

    The changes add up as independent ones. A link that is as fast as stated hides behind
    computation where a slower one does not, and none is faster than stated: the ends are not
    symmetric.
    """
    faster, slower = changes
    below = np.minimum(np.minimum(faster, slower), 0)
    above = np.maximum(np.maximum(faster, slower), 0)
    return np.sqrt(np.sum(below**2, axis=0)), np.sqrt(np.sum(above**2, axis=0))


def slopes(
    cluster: Cluster,
    precision: str,
    code: TrainingCode,
    work: Workload,
    unknown: Sequence[Direction],
) -> Rows:
    """Return the change of each row's log step time per deviation of each direction, near the
    estimate.
    """
    slightly = [_times(SLIGHTLY, one) for one in unknown]
    return _changes(cluster, precision, code, work, slightly).T / SLIGHTLY


def _changes(
    cluster: Cluster,
    precision: str,
    code: TrainingCode,
    work: Workload,
    moves: Sequence[Direction],
) -> Rows:
    """Return how the log step time changes with constants that are moved: shape (moves, recipes).

    The formulas compute many moves in one pass, a row for each. A pass for each move would spend
    most of its time in numpy's fixed cost per operation, since plans look at few recipes.
    """
    machine = Machine.of(cluster, precision, code)
    constants = {**machine.constants(), "exchange_s": code.exchange_s}
    capped = AT_MOST_STATED - scaled_by(assumptions(cluster, precision))
    bare = replace(cluster, efficiencies={}, fitted=())
    before = np.log(step_time(machine, work).total)

    def of(some: Sequence[Direction]) -> Rows:
        own: dict[str, Any] = {**constants}
        for name in {name for one in some for name in one}:
            by = np.stack(np.broadcast_arrays(*(np.atleast_1d(one.get(name, 0.0)) for one in some)))
            value = moved(name, constants[name], by)
            value = np.minimum(value, 1.0) if name in capped else value
            own[name] = np.where(by == 0, constants[name], value)
        other_code = replace(
            code, **{name: own.pop(name) for name in (*CODE_CONSTANTS, "exchange_s")}
        )
        other = Machine.of(bare, precision, other_code, replace(machine.efficiencies, **own))
        found: Rows = np.log(step_time(other, work).total) - before
        return np.broadcast_to(found, (len(some), len(before)))

    at_once = max(1, NUMBERS_AT_ONCE // len(before))
    parts = (moves[start : start + at_once] for start in range(0, len(moves), at_once))
    return np.concatenate([np.empty((0, len(before))), *map(of, parts)])


def _times(factor: float, direction: Direction) -> Direction:
    return {name: factor * by for name, by in direction.items()}
