"""The machine: what a cluster's devices and links reach in practice under one training code."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from frontrunner.evaluators.analytic.codes import known_as
from frontrunner.evaluators.analytic.kernels import FLASH_SPEED
from frontrunner.evaluators.analytic.training_code import TrainingCode, fitted
from frontrunner.spaces.cluster import Cluster, FittedCode
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, require_at_least


@dataclass(frozen=True, kw_only=True)
class Efficiencies:
    """What hardware and its libraries lose, as shares of what is stated or measured, and as
    seconds.

    Fitted to five published tables of step times on A100 (docs/measurements.md), but for the last
    four. `matmul` is the share of the fastest matrix product, `memory`, `node_links` and
    `network_links` of stated bandwidths; `tile_waves` the idle part of a wave of tiles,
    `reduction_depth` the length of a sum that costs as much again; `elementwise` and `scores` how
    often values are moved against the least; `fused_attention` rates are shares of `matmul`'s;
    latencies are those of a hop. The ring hops are NCCL's own figures for its "simple" protocol
    (src/graph/tuning.cc, `hwLat`); rings over more than `crowded_nodes` nodes take `crowded_hop_s`
    a rank, which only some clusters state. The fullest rank has `rank_imbalance` times as many
    tokens for its experts as the mean.
    """

    matmul: float = fitted(1.0, 0.3, 1.0)
    tile_waves: float = fitted(0.54, 0.0, 1.5)
    reduction_depth: float = fitted(148.0, 0.0, 600.0)
    memory: float = fitted(0.844, 0.3, 1.0)
    elementwise: float = fitted(1.83, 0.5, 6.0)
    scores: float = fitted(1.19, 0.5, 6.0)
    fused_attention_forward: float = fitted(0.5, 0.1, 1.0)
    fused_attention_backward: float = fitted(0.4, 0.1, 1.0)
    kernel_s: float = fitted(2.5e-6, 1e-7, 1e-3)
    node_links: float = fitted(0.85, 0.1, 1.0)
    node_latency_s: float = fitted(21.3e-6, 1e-6, 1e-2)
    network_links: float = fitted(0.858, 0.1, 1.0)
    network_latency_s: float = fitted(25.4e-6, 1e-6, 1e-2)
    ring_node_hop_s: float = 3.4e-6
    ring_network_hop_s: float = 14e-6
    crowded_nodes: float = 1e6
    crowded_hop_s: float = 0.0
    rank_imbalance: float | None = None


FITTED = Efficiencies()

BOUNDS: Mapping[str, tuple[float, float]] = {
    one.name: one.metadata["bounds"]
    for one in (*fields(Efficiencies), *fields(TrainingCode))
    if "bounds" in one.metadata
}
CODE_CONSTANTS = tuple(one.name for one in fields(TrainingCode) if one.name in BOUNDS)
EFFICIENCY_NAMES = (*(field.name for field in fields(Efficiencies)), *CODE_CONSTANTS)
"""The keys of `cluster.efficiencies`: constants that were fitted or measured on a cluster replace
those that ship.
"""

HOPPER = ("h100-80gb", "h200-141gb")
"""Devices for which FlashAttention 3 was written; others run version 2."""
ATTENTION_SCALES = dict.fromkeys(HOPPER, 0.35 / 0.73 * 0.86 / 0.73) | dict.fromkeys(
    ("b200-180gb", "b300", "gb200", "gb300"), 2.0
)
"""What fused attention reaches of a device's matrix products against A100. Hopper: FlashAttention-2
reaches 35 % of the peak (arXiv 2407.08608) over 73 % (2307.08691), matrix products 0.73 over 0.86.
Blackwell: cuDNN's reaches 0.49 of the peak forward and 0.41 backward where matrix products reach
0.49 (github.com/MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json, head width 128, 16
heads or more, FLOPs of a causal mask), over the shares in `Efficiencies`.
"""

FP8_SHARES = dict.fromkeys(HOPPER, 0.709 / 0.803) | {
    "b200-180gb": 0.763 / 0.776, "b300": 0.745 / 0.786, "gb200": 0.723 / 0.729,
    "gb300": 0.723 / 0.729,
}  # fmt: skip
OTHER_FP8_SHARE = 0.709 / 0.803
"""What products reach of a device's peak in 8 bits, over what they reach in 16: of the fastest
products (github.com/stas00/ml-engineering, "Maximum Achievable Matmul FLOPS"); GB300's are GB200's,
others' H100's.
"""
OTHER_FP32_SHARE = 19.5 / 312
"""Peak in fp32 over that in 16 bits of devices that state none: A100's."""
RUNTIME_BYTES = {"cpu": 0.26 * 2**30}
OTHER_RUNTIME_BYTES = 300 * 2.0**20
"""Python and torch, as measured on CPU; else a device's context with kernels that are loaded when
first called (github.com/pytorch/pytorch/issues/107667).
"""
RUNTIME_ERRORS = {"cpu": 0.3}
"""Standard deviation of these bytes as a share, with the communicators': 1 unless stated. That of
a CPU's processes, whose memory was measured, is assumed."""
COMMUNICATOR_BYTES = {"cpu": 0.0}
OTHER_COMMUNICATOR_BYTES = 688 * 2.0**20
"""What NCCL holds for one communicator, measured on 4 A100 over NVLink
(github.com/NVIDIA/nccl/issues/964).
"""

ASSUMED_COMPUTE_UNITS = {"cpu": 1}
OTHER_COMPUTE_UNITS = 108
ASSUMED = {
    "peak_tflops": 100.0,
    "matmul_share": 0.7,
    "memory_gb_per_s": 1000.0,
    "links.node_gb_per_s": 50.0,
    "links.nic_gb_per_s": 12.5,
    "links.nics_per_node": 1,
    "links.host_gb_per_s": 25.0,
}
"""Replace what a cluster file omits, which marks an estimate as uncertain; the last is PCIe 4 x 16
less a fifth.
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster at one precision under one training code, in the formulas' units: what is reached,
    not the peaks.
    """

    matmul_flops: float
    fp8_flops: float
    fp32_flops: float
    memory_bytes_per_s: float
    compute_units: float
    devices_per_node: int
    pair_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s_per_node: float
    host_bytes_per_s: float
    runtime_bytes: float
    communicator_bytes: float
    attention_scale: float
    is_hopper: bool
    efficiencies: Efficiencies
    code: TrainingCode
    factor_bytes_share: float = 1.0
    """Bytes per value of a product's factors over those of its result."""
    runtime_error: float = 1.0

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        precision: str,
        code: TrainingCode,
        efficiencies: Efficiencies = FITTED,
    ) -> Machine:
        """Return the machine of a cluster; raises `InvalidInput` for a constant that is unknown or
        impossible.
        """
        check_efficiencies(cluster.efficiencies)
        own: dict[str, Any] = dict(cluster.efficiencies)
        if fit := fit_of(cluster, precision, code):
            own |= {one.name: one.value for one in fit.constants}
        code = replace(
            code.at_precision(precision),
            **{name: own.pop(name) for name in CODE_CONSTANTS if name in own},
        )
        efficiencies = replace(efficiencies, **own)
        links = cluster.links
        node = _bytes_per_s(links.node_gb_per_s, "links.node_gb_per_s") * efficiencies.node_links
        pair = (
            node
            if links.pair_gb_per_s is None
            else links.pair_gb_per_s * 1e9 * efficiencies.node_links
        )
        ports = links.nics_per_node or ASSUMED["links.nics_per_node"]
        network = (
            _bytes_per_s(links.nic_gb_per_s, "links.nic_gb_per_s")
            * ports
            * efficiencies.network_links
        )
        peak = cluster.peak_flops(precision) or ASSUMED["peak_tflops"] * 1e12
        fastest = cluster.matmul_flops(precision) or peak * (
            cluster.matmul_share or ASSUMED["matmul_share"]
        )
        return cls(
            matmul_flops=fastest * efficiencies.matmul,
            fp8_flops=_fp8_flops(cluster, fastest) * efficiencies.matmul,
            fp32_flops=_fp32_flops(cluster, precision, fastest) * efficiencies.matmul,
            memory_bytes_per_s=_bytes_per_s(cluster.memory_gb_per_s, "memory_gb_per_s")
            * efficiencies.memory,
            compute_units=cluster.compute_units
            or ASSUMED_COMPUTE_UNITS.get(cluster.backend, OTHER_COMPUTE_UNITS),
            runtime_bytes=RUNTIME_BYTES.get(cluster.backend, OTHER_RUNTIME_BYTES),
            runtime_error=RUNTIME_ERRORS.get(cluster.backend, 1.0),
            communicator_bytes=COMMUNICATOR_BYTES.get(cluster.backend, OTHER_COMMUNICATOR_BYTES),
            attention_scale=ATTENTION_SCALES.get(cluster.device, 1.0),
            is_hopper=cluster.device in HOPPER,
            devices_per_node=cluster.devices_per_node,
            pair_bytes_per_s=pair,
            node_bytes_per_s=node,
            network_bytes_per_s_per_node=network,
            host_bytes_per_s=_bytes_per_s(links.host_gb_per_s, "links.host_gb_per_s"),
            efficiencies=efficiencies,
            code=code,
        )

    @functools.cached_property
    def in_8_bits(self) -> Machine:
        """The machine by its products in 8 bits: what a tile of one loses besides is the same
        time.
        """
        return replace(self._at(self.fp8_flops), factor_bytes_share=0.5)

    @functools.cached_property
    def in_fp32(self) -> Machine:
        """The machine by its products in fp32, likewise."""
        return self._at(self.fp32_flops)

    def _at(self, flops: float) -> Machine:
        depth = self.efficiencies.reduction_depth * flops / self.matmul_flops
        efficiencies = replace(self.efficiencies, reduction_depth=depth)
        return replace(self, matmul_flops=flops, efficiencies=efficiencies)

    @property
    def attention_speed(self) -> float:
        """What fused attention reaches of matrix products against FlashAttention 2 on A100."""
        version = self.code.kernels.flash
        return self.attention_scale * FLASH_SPEED[version if self.is_hopper else min(version, 2)]

    def constants(self) -> dict[str, float]:
        """Return the constants that fits search, by name."""
        return {
            name: getattr(self.code if name in CODE_CONSTANTS else self.efficiencies, name)
            for name in BOUNDS
        }


def _fp8_flops(cluster: Cluster, fastest: float) -> float:
    """Return the rate of a device's products in 8 bits, of which those in 16 reach `fastest`, or
    that, if unknown.
    """
    peak, share = cluster.peak_flops("fp8"), cluster.matmul_share or ASSUMED["matmul_share"]
    share *= FP8_SHARES.get(cluster.device, OTHER_FP8_SHARE)
    return cluster.matmul_flops("fp8") or (fastest if peak is None else peak * share)


def _fp32_flops(cluster: Cluster, precision: str, fastest: float) -> float:
    """Return the rate of a device's products in fp32, of which those at `precision` reach
    `fastest`.
    """
    if precision == "fp32":
        return fastest
    if (measured := cluster.matmul_flops("fp32")) is not None:
        return measured
    if (peak := cluster.peak_flops("fp32")) is not None:
        return peak * (cluster.matmul_share or ASSUMED["matmul_share"])
    return fastest * (1.0 if cluster.backend == "cpu" else OTHER_FP32_SHARE)


def _bytes_per_s(gb_per_s: float | None, key: str) -> float:
    return 1e9 * (ASSUMED[key] if gb_per_s is None else gb_per_s)


def fit_of(cluster: Cluster, precision: str, code: TrainingCode) -> FittedCode | None:
    """Return the cluster's fit to steps of this training code at this precision, or None."""
    if not cluster.fitted:
        return None
    name = known_as(code)
    fits = (
        fit
        for fit in cluster.fitted
        if fit.code == name and getattr(fit.error, precision) is not None
    )
    return next(fits, None)


def check_fits(fits: Sequence[FittedCode]) -> None:
    """Raise `InvalidInput` for the first constant that no fit has, or that is impossible."""
    for fit in fits:
        check_efficiencies(
            {one.name: one.value for one in fit.constants},
            "cluster.fitted.constants",
            tuple(BOUNDS),
        )


def check_efficiencies(
    table: Mapping[str, float],
    table_key: str = "cluster.efficiencies",
    names: Sequence[str] = EFFICIENCY_NAMES,
) -> None:
    """Raise `InvalidInput` for the first key that is not an efficiency, or value that is
    impossible.
    """
    for name, value in table.items():
        key = f"{table_key}.{name}"
        if name not in names:
            raise InvalidInput(f"unknown key {key} = {value}", hint=did_you_mean(name, names))
        low, high = BOUNDS.get(name, (0.0, math.inf))
        if name == "rank_imbalance":
            require_at_least("cluster.efficiencies", 1, rank_imbalance=value)
        is_share, divides = high == 1, high == 1 and low > 0
        if (
            not (math.isfinite(value) and value >= 0)
            or (is_share and value > 1)
            or (divides and value == 0)
        ):
            share = "a share above 0 and at most 1" if divides else "a share of at most 1"
            raise bad_value(key, value, share if is_share else "a number of at least 0")


def assumptions(cluster: Cluster, precision: str) -> tuple[str, ...]:
    """Return the keys of a cluster file that an estimate needs and that this one omits, except for
    offloading.
    """
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
