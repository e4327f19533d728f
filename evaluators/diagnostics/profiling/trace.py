"""A rank's events read as a timeline.

On an accelerator the device's events tell: kernels, the collective library's among them, and copies. What the host
asked for within an optimizer's step, or while it read data, counts as that. On a CPU host and device are one thread:
see `host_trace`.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.diagnostics.profiling.breakdown import Part, Timeline
from frontrunner.evaluators.diagnostics.profiling.events import Event, activity, host_ranges, is_step, part_at
from frontrunner.evaluators.diagnostics.profiling.host_trace import host_timeline
from frontrunner.evaluators.diagnostics.profiling.names import COPIES_WITH_HOST, collective_part, is_collective_kernel
from frontrunner.evaluators.trainer.job import STEP_RANGE

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("_runtime", "_driver")
"""How the categories end of the host's calls that start something on a device (`cuda_runtime`)."""


def timeline(events: Sequence[Event]) -> Timeline:
    """What the rank did in the steps that the trace holds.

    Raises:
        ValueError: it holds none.
    """
    if not any(is_step(event) for event in events):
        raise ValueError(f"the trace holds no step: no range {STEP_RANGE}")
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
    """By the kernel's name, or (ROCm's kernels have one name for all) by what torch says of it."""
    part = collective_part(event.name)
    return collective_part(event.collective) if part == Part.OTHER_COLLECTIVE else part


def _is_with_host(copy: str) -> bool:
    return any(word in copy for word in COPIES_WITH_HOST)
