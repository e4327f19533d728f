"""The timeline of a rank whose device is a CPU: what the thread of its steps did.

Computing is the self time of operators. What a collective of gloo does is recorded on gloo's own threads, under the
name of what it is made of (a reduce-scatter is an all-reduce there), so each is matched with the call that asked for
it. It costs the step only while the thread waits for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from frontrunner.evaluators.diagnostics.profiling.breakdown import Activity, Part, Timeline
from frontrunner.evaluators.diagnostics.profiling.events import (
    ANNOTATION,
    OPERATOR,
    Event,
    activity,
    host_ranges,
    is_step,
    part_at,
)
from frontrunner.evaluators.diagnostics.profiling.names import (
    IN_FLIGHT_ON_CPU,
    WAIT_OPERATOR,
    collective_part,
    is_collective_call,
    is_computing,
)
from frontrunner.evaluators.diagnostics.profiling.spans import Span, difference, intersection, merged
from frontrunner.evaluators.trainer.job import WAIT_RANGE

UNSEEN_WAITS = "DistributedDataParallel.forward"
"""Where this is in a trace, some waits are in C++ and not recorded."""


def host_timeline(events: Sequence[Event]) -> Timeline:
    """What the rank did in the steps of its trace, which must hold one."""
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
    """The collectives of gloo, each of the kind that was asked for.

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
    """Whether an annotation takes time from the operators around it: a wait, or a compiled region."""
    return event.category == ANNOTATION and (event.name == WAIT_RANGE or "Compiled" in event.name)


def _waiting(own: Sequence[Event], moving: Sequence[Activity]) -> Iterable[Activity]:
    """The time in which the thread called a collective or waited for one."""
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
    """An event that has begun: the time of its own so far, and where that goes on."""

    event: Event
    goes_on_us: float
    spans: list[Span] = field(default_factory=list)
    wraps: bool = False


def self_times(events: Iterable[Event]) -> Iterable[tuple[Event, list[Span]]]:
    """Each of one thread's nested events with the time in which none of those within it ran.

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
