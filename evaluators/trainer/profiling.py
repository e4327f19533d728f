"""A closer look at a probe's steps: torch's profiler on every rank, and pyinstrument on its Python side.

The two never run at once: each would see what the other costs. `rank-N.trace.json.gz` is a Chrome trace, which
Perfetto shows, of the traced steps; `rank-N.host.txt` pyinstrument's tree of the sampled ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from frontrunner.evaluators.trainer.job import WAIT_RANGE, Profile
from frontrunner.evaluators.trainer.session import Session

SAMPLING_INTERVAL_S = 0.001
LEAST_SHARE = 0.02
"""Of the sampled time: functions that took less are left out of the tree."""


def run_profile(session: Session, asked: Profile, *, steps_done: int) -> None:
    """Run the asked steps, which go on after the `steps_done` of the probe, and leave their files.

    Raises:
        ImportError: steps are to be sampled, and pyinstrument is not installed.
    """
    numbers = count(steps_done + 1)
    if asked.sampled_steps:
        _sample(session, asked.sampled_steps, numbers)
    _trace(session, asked.traced_steps, numbers)


def _sample(session: Session, steps: int, numbers: Iterator[int]) -> None:
    """Sample the Python stack of `steps` steps."""
    # pyinstrument is optional, and typed against its own classes only.
    sampler = import_module("pyinstrument").Profiler(interval=SAMPLING_INTERVAL_S, async_mode="disabled")
    sampler.start()
    for _ in range(steps):
        session.timed_step(next(numbers))
    sampler.stop()
    path = session.folder / f"rank-{session.rank}.host.txt"
    tree = sampler.output_text(unicode=True, color=False, processor_options={"filter_threshold": LEAST_SHARE})
    path.write_text(tree, encoding="utf-8")
    session.log.write("sampled", steps=steps)


def _trace(session: Session, steps: int, numbers: Iterator[int]) -> None:
    """Trace `steps` steps after one whose events are dropped: it pays for the profiler's own start."""
    path = session.folder / f"rank-{session.rank}.trace.json.gz"
    with (
        _recorded_waits(),
        profile(
            activities=_activities(session.device),
            schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler,
    ):
        for _ in range(1 + steps):
            session.timed_step(next(numbers))
            profiler.step()
    session.log.write("traced", steps=steps)


@contextmanager
def _recorded_waits() -> Iterator[None]:
    """Give each wait for a collective from Python a range in the trace.

    torch records what is in flight but not who waits for it: without this a host at work beside a transfer would look
    as if it waited.
    """
    plain = dist.Work.wait

    def wait(work: dist.Work, *arguments: Any, **options: Any) -> Any:
        with record_function(WAIT_RANGE):
            return plain(work, *arguments, **options)

    dist.Work.wait = wait  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.Work.wait = plain  # type: ignore[method-assign]


def _activities(device: torch.device) -> list[ProfilerActivity]:
    """What to record: the host's operators, and the kernels of the rank's device."""
    devices = {"cuda": [ProfilerActivity.CUDA], "xpu": [ProfilerActivity.XPU]}
    return [ProfilerActivity.CPU, *devices.get(device.type, [])]
