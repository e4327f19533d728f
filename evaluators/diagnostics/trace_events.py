"""Chrome traces of torch's profiler as timelines of a rank."""

from __future__ import annotations

import bisect
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frontrunner.evaluators.diagnostics.step_breakdown import (
    Activity,
    Part,
    Span,
    Timeline,
    difference,
    intersection,
    merged,
)
from frontrunner.evaluators.trainer.job import DATA_RANGE, STEP_RANGE, WAIT_RANGE

ANNOTATION = "user_annotation"
OPERATOR = "cpu_op"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Span of a trace. `correlation` links what a device did to the host's call that launched it."""

    name: str
    category: str
    thread: str
    start_us: float
    end_us: float
    correlation: int | None = None
    collective: str = ""


def read_trace(path: Path) -> dict[str, Any]:
    """Read a gzipped Chrome trace.

    Raises:
        ValueError: the file is not a Chrome trace.
        OSError: it cannot be read.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document = json.load(file)
    if not (isinstance(document, dict) and isinstance(document.get("traceEvents"), list)):
        raise ValueError(f"{path} is not a Chrome trace: it has no traceEvents")  # noqa: TRY004 - a file, not a caller
    return document


def read_events(path: Path) -> list[Event]:
    """Return the spans of a gzipped Chrome trace; raise as `read_trace` does."""
    events = read_trace(path)["traceEvents"]
    return [_event(table) for table in events if table.get("ph") == "X" and "dur" in table]


def _event(table: dict[str, Any]) -> Event:
    arguments = table.get("args", {})
    return Event(
        name=str(table["name"]),
        category=str(table.get("cat", "")),
        thread=f"{table['pid']}/{table['tid']}",
        start_us=float(table["ts"]),
        end_us=float(table["ts"]) + float(table["dur"]),
        correlation=arguments.get("correlation"),
        collective=str(arguments.get("Collective name", "")),
    )


def is_step(event: Event) -> bool:
    """Return whether the event is a step, on the thread that ran it."""
    return event.category == ANNOTATION and event.name == STEP_RANGE


def host_ranges(events: Iterable[Event]) -> list[Activity]:
    """Return the optimizer's steps and the reading of data on the host."""
    ranges = []
    for event in events:
        part = host_part(event.name) if event.category == ANNOTATION else None
        if part is not None:
            ranges.append(activity(part, event))
    return ranges


def part_at(time_us: float, ranges: Iterable[Activity]) -> Part:
    """Return the part of the host's range that contains a moment; outside of all ranges, the model."""
    found = (each.part for each in ranges if each.start_us <= time_us < each.end_us)
    return next(found, Part.COMPUTE)


def activity(part: Part, event: Event) -> Activity:
    """Return the event as an activity."""
    return Activity(part=part, start_us=event.start_us, end_us=event.end_us)


COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
COLLECTIVE_LIBRARIES = ("nccl", "rccl", "oneccl")
IN_FLIGHT_ON_CPU = "gloo:"
WAIT_OPERATOR = "wait_tensor"
COPIES_WITH_HOST = ("HtoD", "DtoH")

_WORDS = (
    # Longer words first: a reduce-scatter is no scatter.
    ("reducescatter", Part.REDUCE_SCATTER),
    ("allreduce", Part.ALL_REDUCE),
    ("allgather", Part.ALL_GATHER),
    ("alltoall", Part.ALL_TO_ALL),
    ("broadcast", Part.BROADCAST),
    ("send", Part.SEND_RECV),
    ("recv", Part.SEND_RECV),
)


def collective_part(name: str) -> Part:
    """Return the kind of a collective from the name of a call (`c10d::allreduce_`), an event in flight, or a kernel."""
    letters = "".join(character for character in name.lower() if character.isalpha())
    return next((part for word, part in _WORDS if word in letters), Part.OTHER_COLLECTIVE)


def is_collective_call(operator: str) -> bool:
    """Return whether a host's operator starts a collective."""
    namespace, _, rest = operator.partition("::")
    return namespace in COLLECTIVE_NAMESPACES and rest != WAIT_OPERATOR and "wrap_tensor" not in rest


def is_collective_kernel(kernel: str) -> bool:
    """Return whether a device's kernel is the collective library's."""
    lower = kernel.lower()
    return any(library in lower for library in COLLECTIVE_LIBRARIES)


def is_computing(operator: str) -> bool:
    """Return whether the self time of a host's operator is computing, if the host is the device.

    It is that of the operators of torch and its extensions (`aten::mm`) and of compiled regions. Nodes of autograd,
    functions written in Python and collectives hold others' time and their own waiting.
    """
    if "Compiled" in operator:
        return True
    namespace, colons, _ = operator.partition("::")
    return bool(colons) and namespace not in (*COLLECTIVE_NAMESPACES, "autograd", "frontrunner")


def host_part(annotation: str) -> Part | None:
    """Return the part that a range of the host names: torch marks each optimizer's step, the trainer its data."""
    if annotation.startswith("Optimizer."):
        return Part.OPTIMIZER
    return Part.DATA if annotation == DATA_RANGE else None


UNSEEN_WAITS = "DistributedDataParallel.forward"
"""A trace with this has waits in C++ that are not recorded."""


def host_timeline(events: Sequence[Event]) -> Timeline:
    """Return the timeline of a rank whose device is a CPU; its trace must contain a step."""
    thread = next(event.thread for event in events if is_step(event))
    own = [event for event in events if event.thread == thread]
    ranges = host_ranges(own)
    moving = in_flight(events)
    return Timeline(
        steps=tuple((event.start_us, event.end_us) for event in own if is_step(event)),
        busy=tuple(_busy(own, ranges)),
        moving=tuple(moving),
        waiting=tuple(_waiting(own, moving)),
        hosting=tuple(ranges),
    )


def in_flight(events: Iterable[Event]) -> list[Activity]:
    """Return the collectives of gloo, each of the kind that was called.

    An all-reduce of gloo's may be torch's reduce-scatter. Each is taken for the first call, not yet taken, that may
    have asked for it.
    """
    reducing = (Part.ALL_REDUCE, Part.REDUCE_SCATTER)
    calls = [event for event in events if event.category == OPERATOR and event.name.startswith("c10d::")]
    asked = [event for event in sorted(calls, key=_start) if collective_part(event.name) in reducing]
    found = []
    for event in sorted((event for event in events if event.name.startswith(IN_FLIGHT_ON_CPU)), key=_start):
        part = collective_part(event.name)
        if part == Part.ALL_REDUCE and asked and asked[0].start_us <= event.start_us:
            part = collective_part(asked.pop(0).name)
        found.append(activity(part, event))
    return found


def _busy(own: Iterable[Event], ranges: Sequence[Activity]) -> Iterable[Activity]:
    operators = [event for event in own if event.category == OPERATOR or _may_hold(event)]
    for event, spans in self_times(operators):
        if is_computing(event.name):
            part = part_at(event.start_us, ranges)
            yield from (Activity(part=part, start_us=start, end_us=end) for start, end in spans)


def _may_hold(event: Event) -> bool:
    """Return whether an annotation takes time from the operators around it: a wait, or a compiled region."""
    return event.category == ANNOTATION and (event.name == WAIT_RANGE or "Compiled" in event.name)


def _waiting(own: Sequence[Event], moving: Sequence[Activity]) -> Iterable[Activity]:
    """Yield the time in which the thread called a collective or waited for one."""
    if any(event.name == UNSEEN_WAITS for event in own):
        yield from moving
    calls = [
        activity(collective_part(event.name), event)
        for event in own
        if event.category == OPERATOR and is_collective_call(event.name)
    ]
    yield from calls
    waits = merged((event.start_us, event.end_us) for event in own if _is_wait(event))
    for part in Part:
        spans = merged(each.span for each in moving if each.part == part)
        yield from (Activity(part=part, start_us=start, end_us=end) for start, end in intersection(waits, spans))
    # What is left is the way of a call to gloo's thread, or of its end back to this one: it goes to the last begun.
    begun = sorted([*moving, *calls], key=lambda each: each.start_us)
    starts = [each.start_us for each in begun]
    for start, end in difference(waits, merged(each.span for each in moving)):
        before = bisect.bisect_left(starts, end)
        part = begun[before - 1].part if before else Part.OTHER_COLLECTIVE
        yield Activity(part=part, start_us=start, end_us=end)


def _is_wait(event: Event) -> bool:
    return event.name == WAIT_RANGE or (event.category == OPERATOR and event.name.endswith(f"::{WAIT_OPERATOR}"))


@dataclass(kw_only=True)
class _Open:
    """Open event: its own time so far, and where that continues."""

    event: Event
    goes_on_us: float
    spans: list[Span] = field(default_factory=list)
    wraps: bool = False


def self_times(events: Iterable[Event]) -> Iterable[tuple[Event, list[Span]]]:
    """Yield each of one thread's nested events with the time in which none of the events inside it ran.

    One that holds another of the same name is left out: it is the dispatch, in Python, of an operator on a tensor
    that is spread over ranks.
    """
    nest: list[_Open] = []
    for event in sorted(events, key=lambda event: (event.start_us, -event.end_us)):
        while nest and nest[-1].event.end_us <= event.start_us:
            yield from _closed(nest.pop())
        if nest:
            outer = nest[-1]
            if outer.goes_on_us < event.start_us:
                outer.spans.append((outer.goes_on_us, event.start_us))
            outer.goes_on_us = max(outer.goes_on_us, event.end_us)
        for outer in nest:
            outer.wraps = outer.wraps or outer.event.name == event.name
        nest.append(_Open(event=event, goes_on_us=event.start_us))
    while nest:
        yield from _closed(nest.pop())


def _closed(ended: _Open) -> Iterable[tuple[Event, list[Span]]]:
    if ended.goes_on_us < ended.event.end_us:
        ended.spans.append((ended.goes_on_us, ended.event.end_us))
    if not ended.wraps:
        yield ended.event, ended.spans


def _start(event: Event) -> float:
    return event.start_us


DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("_runtime", "_driver")
"""Suffixes of the categories of host calls that launch work on a device (`cuda_runtime`)."""


def timeline(events: Sequence[Event]) -> Timeline:
    """Return the timeline of a rank's events.

    Raises:
        ValueError: the trace contains no step.
    """
    if not any(is_step(event) for event in events):
        raise ValueError(f"the trace contains no step: no range {STEP_RANGE}")
    if any(event.category in DEVICE_CATEGORIES for event in events):
        return _device_timeline(events)
    return host_timeline(events)


def _device_timeline(events: Sequence[Event]) -> Timeline:
    launched_us = {event.correlation: event.start_us for event in events if event.category.endswith(LAUNCH_CATEGORIES)}
    ranges = host_ranges(events)
    busy, moving = [], []
    for event in events:
        if event.category not in DEVICE_CATEGORIES:
            continue
        asked_us = launched_us.get(event.correlation) if event.correlation is not None else None
        part = Part.COMPUTE if asked_us is None else part_at(asked_us, ranges)
        if is_collective_kernel(event.name):
            moving.append(activity(_kernel_part(event), event))
        elif part == Part.COMPUTE and event.category == "gpu_memcpy" and _is_with_host(event.name):
            moving.append(activity(Part.HOST_COPY, event))
        else:
            busy.append(activity(part, event))
    return Timeline(
        steps=tuple((event.start_us, event.end_us) for event in events if is_step(event)),
        busy=tuple(busy),
        moving=tuple(moving),
        waiting=tuple(moving),
        hosting=tuple(each for each in ranges if each.part == Part.DATA),
    )


def _kernel_part(event: Event) -> Part:
    """Return the part by the kernel's name, or by torch's label (ROCm's kernels share one name)."""
    part = collective_part(event.name)
    return collective_part(event.collective) if part == Part.OTHER_COLLECTIVE else part


def _is_with_host(copy: str) -> bool:
    return any(word in copy for word in COPIES_WITH_HOST)
