"""Fits to a machine's timings: latency and bandwidth of collectives, and the formula of a matrix product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.compute import matmul_s
from frontrunner.evaluators.analytic.machine import FITTED, Machine
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.workload import BYTES_PER_VALUE, Rows
from frontrunner.evaluators.diagnostics.calibration.ranks import Seen
from frontrunner.spaces.cluster import Cluster

PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "all-to-all": 1, "scatter": 1}
"""Times that (g - 1) / g of the message goes over each link of a ring of g ranks (NCCL's "bus bandwidth"); the whole
message goes once for those that are not here."""
RINGS = ("all-reduce", "reduce-scatter", "all-gather")
"""The collectives of the step-time formulas."""
FEWEST_POINTS = 2
LARGE_BYTES = 2**19
"""From this size on a message shows bandwidth; smaller ones differ by latency's noise."""
FELT = 1e-3
"""A largest message that takes less of the time than this share shows no bandwidth."""
FEWEST_PRODUCTS = 8
"""Twice as many as there are values to fit."""
PLACES = 6
"""Digits after the point of a value's place between its bounds; a solver's 1e-13 means 0."""
PRODUCT_BOUNDS = {
    "matmul": (0.5, 1.0),
    "tile_waves": (0.0, 3.0),
    "reduction_depth": (0.0, 600.0),
    "kernel_s": (1e-7, 1e-3),
}
"""The range in which each is searched."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """time = latency_s + bytes over a link / bytes_per_s, of one collective in groups of one level.

    `bytes_per_s` is None where no time grew with the message, or no large message was measured. `residual` is the root
    mean square of the fit's relative errors over its `points`.
    """

    collective: str
    level: str
    ranks: int
    latency_s: float
    bytes_per_s: float | None
    residual: float
    points: int


@dataclass(frozen=True, kw_only=True)
class Ring:
    """The step-time formulas' figures of a level: seconds per hop and bytes/s of a rank's link, over all `RINGS`."""

    level: str
    ranks: int
    hop_latency_s: float
    bytes_per_s: float | None
    residual: float
    points: int


def link_bytes(collective: str, ranks: int, message_bytes: float) -> float:
    """Return the bytes of a message that go over one rank's link."""
    if collective not in PASSES:
        return message_bytes
    return PASSES[collective] * message_bytes * (ranks - 1) / ranks


def hops(collective: str, ranks: int) -> float:
    """Return the messages in sequence of a ring, or twice a tree's depth where that is less, as `ring_s` counts."""
    return float(PASSES[collective] * min(ranks - 1, 2 * np.log2(ranks)))


def lines(seen: Seen) -> tuple[Line, ...]:
    """Return a line for each collective and level of which two sizes or more were measured."""
    found = []
    for (collective, level, ranks), rows in _by(seen["collectives"], ("collective", "level", "ranks")).items():
        if len(rows) < FEWEST_POINTS:
            continue
        moved = [link_bytes(collective, ranks, row["bytes"]) for row in rows]
        latency_s, bytes_per_s, residual = _fit([1.0] * len(rows), moved, [row["time_s"] for row in rows])
        found.append(
            Line(
                collective=collective,
                level=level,
                ranks=ranks,
                latency_s=latency_s,
                bytes_per_s=bytes_per_s if max(row["bytes"] for row in rows) >= LARGE_BYTES else None,
                residual=residual,
                points=len(rows),
            )
        )
    return tuple(found)


def ring(seen: Seen, level: str) -> Ring | None:
    """Return the level's hop and bandwidth; None where too little of it was measured."""
    rows = [row for row in seen["collectives"] if row["level"] == level and row["collective"] in RINGS]
    if len(rows) < FEWEST_POINTS:
        return None
    ranks = rows[0]["ranks"]
    moved = [link_bytes(row["collective"], ranks, row["bytes"]) for row in rows]
    steps = [hops(row["collective"], ranks) for row in rows]
    latency_s, bytes_per_s, residual = _fit(steps, moved, [row["time_s"] for row in rows])
    return Ring(
        level=level,
        ranks=ranks,
        hop_latency_s=latency_s,
        bytes_per_s=bytes_per_s if max(row["bytes"] for row in rows) >= LARGE_BYTES else None,
        residual=residual,
        points=len(rows),
    )


def _fit(steps: Sequence[float], moved: Sequence[float], times_s: Sequence[float]) -> tuple[float, float | None, float]:
    """Return seconds per step and bytes/s, at least 0, with the least relative errors; and their root mean square."""
    from scipy.optimize import nnls

    times: Rows = np.asarray(times_s)
    # Bytes are a million times steps: columns of like size keep the solver's tolerance out of it.
    scale = np.array([1.0, max(moved)])
    design = np.column_stack([steps, moved]) / scale / times[:, None]
    found, error = nnls(design, np.ones(len(times)))
    latency_s, per_byte = (found / scale).tolist()
    return latency_s, 1 / per_byte if found[1] > FELT * times.min() else None, float(error / np.sqrt(len(times)))


def _by(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


@dataclass(frozen=True, kw_only=True)
class Products:
    """The efficiencies that predict the measured products best, and the root mean square of the relative errors."""

    efficiencies: Mapping[str, float]
    residual: float
    points: int


def fastest_tflops(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the highest rate of each precision over all shapes, TFLOP/s: 2 m n k / time."""
    rates: dict[str, float] = {}
    for row in rows:
        rate = 2e-12 * row["m"] * row["n"] * row["k"] / row["time_s"]
        rates[row["precision"]] = max(rate, rates.get(row["precision"], 0.0))
    return rates


def fit_products(cluster: Cluster, rows: Sequence[Mapping[str, Any]]) -> Products | None:
    """Return the efficiencies of `matmul_s` on this cluster, which states its measured rates and bandwidth.

    None for fewer than `FEWEST_PRODUCTS` rows.
    """
    from scipy.optimize import least_squares

    if len(rows) < FEWEST_PRODUCTS:
        return None
    names = [name for name in PRODUCT_BOUNDS if name != "kernel_s" or cluster.backend == "cpu"]
    # An accelerator's small products, one after another, show how fast the host issues them, not the device's start.
    low, high = (np.array([PRODUCT_BOUNDS[name][side] for name in names]) for side in (0, 1))
    measured = np.array([row["time_s"] for row in rows])

    def errors(place: Rows) -> Rows:
        values = (low + place * (high - low)).tolist()
        ratios: Rows = np.log(_times(cluster, rows, dict(zip(names, values, strict=True))) / measured)
        return ratios

    start = np.clip(([getattr(FITTED, name) for name in names] - low) / (high - low), 0.01, 0.99)
    best = least_squares(errors, start, bounds=(0, 1), loss="soft_l1", f_scale=0.1)
    found = dict(zip(names, (low + np.round(best.x, PLACES) * (high - low)).tolist(), strict=True))
    return Products(efficiencies=found, residual=float(np.sqrt(np.mean(errors(best.x) ** 2))), points=len(rows))


def _times(cluster: Cluster, rows: Sequence[Mapping[str, Any]], efficiencies: Mapping[str, float]) -> Rows:
    times = np.empty(len(rows))
    for precision in {row["precision"] for row in rows}:
        index = [number for number, row in enumerate(rows) if row["precision"] == precision]
        m, n, k = (np.array([float(rows[number][side]) for number in index]) for side in "mnk")
        machine = Machine.of(cluster, precision, FRONTRUNNER, replace(FITTED, **efficiencies))
        times[index] = matmul_s(machine, m, n, k, np.full(len(index), BYTES_PER_VALUE[precision]))
    return times
