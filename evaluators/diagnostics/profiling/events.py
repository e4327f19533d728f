"""The events of a rank's Chrome trace, as torch's profiler writes it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.diagnostics.profiling.breakdown import Activity, Part
from frontrunner.evaluators.diagnostics.profiling.names import host_part
from frontrunner.evaluators.trainer.job import STEP_RANGE

ANNOTATION = "user_annotation"
OPERATOR = "cpu_op"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One span of a trace. `correlation` joins what a device did to the host's call that asked for it."""

    name: str
    category: str
    thread: str
    start_us: float
    end_us: float
    correlation: int | None = None
    collective: str = ""


def read_trace(path: Path) -> dict[str, Any]:
    """A gzipped Chrome trace, as it is.

    Raises:
        ValueError: the file is no such trace.
        OSError: it cannot be read.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document = json.load(file)
    if not (isinstance(document, dict) and isinstance(document.get("traceEvents"), list)):
        raise ValueError(f"{path} is no Chrome trace: it has no traceEvents")  # noqa: TRY004 - a file, not a caller
    return document


def read_events(path: Path) -> list[Event]:
    """The spans of a gzipped Chrome trace; raises as `read_trace` does."""
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
    """Whether the event is a step, on the thread that ran it."""
    return event.category == ANNOTATION and event.name == STEP_RANGE


def host_ranges(events: Iterable[Event]) -> list[Activity]:
    """The optimizer's steps and the reading of data, as the host went through them."""
    ranges = []
    for event in events:
        part = host_part(event.name) if event.category == ANNOTATION else None
        if part is not None:
            ranges.append(activity(part, event))
    return ranges


def part_at(time_us: float, ranges: Iterable[Activity]) -> Part:
    """What is computed for the host's range that a moment lies in; outside of them the model."""
    found = (each.part for each in ranges if each.start_us <= time_us < each.end_us)
    return next(found, Part.COMPUTE)


def activity(part: Part, event: Event) -> Activity:
    """The event as an activity."""
    return Activity(part=part, start_us=event.start_us, end_us=event.end_us)
