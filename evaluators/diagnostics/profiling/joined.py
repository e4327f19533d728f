"""One trace of all ranks on one axis of time, which shows who waits for whom."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from frontrunner.evaluators.diagnostics.profiling.events import read_trace

FAST = 1
"""gzip's level: the highest takes minutes over large traces and saves little."""


def join_traces(traces: Sequence[Path], joined: Path) -> None:
    """Write the spans of the ranks' traces, given in rank order, to one gzipped Chrome trace.

    Its processes are named by rank. Arrows between spans are left out: their numbers mean something within one rank
    only. Raises as `read_trace` does.
    """
    processes: dict[tuple[int, int], int] = {}
    events: list[dict[str, Any]] = []
    first_base_ns: int | None = None
    for rank, path in enumerate(traces):
        trace = read_trace(path)
        base_ns = int(trace.get("baseTimeNanoseconds", 0))
        first_base_ns = base_ns if first_base_ns is None else first_base_ns
        for event in _spans_and_names(trace):
            number = processes.setdefault((rank, event["pid"]), len(processes) + 1)
            start_us = event.get("ts", 0) + (base_ns - first_base_ns) / 1000
            events.append(event | {"pid": number, "ts": start_us} | _told(event, rank))
    with gzip.open(joined, "wt", encoding="utf-8", compresslevel=FAST) as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": events}, file)


def _spans_and_names(trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What lies in real processes and devices; the profiler's own marks have words for processes."""
    return (event for event in trace["traceEvents"] if event.get("ph") in ("X", "M") and isinstance(event["pid"], int))


def _told(event: dict[str, Any], rank: int) -> dict[str, Any]:
    """What of an event says which rank it is of."""
    if event["name"] == "process_name":
        return {"args": {"name": f"rank {rank}: {event['args']['name']}"}}
    return {"args": {"sort_index": rank}} if event["name"] == "process_sort_index" else {}
