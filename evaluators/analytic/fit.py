"""Fitting the analytic model's few constants to tables of measured step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from frontrunner.evaluators.analytic.machine import FITTED
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.tables import Table, groups

BOUNDS = {
    "matmul": (0.85, 1.0),
    "tile_waves": (0.0, 1.5),
    "reduction_depth": (0.0, 600.0),
    "memory": (0.78, 0.92),
    "elementwise": (0.5, 3.0),
    "scores": (0.5, 3.0),
    "fused_attention_forward": (0.5, 0.75),
    "fused_attention_backward": (0.4, 0.65),
    "kernel_s": (1e-6, 2e-5),
    "node_links": (0.55, 0.85),
    "node_latency_s": (1e-6, 5e-5),
    "network_links": (0.6, 0.95),
    "network_latency_s": (1e-6, 2e-4),
}
"""Between what each efficiency may be fitted; it starts where it ships, and leaving that costs a little.

Causal attention reaches 48 to 60 % of A100's peak forward and 36 to 50 % backward from 2,000 tokens on (arXiv
2307.08691, figures 5 and 6). Shares here are of the fastest product's rate, 0.86 of that peak, so that the lower bounds
are 43 and 34 % of it, what shorter sequences reach: lower ones would make up for something else.
"""
SOFTWARE_BOUNDS = {"host_layer_s": (5e-5, 1.5e-3), "host_collective_s": (0.0, 3e-4), "gradient_overlap": (0.0, 1.0)}
PULL = 0.03
"""What a whole range away from the shipped value costs, against a table's root mean square error."""


def predicted(table: Table, constants: Mapping[str, float]) -> np.ndarray:
    """Step times in seconds, with these constants in place of the shipped ones."""
    efficiencies = dataclasses.replace(FITTED, **{key: constants[key] for key in BOUNDS if key in constants})
    software: dict[str, Any] = {key: constants[key] for key in SOFTWARE_BOUNDS if key in constants}
    times = np.full(len(table.rows), np.nan)
    for index, machine, work in groups(table, efficiencies):
        changed = dataclasses.replace(machine, software=dataclasses.replace(machine.software, **software))
        times[index] = step_time(changed, work).total
    return times


def fitted(tables: Sequence[Table]) -> dict[str, float]:
    """The constants that tell these tables best: every table weighs the same, outliers little."""
    bounds = BOUNDS | SOFTWARE_BOUNDS
    low, high = (np.array([pair[side] for pair in bounds.values()]) for side in (0, 1))
    shipped = np.array([getattr(FITTED, name) for name in BOUNDS] + [getattr(FRONTRUNNER, n) for n in SOFTWARE_BOUNDS])
    start = (np.clip(shipped, low, high) - low) / (high - low)

    def residuals(place: np.ndarray) -> np.ndarray:
        constants = dict(zip(bounds, low + place * (high - low), strict=True))
        found = [PULL * (place - start)]
        for table in tables:
            error = np.log(predicted(table, constants) / table.rows.step_time_s.to_numpy())
            error = error[np.isfinite(error)]
            found.append(error / np.sqrt(max(len(error), 1)))
        return np.concatenate(found)

    best = least_squares(residuals, start, bounds=(0, 1), loss="soft_l1", f_scale=0.05)
    return dict(zip(bounds, (low + best.x * (high - low)).tolist(), strict=True))
