"""Breakdown of a rank's step time into parts, from a Chrome trace of torch's profiler.

At each moment of a step one thing counts: what the rank's device computes; else what it waits for;
else what the host is known to do; else it is idle. Communication that runs while something is
computed is counted apart, as hidden.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any, NamedTuple

from frontrunner.evaluators.trainer.job import DATA_RANGE, STEP_RANGE, WAIT_RANGE

Span = tuple[float, float]


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
    """Part of a step's time; of several at once the earlier here counts."""

    OPTIMIZER = "optimizer"
    DATA = "data"
    COMPUTE = "compute"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    OTHER_COLLECTIVE = "other collective"
    # Last of the communication: sends stay in flight while the rank waits for something else
    SEND_RECV = "send/recv"
    HOST_COPY = "host-device copy"
    IDLE = "idle"

    @property
    def moves_data(self) -> bool:
        """Whether this is communication, or a copy between host and device."""
        return self not in (Part.OPTIMIZER, Part.DATA, Part.COMPUTE, Part.IDLE)


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Seconds of a step by part, mean over the steps of a trace; `hidden` ran while the device
    computed, in no part.
    """

    step_time_s: float
    seconds: Mapping[Part, float]
    hidden: Mapping[Part, float]

    @property
    def waiting_s(self) -> float:
        """The seconds in which the rank could only wait for others or for data to move."""
        return sum(seconds for part, seconds in self.seconds.items() if part.moves_data)


def mean(breakdowns: Sequence[Breakdown]) -> Breakdown:
    """Return the mean over ranks."""
    return Breakdown(
        step_time_s=fmean(each.step_time_s for each in breakdowns),
        seconds={part: fmean(each.seconds.get(part, 0.0) for each in breakdowns) for part in Part},
        hidden={part: fmean(each.hidden.get(part, 0.0) for each in breakdowns) for part in Part},
    )


class Activity(NamedTuple):
    """Span of time, in microseconds, of one part."""

    part: Part
    span: Span


@dataclass(frozen=True, kw_only=True)
class Event:
    """Span of a trace. `correlation` links what a device did to the host's call that launched
    it.
    """

    name: str
    category: str
    thread: str
    span: Span
    correlation: int | None = None
    collective: str = ""

    @property
    def is_step(self) -> bool:
        """Whether this is a step, on the thread that ran it."""
        return self.category == ANNOTATION and self.name == STEP_RANGE


ANNOTATION, OPERATOR = "user_annotation", "cpu_op"
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("_runtime", "_driver")
"""Suffixes of the categories of host calls that launch work on a device (`cuda_runtime`)."""
COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
COLLECTIVE_LIBRARIES = ("nccl", "rccl", "oneccl")
IN_FLIGHT_ON_CPU = "gloo:"
WAIT_OPERATOR = "wait_tensor"
UNSEEN_WAITS = "DistributedDataParallel.forward"
"""A trace with this has waits in C++ that are not recorded."""
MOST_SEEN = 4000
"""Parts of a step that a drawing can tell apart."""
WORDS = {
    # Longer words first: a reduce-scatter is no scatter.
    "reducescatter": Part.REDUCE_SCATTER,
    "allreduce": Part.ALL_REDUCE,
    "allgather": Part.ALL_GATHER,
    "alltoall": Part.ALL_TO_ALL,
    "broadcast": Part.BROADCAST,
    "send": Part.SEND_RECV,
    "recv": Part.SEND_RECV,
}


def events_of(trace: Mapping[str, Any]) -> list[Event]:
    """Return the spans of a Chrome trace."""
    return [
        Event(
            name=str(table["name"]),
            category=str(table.get("cat", "")),
            thread=f"{table['pid']}/{table['tid']}",
            span=(float(table["ts"]), float(table["ts"]) + float(table["dur"])),
            correlation=table.get("args", {}).get("correlation"),
            collective=str(table.get("args", {}).get("Collective name", "")),
        )
        for table in trace["traceEvents"]
        if table.get("ph") == "X" and "dur" in table
    ]


def break_down(events: Sequence[Event]) -> Breakdown:
    """Assign each moment of a rank's steps to one part; raise `ValueError` for a trace without a
    step.

    `busy` is what its device computed, `moving` the communication that was in flight, `waiting` the
    part of it that the rank waited for (on an accelerator all of it), and `hosting` what its host
    did.
    """
    steps, found, busy, moving = _assigned(events)
    unit_us = 1e6 * sum(event.is_step for event in events)
    seconds = {part: total(spans) / unit_us for part, spans in found.items()}
    computing = intersection(steps, merged(each.span for each in busy))
    hidden = {
        part: total(intersection(computing, parts)) / unit_us
        for part, parts in _by_part(moving).items()
    }
    return Breakdown(step_time_s=total(steps) / unit_us, seconds=seconds, hidden=hidden)


def last_step(events: Sequence[Event]) -> list[Activity]:
    """Return the parts of a rank's last step in order, without what is too short to see."""
    _, found, _, _ = _assigned(events)
    step = max(event.span for event in events if event.is_step)
    least = (step[1] - step[0]) / MOST_SEEN
    seen = (
        Activity(part, span)
        for part, spans in found.items()
        for span in intersection([step], spans)
    )
    return sorted(
        (one for one in seen if one.span[1] - one.span[0] >= least), key=lambda one: one.span
    )


def _assigned(
    events: Sequence[Event],
) -> tuple[list[Span], dict[Part, list[Span]], list[Activity], list[Activity]]:
    """Return the steps, the time of each part in them, what the device computed and what was in
    flight.
    """
    spans = [event.span for event in events if event.is_step]
    if not spans:
        raise ValueError(f"the trace contains no step: no range {STEP_RANGE}")
    on_device = any(event.category in DEVICE_CATEGORIES for event in events)
    busy, moving, waiting, hosting = (_on_device if on_device else _on_host)(events)
    steps = left = merged(spans)
    found: dict[Part, list[Span]] = {part: [] for part in Part}
    for layer in (busy, waiting, hosting):
        for part, parts in _by_part(layer).items():
            found[part] += intersection(left, parts)
            left = difference(left, parts)
    found[Part.IDLE] = left
    return steps, found, busy, moving


def _by_part(activities: Iterable[Activity]) -> dict[Part, list[Span]]:
    found: dict[Part, list[Span]] = {part: [] for part in Part}
    for part, span in activities:
        found[part].append(span)
    return {part: merged(spans) for part, spans in found.items() if spans}


Activities = tuple[list[Activity], list[Activity], list[Activity], list[Activity]]


def _on_device(events: Sequence[Event]) -> Activities:
    launched_us = {
        event.correlation: event.span[0]
        for event in events
        if event.category.endswith(LAUNCH_CATEGORIES)
    }
    ranges = _host_ranges(events)
    busy, moving = [], []
    for event in events:
        if event.category not in DEVICE_CATEGORIES:
            continue
        asked_us = launched_us.get(event.correlation) if event.correlation is not None else None
        part = Part.COMPUTE if asked_us is None else _part_at(asked_us, ranges)
        with_host = event.category == "gpu_memcpy" and (
            "HtoD" in event.name or "DtoH" in event.name
        )
        if any(library in event.name.lower() for library in COLLECTIVE_LIBRARIES):
            named = collective_part(
                event.name
            )  # or by torch's label: ROCm's kernels share one name
            named = collective_part(event.collective) if named == Part.OTHER_COLLECTIVE else named
            moving.append(Activity(named, event.span))
        elif part == Part.COMPUTE and with_host:
            moving.append(Activity(Part.HOST_COPY, event.span))
        else:
            busy.append(Activity(part, event.span))
    return busy, moving, moving, [each for each in ranges if each.part == Part.DATA]


def _on_host(events: Sequence[Event]) -> Activities:
    thread = next(event.thread for event in events if event.is_step)
    own = [event for event in events if event.thread == thread]
    ranges, moving = _host_ranges(own), _in_flight(events)
    # A wait or a compiled region takes time from the operators around it.
    nested = [e for e in own if e.category == OPERATOR or e.name == WAIT_RANGE or _is_compiled(e)]
    busy = [
        Activity(_part_at(event.span[0], ranges), span)
        for event, spans in self_times(nested)
        if _is_computing(event)
        for span in spans
    ]
    return busy, moving, list(_waiting(own, moving)), ranges


def _host_ranges(events: Iterable[Event]) -> list[Activity]:
    """Return the optimizer's steps, which torch marks, and the trainer's reading of data on the
    host.
    """
    return [
        Activity(Part.DATA if event.name == DATA_RANGE else Part.OPTIMIZER, event.span)
        for event in events
        if event.category == ANNOTATION
        and (event.name == DATA_RANGE or event.name.startswith("Optimizer."))
    ]


def _part_at(time_us: float, ranges: Iterable[Activity]) -> Part:
    return next((part for part, (start, end) in ranges if start <= time_us < end), Part.COMPUTE)


def collective_part(name: str) -> Part:
    """Return the kind of a collective from the name of a call (`c10d::allreduce_`), an event in
    flight, or a kernel.
    """
    letters = "".join(character for character in name.lower() if character.isalpha())
    return next((part for word, part in WORDS.items() if word in letters), Part.OTHER_COLLECTIVE)


def _is_compiled(event: Event) -> bool:
    return event.category in (ANNOTATION, OPERATOR) and "Compiled" in event.name


def _is_computing(event: Event) -> bool:
    # Nodes of autograd, functions written in Python and collectives hold others' time and their own
    # waiting.
    namespace, colons, _ = event.name.partition("::")
    is_operator = bool(colons) and namespace not in (
        *COLLECTIVE_NAMESPACES,
        "autograd",
        "frontrunner",
    )
    return is_operator or _is_compiled(event)


def _in_flight(events: Iterable[Event]) -> list[Activity]:
    """Return gloo's collectives, each of the kind that was called: its all-reduce may be torch's
    reduce-scatter.
    """
    ordered = sorted(events, key=lambda event: event.span[0])
    calls = [
        event for event in ordered if event.category == OPERATOR and event.name.startswith("c10d::")
    ]
    asked = [
        call
        for call in calls
        if collective_part(call.name) in (Part.ALL_REDUCE, Part.REDUCE_SCATTER)
    ]
    found = []
    for event in ordered:
        if event.name.startswith(IN_FLIGHT_ON_CPU):
            part = collective_part(event.name)
            if part == Part.ALL_REDUCE and asked and asked[0].span[0] <= event.span[0]:
                part = collective_part(asked.pop(0).name)
            found.append(Activity(part, event.span))
    return found


def _waiting(own: Sequence[Event], moving: Sequence[Activity]) -> Iterator[Activity]:
    """Yield the time in which the thread called a collective or waited for one."""
    if any(event.name == UNSEEN_WAITS for event in own):
        yield from moving
    calls, awaited = [], []
    for event in own:
        namespace, _, rest = event.name.partition("::")
        is_operator = event.category == OPERATOR
        if event.name == WAIT_RANGE or (is_operator and rest == WAIT_OPERATOR):
            awaited.append(event.span)
        elif is_operator and namespace in COLLECTIVE_NAMESPACES and "wrap_tensor" not in rest:
            calls.append(Activity(collective_part(event.name), event.span))
    yield from calls
    waits = merged(awaited)
    for part, spans in _by_part(moving).items():
        yield from (Activity(part, span) for span in intersection(waits, spans))
    # What is left is the way of a call to gloo's thread, or of its end back to this one: it goes to
    # the last begun.
    begun = sorted([*moving, *calls], key=lambda each: each.span[0])
    starts = [each.span[0] for each in begun]
    for span in difference(waits, merged(each.span for each in moving)):
        before = bisect.bisect_left(starts, span[1])
        yield Activity(begun[before - 1].part if before else Part.OTHER_COLLECTIVE, span)


def self_times(events: Iterable[Event]) -> Iterator[tuple[Event, list[Span]]]:
    """Yield each of one thread's nested events with the time in which none of the events inside it
    ran.

    One that holds another of the same name is left out: it is the dispatch of an operator on a
    distributed tensor.
    """
    ordered = sorted(events, key=lambda event: (event.span[0], -event.span[1]))
    inside: dict[int, list[Span]] = {}
    wrappers: set[int] = set()
    nest: list[tuple[int, Event]] = []
    for number, event in enumerate(ordered):
        while nest and nest[-1][1].span[1] <= event.span[0]:
            nest.pop()
        if nest:
            inside[nest[-1][0]].append(event.span)
        wrappers |= {outer for outer, around in nest if around.name == event.name}
        nest.append((number, event))
        inside[number] = []
    for number, event in enumerate(ordered):
        if number not in wrappers:
            yield event, difference([event.span], merged(inside[number]))
