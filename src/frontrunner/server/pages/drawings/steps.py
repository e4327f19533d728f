"""The step times of a recipe's measurements, a point each on one line, as shapes to draw."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, ROW_HEIGHT, MARGIN = 720.0, 26.0, 12.0


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One measurement: its name, where its steps and their median lie."""

    name: str
    y: float
    xs: tuple[float, ...]
    median_x: float


@dataclass(frozen=True, kw_only=True)
class StepStrip:
    """All measurements of a recipe on one axis from `low_s` to `high_s` seconds."""

    width: float
    height: float
    margin: float
    low_s: float
    high_s: float
    rows: tuple[StepRow, ...]


def step_strip(measured: Sequence[tuple[str, Sequence[float]]]) -> StepStrip | None:
    """The strip of (name, step times in seconds); None without a measurement."""
    times = [time for _, steps in measured for time in steps]
    if not times:
        return None
    low, high = min(times), max(times)
    room = (high - low) or max(high, 1e-9)

    def place(time_s: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * (time_s - low) / room

    rows = tuple(
        StepRow(
            name=name,
            y=ROW_HEIGHT * (number + 0.5),
            xs=tuple(place(time) for time in steps),
            median_x=place(statistics.median(steps)),
        )
        for number, (name, steps) in enumerate(measured)
    )
    return StepStrip(width=WIDTH, height=ROW_HEIGHT * len(rows) + 18, margin=MARGIN, low_s=low, high_s=high, rows=rows)
