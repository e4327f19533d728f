"""The formula of a matrix product, fitted to measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.compute import matmul_s
from frontrunner.evaluators.analytic.machine import FITTED, Machine
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.workload import BYTES_PER_VALUE, Rows
from frontrunner.spaces.cluster import Cluster

FEWEST_PRODUCTS = 8
"""Twice as many as there are values to fit."""
PLACES = 6
"""Digits after the point of a value's place between its bounds; a solver's 1e-13 is nothing."""
BOUNDS = {"matmul": (0.5, 1.0), "tile_waves": (0.0, 3.0), "reduction_depth": (0.0, 600.0), "kernel_s": (1e-7, 1e-3)}
"""Between what each is looked for."""


@dataclass(frozen=True, kw_only=True)
class Products:
    """The efficiencies that tell the measured products best, and the root mean square of the relative errors left."""

    efficiencies: Mapping[str, float]
    residual: float
    points: int


def fastest_tflops(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The highest rate of each precision over all shapes, TFLOP/s: 2 m n k / time."""
    rates: dict[str, float] = {}
    for row in rows:
        rate = 2e-12 * row["m"] * row["n"] * row["k"] / row["time_s"]
        rates[row["precision"]] = max(rate, rates.get(row["precision"], 0.0))
    return rates


def fit_products(cluster: Cluster, rows: Sequence[Mapping[str, Any]]) -> Products | None:
    """The efficiencies of `matmul_s` on this cluster, whose measured rates and bandwidth it states.

    None for fewer than `FEWEST_PRODUCTS` rows.
    """
    from scipy.optimize import least_squares

    if len(rows) < FEWEST_PRODUCTS:
        return None
    names = [name for name in BOUNDS if name != "kernel_s" or cluster.backend == "cpu"]
    # An accelerator's small products, one after another, show how fast the host issues them, not the device's start.
    low, high = (np.array([BOUNDS[name][side] for name in names]) for side in (0, 1))
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
