"""Latency and bandwidth of collectives, by least squares over message sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.diagnostics.calibration.ranks import Seen

PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "all-to-all": 1, "scatter": 1}
"""Times that (g - 1) / g of the message goes over each link of a ring of g ranks (NCCL's "bus bandwidth"); the whole
message goes once for those that are not here."""
RINGS = ("all-reduce", "reduce-scatter", "all-gather")
"""The collectives of the step-time formulas."""
FEWEST_POINTS = 2
LARGE_BYTES = 2**19
"""From this size on a message tells of bandwidth; smaller ones differ by latency's noise."""
FELT = 1e-3
"""A largest message that takes less of the time than this share tells no bandwidth."""


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
    """What the step-time formulas take of a level: seconds a hop and bytes/s of a rank's link, over all `RINGS`."""

    level: str
    ranks: int
    hop_latency_s: float
    bytes_per_s: float | None
    residual: float
    points: int


def link_bytes(collective: str, ranks: int, message_bytes: float) -> float:
    """Bytes of a message that go over one rank's link."""
    if collective not in PASSES:
        return message_bytes
    return PASSES[collective] * message_bytes * (ranks - 1) / ranks


def hops(collective: str, ranks: int) -> float:
    """Messages after one another in a ring, or twice a tree's depth where that is less, as `machine.ring_s` counts."""
    return float(PASSES[collective] * min(ranks - 1, 2 * np.log2(ranks)))


def lines(seen: Seen) -> tuple[Line, ...]:
    """A line for each collective and level of which two sizes or more were measured."""
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
    """The level's hop and bandwidth; None where too little of it was measured."""
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
    """Seconds a step and bytes/s, neither below 0, with the least relative errors; and their root mean square."""
    from scipy.optimize import nnls

    times: npt.NDArray[np.float64] = np.asarray(times_s)
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
