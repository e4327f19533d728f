"""From what the ranks measured to the figures of a cluster, with a note on what each figure rests on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from frontrunner.evaluators.diagnostics.calibration.ranks import Seen
from frontrunner.evaluators.diagnostics.calibration.timing_fits import (
    Line,
    Ring,
    fastest_tflops,
    fit_products,
    lines,
    ring,
)
from frontrunner.spaces.cluster import PRECISIONS, Cluster, MatmulTflops, PeakTflops

GIGA = 1e9
BUSY_SHARE = 0.1
DIGITS = 4
"""Significant digits that are kept; none of these figures is known better."""
FAR_OFF = 0.5
"""From this relative error of a fit on, its results are not written: the timings follow no such line."""
LARGE_SHARE = 1 / 16
"""A precision whose largest timed product has less than this share of the largest work timed shows no rate."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A measured cluster. `notes` states by dotted key what a figure rests on; `lines` holds all collectives' fits.

    `load_before` is the load average of the minute before, of processes that wanted a processor; None where unknown.
    `untold` states why figures that were measured too badly to be written stay as they were.
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
        """The number of measurements that the budget had no room for."""
        return len(self.seen["left_out"])


def busy(found: Calibration) -> str | None:
    """Return a sentence where other work kept a tenth of the processors or more busy."""
    processors = os.cpu_count() or 1
    if found.load_before is None or found.load_before < BUSY_SHARE * processors:
        return None
    return f"other work ran on this machine: load average {found.load_before:.1f} before, on {processors} processors"


@dataclass
class _Figures:
    """The fields of the cluster that were measured, by table, with their notes."""

    fields: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Any] = field(default_factory=dict)
    efficiencies: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)

    def put(self, key: str, value: float, note: str) -> None:
        """Set a figure by its dotted key."""
        table, _, name = key.rpartition(".")
        getattr(self, table or "fields")[name] = float(f"{value:.{DIGITS}g}")
        self.notes[key] = note

    def cluster(self, base: Cluster) -> Cluster:
        """Return the base with what was measured in place of what it states."""
        links, own = replace(base.links, **self.links), {**base.efficiencies, **self.efficiencies}
        return replace(base, **self.fields, links=links, efficiencies=own)


def calibration(base: Cluster, seen: Seen, taken_at: datetime, load_before: float | None = None) -> Calibration:
    """Return the base cluster with what was measured on it; other figures stay as the base has them."""
    found, per_node = _Figures(), seen["ranks_per_node"]
    day, torch = taken_at.strftime("%Y-%m-%d %H:%M UTC"), seen["versions"]["torch"]
    found.fields |= {
        "nodes": seen["ranks"] // per_node,
        "devices_per_node": per_node,
        "source": f"frontrunner calibrate, {day}: {seen['ranks']} ranks, {seen['device_name']}, torch {torch}",
    }
    _arithmetic(found, base, seen["matmul"])
    _memory(found, seen["memory"])
    _links(found, base, seen)
    _host(found, seen)
    _products(found, base, seen["matmul"])
    return Calibration(
        cluster=found.cluster(base),
        notes=found.notes,
        lines=lines(seen),
        seen=seen,
        taken_at=taken_at,
        load_before=load_before,
        untold=tuple(found.untold),
    )


def _arithmetic(found: _Figures, base: Cluster, rows: Sequence[Mapping[str, Any]]) -> None:
    """Set the fastest rate of each precision of which large products were timed."""

    def largest(of: Sequence[Mapping[str, Any]]) -> float:
        return max((row["m"] * row["n"] * row["k"] for row in of), default=0.0)

    rates: dict[str, float] = {}
    for precision in dict.fromkeys(row["precision"] for row in rows):
        own = [row for row in rows if row["precision"] == precision]
        if largest(own) < LARGE_SHARE * largest(rows):
            found.untold.append(f"matmul_tflops.{precision}: only small products were timed")
            continue
        rates |= fastest_tflops(own)
        found.notes[f"matmul_tflops.{precision}"] = f"the fastest of {len(own)} shapes"
    found.fields["matmul_tflops"] = MatmulTflops(**{name: float(f"{x:.{DIGITS}g}") for name, x in rates.items()})
    stated = {name: getattr(base.peak_tflops, name) for name in PRECISIONS}
    kept = {name: peak for name, peak in stated.items() if peak is None or peak >= rates.get(name, 0.0)}
    found.fields["peak_tflops"] = PeakTflops(**kept)  # a peak below what was measured is wrong


def _products(found: _Figures, base: Cluster, rows: Sequence[Mapping[str, Any]]) -> None:
    """Set the efficiencies of matrix products, with the measured rates and bandwidth in place."""
    products = fit_products(found.cluster(base), rows)
    if products is None:
        return
    off = f"{100 * products.residual:.0f} % off"
    if products.residual > FAR_OFF:
        found.untold.append(f"efficiencies of matrix products: the fit is {off}")
        return
    for name, value in products.efficiencies.items():
        found.put(f"efficiencies.{name}", value, f"fitted to {products.points} matrix products, {off}")


def _memory(found: _Figures, rows: Sequence[Mapping[str, Any]]) -> None:
    def array_bytes(row: Mapping[str, Any]) -> float:
        return float(row["bytes"]) / (2 if row["kernel"] == "copy" else 3)

    if not rows:
        return
    largest = max(map(array_bytes, rows))
    best = max((row for row in rows if array_bytes(row) == largest), key=lambda row: row["bytes"] / row["time_s"])
    note = f"{best['kernel']} of arrays of {largest / 2**20:.0f} MiB"
    found.put("memory_gb_per_s", best["bytes"] / best["time_s"] / GIGA, note)
    found.put("efficiencies.memory", 1.0, "the bandwidth above is measured")


def _links(found: _Figures, base: Cluster, seen: Seen) -> None:
    """Set bandwidths and hop latencies of the levels that were there."""
    pair, node, network = (_usable(found, ring(seen, level)) for level in ("pair", "node", "network"))
    if pair and pair.bytes_per_s and node and pair.bytes_per_s > (node.bytes_per_s or 0.0):
        found.put("links.pair_gb_per_s", pair.bytes_per_s / GIGA, _rests_on(pair))
    if node and node.bytes_per_s:
        found.put("links.node_gb_per_s", node.bytes_per_s / GIGA, _rests_on(node))
        _reached(found, node)
    if network and network.bytes_per_s:
        ports = base.links.nics_per_node or 1
        # The groups of a node's ranks share its ports, and were all measured at once.
        rate = network.bytes_per_s * seen["ranks_per_node"] / ports / GIGA
        found.put("links.nic_gb_per_s", rate, _rests_on(network))
        found.links["nics_per_node"] = ports
        _reached(found, network)


def _usable(found: _Figures, level: Ring | None) -> Ring | None:
    """Return the level, unless its timings follow no line."""
    if level is None or level.residual <= FAR_OFF:
        return level
    found.untold.append(f"links of a {level.level}: the fit is {100 * level.residual:.0f} % off")
    return None


def _reached(found: _Figures, level: Ring) -> None:
    found.put(f"efficiencies.{level.level}_links", 1.0, "the bandwidth above is measured")
    found.put(f"efficiencies.{level.level}_latency_s", level.hop_latency_s, "a hop, from the same fit")


def _rests_on(level: Ring) -> str:
    return f"rings of {level.ranks}, {level.points} timings, {100 * level.residual:.0f} % off"


def _host(found: _Figures, seen: Seen) -> None:
    """Set the slower direction of the largest pinned transfers, and the host's time per layer."""
    pinned = [row for row in seen["transfers"] if row["pinned"]]
    largest = [row for row in pinned if row["bytes"] == max(row["bytes"] for row in pinned)]
    if largest:
        slower = max(largest, key=lambda row: row["time_s"])
        note = f"{slower['direction']}, {slower['bytes'] / 2**20:.0f} MiB pinned"
        found.put("links.host_gb_per_s", slower["bytes"] / slower["time_s"] / GIGA, note)
    if seen["layer"]:
        row = seen["layer"][0]
        note = "a pass of one of the trainer's layers with next to nothing to compute"
        found.put("efficiencies.host_layer_s", row["time_s"] / row["passes"], note)
