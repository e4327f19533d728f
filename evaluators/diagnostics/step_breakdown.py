"""Breakdown of a rank's step time into parts.

At each moment of a step exactly one thing counts: what the rank's device computes; else what it waits for; else what
the host is known to do; else it is idle. The parts therefore sum to the step's time. Communication that runs while
something is computed costs nothing and is counted apart, as hidden."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Span = tuple[float, float]
"""Start and end, in any one unit."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the time that any of the spans covers."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def intersection(one: list[Span], other: list[Span]) -> list[Span]:
    """Return the time that is in both."""
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(one: list[Span], other: list[Span]) -> list[Span]:
    """Return the time that is in `one` and not in `other`."""
    edges = [-math.inf, *(edge for span in other for edge in span), math.inf]
    return intersection(one, list(zip(edges[::2], edges[1::2], strict=True)))


def total(spans: Iterable[Span]) -> float:
    """Return the sum of the lengths."""
    return sum(end - start for start, end in spans)


class Part(StrEnum):
    """Part of a step's time.

    Of several at once the earlier here counts. Sends come last of the communication: they stay in flight until the
    other stage takes them, while the rank waits for something else.
    """

    OPTIMIZER = "optimizer"
    DATA = "data"
    COMPUTE = "compute"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    OTHER_COLLECTIVE = "other collective"
    SEND_RECV = "send/recv"
    HOST_COPY = "host-device copy"
    IDLE = "idle"

    @property
    def moves_data(self) -> bool:
        """Whether this is communication, or a copy between host and device."""
        return self not in (Part.OPTIMIZER, Part.DATA, Part.COMPUTE, Part.IDLE)


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Span of time, in microseconds, of one part."""

    part: Part
    start_us: float
    end_us: float

    @property
    def span(self) -> Span:
        """Start and end."""
        return (self.start_us, self.end_us)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Activities of one rank in the steps of its trace.

    `busy` is what its device computed, `moving` the communication that was in flight, `waiting` the part of it that
    the rank waited for (on an accelerator all of it), and `hosting` what its host did.
    """

    steps: tuple[Span, ...]
    busy: tuple[Activity, ...]
    moving: tuple[Activity, ...]
    waiting: tuple[Activity, ...]
    hosting: tuple[Activity, ...]


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Seconds of a step by part, mean over the steps of a trace; `seconds` sums to `step_time_s`.

    `hidden` is the communication that ran while the device computed, which is in no part of the step.
    """

    step_time_s: float
    seconds: Mapping[Part, float]
    hidden: Mapping[Part, float]

    @property
    def waiting_s(self) -> float:
        """The seconds in which the rank could only wait for others or for data to move."""
        return sum(seconds for part, seconds in self.seconds.items() if part.moves_data)


def break_down(timeline: Timeline) -> Breakdown:
    """Assign each moment of the steps to one part."""
    steps = merged(timeline.steps)
    layers = [_by_part(activities) for activities in (timeline.busy, timeline.waiting, timeline.hosting)]
    unit_us = 1e6 * len(timeline.steps)
    left = steps
    seconds = dict.fromkeys(Part, 0.0)
    for layer in layers:
        for part, spans in layer.items():
            seconds[part] += total(intersection(left, spans)) / unit_us
            left = difference(left, spans)
    seconds[Part.IDLE] = total(left) / unit_us
    busy = intersection(steps, merged(activity.span for activity in timeline.busy))
    hidden = {part: total(intersection(busy, spans)) / unit_us for part, spans in _by_part(timeline.moving).items()}
    return Breakdown(step_time_s=total(steps) / unit_us, seconds=seconds, hidden=hidden)


def mean(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """Return the mean over ranks; parts still sum to the step's time."""
    every = tuple(breakdowns)

    def over(tables: Iterable[Mapping[Part, float]]) -> dict[Part, float]:
        kept = tuple(tables)
        return {part: sum(table.get(part, 0.0) for table in kept) / len(kept) for part in Part}

    return Breakdown(
        step_time_s=sum(breakdown.step_time_s for breakdown in every) / len(every),
        seconds=over(breakdown.seconds for breakdown in every),
        hidden=over(breakdown.hidden for breakdown in every),
    )


def _by_part(activities: Iterable[Activity]) -> dict[Part, list[Span]]:
    """Return the merged spans of each part, in order of precedence."""
    found: dict[Part, list[Span]] = {part: [] for part in Part}
    for activity in activities:
        found[activity.part].append(activity.span)
    return {part: merged(spans) for part, spans in found.items() if spans}
