"""Timing on all ranks at once, within a budget that they agree on."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist

Operation = Callable[[], object]

WINDOWS = 3
"""Each figure is of the fastest of this many windows, as in STREAM: what else runs on the machine only adds to them."""
MOST_RUNS = 20_000
FASTEST_GROWTH = 20
LONGEST_WINDOW_S = 0.25
MEETINGS = 15
LEAST_MEETINGS = 8
"""A window lasts at least half of this many meetings of the ranks. One ends it and is taken off, but no more than an
eighth: it may have been shorter than usual."""
ALWAYS = 2
"""Cells that are measured however little time is left: with fewer there is no line and no figure."""
UNTIMED_RUNS = 2
"""One that pays for first uses, and one that shows how many fill a window."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One thing to measure. `key` names it; `work` is what its time grows with; `prepare` makes the operation."""

    key: dict[str, Any]
    work: float
    prepare: Callable[[], Operation]


@dataclass(kw_only=True)
class Sweep:
    """The measured rows, one per cell, and the cells that were left out, with the reason."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Add another sweep's cells."""
        self.rows += other.rows
        self.left_out += other.left_out


def expected(work: float, seen: Sequence[tuple[float, float]]) -> float:
    """Return the seconds for this much work, on the line through the least and the most (work, seconds)."""
    if not seen:
        return 0.0
    (least, least_s), (most, most_s) = min(seen), max(seen)
    slope = max(most_s - least_s, 0.0) / (most - least) if most > least else 0.0
    return least_s + slope * max(work - least, 0.0)


class Clock:
    """Times operations that all ranks run at the same time. Every rank calls the same methods in the same order."""

    def __init__(self, device: torch.device) -> None:
        """Start, with a few meetings of all ranks to see how long one takes."""
        self._device = device
        self._began_s = time.monotonic()
        self._meeting_s = statistics.median(self._window_s(lambda: None, 1) for _ in range(MEETINGS))

    @property
    def now_s(self) -> float:
        """Seconds since the clock's start."""
        return time.monotonic() - self._began_s

    def sweep(self, cells: Iterable[Cell], until_s: float) -> Sweep:
        """Measure the cells, until about `until_s` seconds after the clock's start.

        The first two are always measured. Of the others, one that would take more than what is left is left out.
        """
        cells, found, seen = list(cells), Sweep(), list[tuple[float, float]]()
        for number, cell in enumerate(cells):
            left_s = -self.largest(self.now_s - until_s)
            expected_s = expected(cell.work, seen) * (UNTIMED_RUNS + WINDOWS)
            if number >= ALWAYS and (left_s <= 0 or expected_s > left_s):
                why = f"would take {expected_s:.2g} s of {max(left_s, 0.0):.2g} s that were left"
                found.left_out.append(cell.key | {"why": why})
                continue
            share_s = left_s / (len(cells) - number)
            time_s = self.time(cell.prepare(), share_s / (UNTIMED_RUNS + WINDOWS))
            seen.append((cell.work, time_s))
            found.rows.append(cell.key | {"time_s": time_s})
        return found

    def time(self, run: Operation, window_s: float) -> float:
        """Return the seconds of one run, with windows of about `window_s`; the same on every rank."""
        window_s = max(min(window_s, LONGEST_WINDOW_S), LEAST_MEETINGS * self._meeting_s)
        self._window_s(run, 1)
        runs = self._runs(run, window_s)
        whole_s = min(self._window_s(run, runs) for _ in range(WINDOWS))
        return max(whole_s - self._meeting_s, (1 - 1 / LEAST_MEETINGS) * whole_s) / runs

    def _runs(self, run: Operation, window_s: float) -> int:
        """Return how many runs fill a window: tried with one, then with more until half of it is filled."""
        runs = 1
        while True:
            whole_s = self._window_s(run, runs)
            if whole_s > window_s / 2 or runs == MOST_RUNS:
                return runs
            runs = min(int(runs * min(max(window_s / whole_s, 2), FASTEST_GROWTH)), MOST_RUNS)

    def _window_s(self, run: Operation, runs: int) -> float:
        """Return the seconds from when all ranks begin this many runs to when all have met after the last.

        A rank's own time would not do: of four that share two cores, each may find a core free while it measures.
        """
        self.largest(0.0)
        start = time.perf_counter()
        for _ in range(runs):
            run()
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        self.largest(0.0)
        return self.largest(time.perf_counter() - start)

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' values, on every rank."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared.item())
