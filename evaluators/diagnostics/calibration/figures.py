"""From what the ranks saw to the figures of a cluster: rates, bandwidths, latencies, and what each rests on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from frontrunner.evaluators.diagnostics.calibration.lines import Line, Ring, lines, ring
from frontrunner.evaluators.diagnostics.calibration.products import fastest_tflops, fit_products
from frontrunner.evaluators.diagnostics.calibration.ranks import Seen
from frontrunner.spaces.cluster import PRECISIONS, Cluster, MatmulTflops, PeakTflops

GIGA = 1e9
BUSY_SHARE = 0.1
DIGITS = 4
"""Significant digits that are kept; none of these figures is known better."""
FAR_OFF = 0.5
"""From this relative error of a fit on, what it gives is not written: the timings follow no such line."""
LARGE_SHARE = 1 / 16
"""A precision whose largest timed product has less than this share of the largest work timed tells no rate."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A measured cluster. `notes` says by dotted key what a figure rests on; `lines` holds all collectives' fits.

    `load_before` is the load average of the minute before, of processes that wanted a processor; None where unknown.
    `untold` says of figures that were measured too badly to be written why they stay as they were.
    """

    cluster: Cluster
    notes: Mapping[str, str]
    lines: tuple[Line, ...]
    seen: Seen
    taken_at: datetime
    load_before: float | None
    untold: tuple[str, ...]

    @property
    def left_out(self) -> int:
        """How many measurements the budget had no room for."""
        return len(self.seen["left_out"])


def busy(found: Calibration) -> str | None:
    """A sentence where other work kept a tenth of the processors or more busy."""
    processors = os.cpu_count() or 1
    if found.load_before is None or found.load_before < BUSY_SHARE * processors:
        return None
    return f"other work ran on this machine: load average {found.load_before:.1f} before, on {processors} processors"


class _Figures:
    """The fields of the cluster that were measured, and their notes."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.links: dict[str, Any] = {}
        self.efficiencies: dict[str, float] = {}
        self.notes: dict[str, str] = {}
        self.untold: list[str] = []

    def cluster(self, base: Cluster) -> Cluster:
        """The base with what was measured in place of what it states."""
        return replace(
            base,
            **self.fields,
            links=replace(base.links, **self.links),
            efficiencies={**base.efficiencies, **self.efficiencies},
        )


def calibration(base: Cluster, seen: Seen, taken_at: datetime, load_before: float | None = None) -> Calibration:
    """The base cluster with what was measured on it; figures that were not measured stay as the base has them."""
    found, per_node = _Figures(), seen["ranks_per_node"]
    found.fields["nodes"] = seen["ranks"] // per_node
    found.fields["devices_per_node"] = per_node
    _arithmetic(found, base, seen)
    _memory(found, seen)
    _links(found, base, seen)
    _host(found, seen)
    _layer(found, seen)
    _products(found, base, seen)
    found.fields["source"] = _source(seen, taken_at)
    return Calibration(
        cluster=found.cluster(base),
        notes=found.notes,
        lines=lines(seen),
        seen=seen,
        taken_at=taken_at,
        load_before=load_before,
        untold=tuple(found.untold),
    )


def _source(seen: Seen, taken_at: datetime) -> str:
    day = taken_at.strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"frontrunner calibrate, {day}: {seen['ranks']} ranks, {seen['device_name']}, torch {seen['versions']['torch']}"
    )


def _arithmetic(found: _Figures, base: Cluster, seen: Seen) -> None:
    rates = fastest_tflops(_of_large_products(found, seen["matmul"]))
    found.fields["matmul_tflops"] = MatmulTflops(**{name: _rounded(rate) for name, rate in rates.items()})
    for name in rates:
        count = sum(row["precision"] == name for row in seen["matmul"])
        found.notes[f"matmul_tflops.{name}"] = f"the fastest of {count} shapes"
    stated = {name: getattr(base.peak_tflops, name) for name in PRECISIONS}
    kept = {name: peak for name, peak in stated.items() if peak is None or peak >= rates.get(name, 0.0)}
    found.fields["peak_tflops"] = PeakTflops(**kept)  # a peak below what was measured is none


def _of_large_products(found: _Figures, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the precisions of which large products were timed."""

    def largest(of: Sequence[Mapping[str, Any]]) -> float:
        return max((row["m"] * row["n"] * row["k"] for row in of), default=0.0)

    told = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        own = [row for row in rows if row["precision"] == precision]
        if largest(own) >= LARGE_SHARE * largest(rows):
            told += own
        else:
            found.untold.append(f"matmul_tflops.{precision}: only small products were timed")
    return told


def _products(found: _Figures, base: Cluster, seen: Seen) -> None:
    """The efficiencies of matrix products, with the measured rates and bandwidth in place."""
    products = fit_products(found.cluster(base), seen["matmul"])
    if products is None:
        return
    if products.residual > FAR_OFF:
        found.untold.append(f"efficiencies of matrix products: the fit is {100 * products.residual:.0f} % off")
        return
    for name, value in products.efficiencies.items():
        found.efficiencies[name] = _rounded(value)
        found.notes[f"efficiencies.{name}"] = (
            f"fitted to {products.points} matrix products, {100 * products.residual:.0f} % off"
        )


def _memory(found: _Figures, seen: Seen) -> None:
    if not seen["memory"]:
        return
    largest = max(row["bytes"] / (2 if row["kernel"] == "copy" else 3) for row in seen["memory"])
    rows = [row for row in seen["memory"] if row["bytes"] / (2 if row["kernel"] == "copy" else 3) == largest]
    best = max(rows, key=lambda row: row["bytes"] / row["time_s"])
    found.fields["memory_gb_per_s"] = _rounded(best["bytes"] / best["time_s"] / GIGA)
    found.notes["memory_gb_per_s"] = f"{best['kernel']} of arrays of {largest / 2**20:.0f} MiB"
    found.efficiencies["memory"] = 1.0
    found.notes["efficiencies.memory"] = "the bandwidth above is measured"


def _layer(found: _Figures, seen: Seen) -> None:
    if seen["layer"]:
        row = seen["layer"][0]
        found.efficiencies["host_layer_s"] = _rounded(row["time_s"] / row["passes"])
        found.notes["efficiencies.host_layer_s"] = (
            "a pass of one of the trainer's layers with next to nothing to compute"
        )


def _links(found: _Figures, base: Cluster, seen: Seen) -> None:
    """Bandwidths and hop latencies of the levels that were there."""
    pair, node, network = (_told(found, ring(seen, level)) for level in ("pair", "node", "network"))
    if pair is not None and pair.bytes_per_s and node is not None and pair.bytes_per_s > (node.bytes_per_s or 0.0):
        found.links["pair_gb_per_s"] = _rounded(pair.bytes_per_s / GIGA)
        found.notes["links.pair_gb_per_s"] = _rests_on(pair)
    if node is not None and node.bytes_per_s:
        found.links["node_gb_per_s"] = _rounded(node.bytes_per_s / GIGA)
        _reached(found, node, "links.node_gb_per_s")
    if network is not None and network.bytes_per_s:
        ports = base.links.nics_per_node or 1
        # The groups of a node's ranks share its ports, and were all measured at once.
        found.links["nic_gb_per_s"] = _rounded(network.bytes_per_s * seen["ranks_per_node"] / ports / GIGA)
        found.links["nics_per_node"] = ports
        _reached(found, network, "links.nic_gb_per_s")


def _told(found: _Figures, level: Ring | None) -> Ring | None:
    """The level, unless its timings follow no line."""
    if level is None or level.residual <= FAR_OFF:
        return level
    found.untold.append(f"links of a {level.level}: the fit is {100 * level.residual:.0f} % off")
    return None


def _host(found: _Figures, seen: Seen) -> None:
    """The slower direction of the largest pinned transfers."""
    pinned = [row for row in seen["transfers"] if row["pinned"]]
    largest = [row for row in pinned if row["bytes"] == max(row["bytes"] for row in pinned)]
    if not largest:
        return
    slower = max(largest, key=lambda row: row["time_s"])
    found.links["host_gb_per_s"] = _rounded(slower["bytes"] / slower["time_s"] / GIGA)
    found.notes["links.host_gb_per_s"] = f"{slower['direction']}, {slower['bytes'] / 2**20:.0f} MiB pinned"


def _reached(found: _Figures, level: Ring, key: str) -> None:
    found.notes[key] = _rests_on(level)
    found.efficiencies[f"{level.level}_links"] = 1.0
    found.efficiencies[f"{level.level}_latency_s"] = _rounded(level.hop_latency_s)
    found.notes[f"efficiencies.{level.level}_links"] = "the bandwidth above is measured"
    found.notes[f"efficiencies.{level.level}_latency_s"] = "a hop, from the same fit"


def _rests_on(level: Ring) -> str:
    return f"rings of {level.ranks}, {level.points} timings, {100 * level.residual:.0f} % off"


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
