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
"""Each figure is the median of so many windows: one in which something else ran on the machine does no harm."""
MOST_RUNS = 2000
LONGEST_WINDOW_S = 0.25
MEETINGS = 15
LEAST_SHARE = 0.1
"""Of a window is the runs' at least, should the ranks' meeting at its end have taken longer than usual."""
UNTIMED_RUNS = 2
"""One that pays for first uses, and one that tells how many fill a window."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One thing to measure. `key` names it; `work` is what its time grows with; `prepare` makes the operation."""

    key: dict[str, Any]
    work: float
    prepare: Callable[[], Operation]


@dataclass(kw_only=True)
class Sweep:
    """What was measured, a row a cell, and what was left out, with the reason."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Take another sweep's cells in."""
        self.rows += other.rows
        self.left_out += other.left_out


def expected(work: float, seen: Sequence[tuple[float, float]]) -> float:
    """Seconds for so much work, on the line through the least and the most of what was seen as (work, seconds)."""
    if not seen:
        return 0.0
    (least, least_s), (most, most_s) = min(seen), max(seen)
    slope = max(most_s - least_s, 0.0) / (most - least) if most > least else 0.0
    return least_s + slope * max(work - least, 0.0)


class Clock:
    """Times operations that all ranks run at the same time. Every rank calls the same methods in the same order."""

    def __init__(self, device: torch.device) -> None:
        """It starts now, with a few meetings of all ranks to see how long one takes."""
        self._device = device
        self._began_s = time.monotonic()
        self._meeting_s = self._empty_window_s()

    @property
    def now_s(self) -> float:
        """Seconds since the clock's start."""
        return time.monotonic() - self._began_s

    def sweep(self, cells: Iterable[Cell], until_s: float) -> Sweep:
        """Measure the cells, until about so many seconds after the clock's start.

        The first is always measured. One that would take more than what is left, going by those before, is left out.
        """
        cells, found, seen = list(cells), Sweep(), list[tuple[float, float]]()
        for number, cell in enumerate(cells):
            left_s = -self.largest(self.now_s - until_s)
            expected_s = expected(cell.work, seen) * (UNTIMED_RUNS + WINDOWS)
            if number and (left_s <= 0 or expected_s > left_s):
                why = f"would take {expected_s:.2g} s of {max(left_s, 0.0):.2g} s that were left"
                found.left_out.append(cell.key | {"why": why})
                continue
            share_s = left_s / (len(cells) - number)
            time_s = self.time(cell.prepare(), share_s / (UNTIMED_RUNS + WINDOWS))
            seen.append((cell.work, time_s))
            found.rows.append(cell.key | {"time_s": time_s})
        return found

    def time(self, run: Operation, window_s: float) -> float:
        """Seconds of one run, with windows of about `window_s`; the same on every rank."""
        self._window(run, 1)
        first_s = self._window(run, 1)
        runs = int(min(max(min(window_s, LONGEST_WINDOW_S) / max(first_s, 1e-9), 1), MOST_RUNS))
        return statistics.median(self._window(run, runs) for _ in range(WINDOWS))

    def _window(self, run: Operation, runs: int) -> float:
        """Seconds of each of so many runs in a row: from when all ranks begin to when the last of them is done.

        A rank's own time would not do: of four that share two cores, each may find a core free while it measures.
        """
        self.largest(0.0)
        start = time.perf_counter()
        for _ in range(runs):
            run()
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        self.largest(0.0)
        whole_s = self.largest(time.perf_counter() - start)
        return max(whole_s - self._meeting_s, LEAST_SHARE * whole_s) / runs

    def _empty_window_s(self) -> float:
        """What a window's own meeting of the ranks takes."""
        self._meeting_s = 0.0
        return statistics.median(self._window(lambda: None, 1) for _ in range(MEETINGS))

    def largest(self, value: float) -> float:
        """The largest of the ranks' values, on every rank."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared.item())
