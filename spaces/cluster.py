"""The cluster: nodes, devices per node, what a device can do, and the links between them by
level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from frontrunner.spaces.errors import (
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)

BACKENDS = ("cpu", "cuda", "rocm", "xpu", "hpu")
PRECISIONS = ("fp32", "bf16", "fp16")
GIB = 2**30
MOST_DEVICES = 1_000_000
"""A measurement has a figure for each device; ten times what the largest machines have."""
MOST_TFLOPS, MOST_MEMORY_GIB, MOST_GB_PER_S = 1e5, 1e5, 1e6
"""Assumed: ten times and more what devices of today state. A figure above is in another unit."""


@dataclass(frozen=True, kw_only=True)
class ByPrecision:
    """A figure of a device for each of `PRECISIONS`, and for the 8-bit products of a step in bf16;
    None: not known.
    """

    fp32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None


_RATE = "a rate above 0 in TFLOP/s, or no entry"
_FIGURES = (("peak_tflops", MOST_TFLOPS), ("matmul_tflops", math.inf))


@dataclass(frozen=True, kw_only=True)
class Links:
    """Bandwidths in GB/s (1e9 bytes), one direction, of each level of the machine; None where
    unknown.

    `pair` joins two devices: of one package, or any two of a node that has no switch, where it is
    less than `node`; `node` is one device's share of all links to the others of its node, a node
    has `nics_per_node` network ports of `nic` each, and `host` joins a device with its node's
    memory.
    """

    pair_gb_per_s: float | None = None
    node_gb_per_s: float | None = None
    nic_gb_per_s: float | None = None
    nics_per_node: int | None = None
    host_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            require_above_zero(
                f"cluster.links.{key}", value, "a number above 0, or no entry", most=MOST_GB_PER_S
            )


@dataclass(frozen=True, kw_only=True)
class FittedConstant:
    """A constant of the estimates as fitted; `deviation` is what is left of its logarithm's, or of
    a share's logit's.

    `correlations` are those with each of its fit's constants before it: what trades off is known
    better together.
    """

    name: str
    value: float
    deviation: float
    correlations: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FittedCode:
    """Constants fitted to measured steps of one training code, the only one that they hold for.

    `code` is its name, with the stated traits of an unknown one. `nodes` is the most that a row
    had, and `error` the mean of rows while they were held back.
    """

    code: str
    rows: int
    problems: int
    nodes: int
    error: ByPrecision
    constants: tuple[FittedConstant, ...]
    source: str = "the cluster file"

    def __post_init__(self) -> None:
        require_at_least(
            "cluster.fitted", 1, rows=self.rows, problems=self.problems, nodes=self.nodes
        )
        _check_errors("cluster.fitted.error", self.error)
        names = [one.name for one in self.constants]
        for place, one in enumerate(self.constants):
            key = f"cluster.fitted.constants.{one.name}"
            if names.count(one.name) > 1:
                raise bad_value(key, one.value, "one entry for each constant")
            require_above_zero(f"{key}.deviation", one.deviation, "a standard deviation above 0")
            if len(one.correlations) != place or any(abs(value) > 1 for value in one.correlations):
                expected = f"{place} numbers from -1 to 1, one for each constant before it"
                raise bad_value(f"{key}.correlations", list(one.correlations), expected)


def _check_errors(key: str, errors: ByPrecision) -> None:
    for precision, value in vars(errors).items():
        require_above_zero(f"{key}.{precision}", value, "a share above 0, or no entry")
    if errors.fp8 is not None:
        raise bad_value(
            f"{key}.fp8", errors.fp8, "no entry: an error is that of steps in fp32, bf16 or fp16"
        )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices. A device is what one rank drives: a GPU, a GCD, a tile, or a
    CPU process.
    """

    name: str
    """For people, up to 200 characters."""
    device: str
    """Name of the device; the figures of a device that ships are filled in."""
    backend: str
    """`cpu`, `cuda`, `rocm` or `xpu`; `hpu` (Gaudi) for estimates and `command` alone."""
    nodes: int
    """Equal nodes; by default 1."""
    devices_per_node: int
    """Devices per node; one rank drives each. On `cpu` a device is a process."""
    memory_gib_per_device: float
    """What a rank may use; enforced on `cpu`."""
    memory_gb_per_s: float | None = None
    """Memory bandwidth of the device, 1e9 bytes/s."""
    peak_tflops: ByPrecision = ByPrecision()
    """Dense peak rates by precision, TFLOP/s. MFU is relative to them, and no measurement above
    them is ranked.
    """
    matmul_share: float | None = None
    """Share of its 16-bit peak that the device's large matrix products reach."""
    mxfp8: bool = False
    """Whether products in 8 bits take a factor for each 32 values (MXFP8), as those of Blackwell
    and CDNA 4 do.
    """
    compute_units: int | None = None
    """Multiprocessors or compute units: tiles of a product that the device works on at once."""
    matmul_tflops: ByPrecision = ByPrecision()
    """Rates of the device's fastest measured matrix products, used instead of `peak_tflops` and
    `matmul_share`.
    """
    links: Links = Links()
    """Bandwidths of the machine's levels, one direction; `host` joins a device with its node's
    memory.
    """
    efficiencies: Mapping[str, float] = field(default_factory=dict)
    """Constants of the estimates as measured on this cluster, by name: see
    [calibration](calibration.md).
    """
    expected_error: ByPrecision = ByPrecision()
    """Mean error of estimated step times, as a share, on held-back rows; not of `fp8`, whose steps
    are in bf16.
    """
    fitted: tuple[FittedCode, ...] = field(default=(), compare=False)
    """Constants fitted to the steps of training codes; of another code nothing here is used."""
    nvme_path: str | None = None
    """Absolute path of a folder on each node's own fast disk, for recipes with `offload =
    "nvme"`.
    """
    price_per_node_hour: float | None = field(default=None, compare=False)
    """Price of a node for an hour, in any currency; with `problem.billion_tokens` the whole
    training has a price.
    """
    source: str = "the campaign file"
    """Where the figures come from."""

    def is_alike(self, other: Cluster) -> bool:
        """Return whether the two differ in name and number of nodes only."""
        same: bool = replace(other, name=self.name, nodes=self.nodes) == self
        return same

    def __post_init__(self) -> None:
        require_at_least("cluster", 1, nodes=self.nodes, devices_per_node=self.devices_per_node)
        if self.devices > MOST_DEVICES:
            per_node = f"{self.devices_per_node} devices per node"
            raise bad_value(
                "cluster.nodes",
                self.nodes,
                f"at most {MOST_DEVICES:,} devices in all, with {per_node}",
            )
        require_one_of("cluster", "backend", self.backend, BACKENDS)
        for key, most in _FIGURES:
            for precision, value in vars(getattr(self, key)).items():
                require_above_zero(f"cluster.{key}.{precision}", value, _RATE, most=most)
        _check_errors("cluster.expected_error", self.expected_error)
        size, rate = "a size above 0 in GiB", "a rate above 0 in GB/s, or no entry"
        require_above_zero(
            "cluster.memory_gib_per_device", self.memory_gib_per_device, size, most=MOST_MEMORY_GIB
        )
        require_above_zero(
            "cluster.memory_gb_per_s", self.memory_gb_per_s, rate, most=MOST_GB_PER_S
        )
        require_above_zero(
            "cluster.price_per_node_hour", self.price_per_node_hour, "a price above 0, or no entry"
        )
        if self.matmul_share is not None and not 0 < self.matmul_share <= 1:
            raise bad_value(
                "cluster.matmul_share",
                self.matmul_share,
                "a share above 0 and at most 1, or no entry",
            )
        if self.compute_units is not None:
            require_at_least("cluster", 1, compute_units=self.compute_units)
        path = self.nvme_path
        if path is not None and ("\0" in path or not PurePosixPath(path).is_absolute()):
            raise bad_value("cluster.nvme_path", path, "the absolute path of a folder, or no entry")

    @property
    def devices(self) -> int:
        """Nodes * devices_per_node."""
        return self.nodes * self.devices_per_node

    def describe(self) -> str:
        """Return nodes and devices: `2 nodes of 8 x H100`."""
        plural = "s" if self.nodes > 1 else ""
        return f"{self.nodes:,} node{plural} of {self.devices_per_node} x {self.device}"

    @property
    def memory_bytes_per_device(self) -> int:
        """memory_gib_per_device * 2**30."""
        return int(self.memory_gib_per_device * GIB)

    def peak_flops(self, precision: str) -> float | None:
        """Return one device's peak in FLOP/s at `precision`, or None where the cluster does not
        state one.
        """
        rate: float | None = getattr(self.peak_tflops, precision)
        return None if rate is None else rate * 1e12

    def matmul_flops(self, precision: str) -> float | None:
        """Return the measured rate of one device's fastest matrix product in FLOP/s at `precision`,
        or None.
        """
        rate: float | None = getattr(self.matmul_tflops, precision)
        return None if rate is None else rate * 1e12
