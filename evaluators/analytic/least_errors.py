"""Which constants of the formulas may be fitted to measured step times, and how: one fit for all that are.

`analytic/fit.py` fits what ships to published tables, `calibration/step_fit.py` a cluster's own to its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from frontrunner.evaluators.analytic.machine import FITTED, SOFTWARE_CONSTANTS
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.workload import Rows

Bounds = Mapping[str, tuple[float, float]]

BOUNDS: Bounds = {
    "matmul": (0.3, 1.0),
    "tile_waves": (0.0, 1.5),
    "reduction_depth": (0.0, 600.0),
    "memory": (0.3, 1.0),
    "elementwise": (0.5, 6.0),
    "scores": (0.5, 6.0),
    "fused_attention_forward": (0.1, 1.0),
    "fused_attention_backward": (0.1, 1.0),
    "kernel_s": (1e-7, 1e-3),
    "node_links": (0.1, 1.0),
    "node_latency_s": (1e-6, 1e-2),
    "network_links": (0.1, 1.0),
    "network_latency_s": (1e-6, 1e-2),
    "host_layer_s": (2e-5, 2e-2),
    "host_collective_s": (0.0, 1e-2),
    "gradient_overlap": (0.0, 1.0),
}
"""Between what each constant is looked for on any machine, CPUs among them."""
OF_ACCELERATORS: Bounds = {
    **BOUNDS,
    "matmul": (0.85, 1.0),
    "tile_waves": (0.35, 0.75),
    "memory": (0.78, 0.92),
    "elementwise": (0.5, 3.0),
    "scores": (0.5, 3.0),
    "fused_attention_forward": (0.5, 0.75),
    "fused_attention_backward": (0.4, 0.65),
    "kernel_s": (1e-6, 5e-6),
    "node_links": (0.55, 0.85),
    "node_latency_s": (3.4e-6, 5e-5),
    "network_links": (0.6, 0.95),
    "network_latency_s": (14e-6, 2e-4),
    "host_layer_s": (5e-5, 1.5e-3),
    "host_collective_s": (0.0, 3e-4),
}
"""The same for the constants that ship, which are to hold for every accelerator.

Causal attention reaches 48 to 60 % of A100's peak forward and 36 to 50 % backward from 2,000 tokens on (arXiv
2307.08691, figures 5 and 6). Shares here are of the fastest product's rate, 0.86 of that peak, so that the lower bounds
are 43 and 34 % of it, what shorter sequences reach: lower ones would make up for something else. Half of the last wave
of tiles is idle on average. No hop is shorter than NCCL's own figures (`Efficiencies`). Kernels that wait in a queue
start within microseconds (assumed).
"""
SOURCED: Mapping[str, float] = {
    "matmul": 1.0,
    "tile_waves": 0.5,
    "reduction_depth": 128.0,
    "memory": 0.86,
    "elementwise": 1.5,
    "scores": 1.0,
    "fused_attention_forward": 0.55,
    "fused_attention_backward": 0.45,
    "kernel_s": 2.5e-6,
    "node_links": 0.8,
    "node_latency_s": 10e-6,
    "network_links": 0.85,
    "network_latency_s": 14e-6,
    "host_layer_s": 0.85e-3,
    "host_collective_s": 30e-6,
    "gradient_overlap": 0.5,
}
"""Constants that no table of step times gave, for a fit that is to know nothing of a table that it is judged on.

Attention as in the figures named above, a hop between nodes as in NCCL, the host's time as measured for a layer of the
project's own trainer (docs/measurements.md); the rest is assumed.
"""
PULL = 0.03
"""What a whole range away from the start costs, against a root mean square error; assumed. What rows cannot tell apart
stays where it was."""
OUTLIER = 0.05
"""From about this share on errors count less than squared; assumed."""
TOLERANCE = 1e-4
MOST_STEPS = 60
"""Of the solver; errors hardly change after some twenty."""


def shipped(name: str) -> float:
    """The constant that ships."""
    value: float = getattr(FRONTRUNNER if name in SOFTWARE_CONSTANTS else FITTED, name)
    return value


def least_errors(
    log_errors: Callable[[Mapping[str, float]], Rows], start: Mapping[str, float], bounds: Bounds
) -> dict[str, float]:
    """The constants with the least errors, each pulled to where it starts; outliers count little.

    `log_errors` tells the logarithms of told over measured times under some constants, each divided by the root of the
    rows that share its weight. Those that are fitted are the ones of `start`.
    """
    from scipy.optimize import least_squares

    low, high = (np.array([bounds[name][side] for name in start]) for side in (0, 1))
    begin = np.clip((np.array(list(start.values())) - low) / (high - low), 0, 1)

    def constants(place: Rows) -> dict[str, float]:
        return dict(zip(start, (low + place * (high - low)).tolist(), strict=True))

    def residuals(place: Rows) -> Rows:
        return np.concatenate([PULL * (place - begin), log_errors(constants(place))])

    found = least_squares(
        residuals, begin, bounds=(0, 1), loss="soft_l1", f_scale=OUTLIER, ftol=TOLERANCE, max_nfev=MOST_STEPS
    )
    return constants(found.x)
