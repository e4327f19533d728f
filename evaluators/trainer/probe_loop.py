"""Probe mode: warm-up steps, measured ones until their time is known, one result file; and profiled steps after them.

torch's profiler and pyinstrument never run at once: each would see what the other costs. `rank-N.trace.json.gz` is a
Chrome trace, which Perfetto shows, of the traced steps; `rank-N.host.txt` pyinstrument's tree of the sampled ones.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from frontrunner.evaluators.trainer.files import write_json
from frontrunner.evaluators.trainer.job import WAIT_RANGE, Adaptive, Probe, Profile
from frontrunner.evaluators.trainer.loss import compiled_graphs
from frontrunner.evaluators.trainer.run_context import (
    RESULT_VERSION,
    RunContext,
    describe_memory,
    describe_software,
    finite_or_none,
    gather_peak_memory,
)
from frontrunner.evaluators.trainer.step_time_stats import ending, settled


def run_probe(context: RunContext, probe: Probe) -> int:
    """Step until measured, or until a loss is not finite, and write `result.json` on rank 0; the steps done.

    A step that overflowed in fp16 changed no weight, and one in which a rank compiled something is slower than those
    that follow: their times are not among the measured ones. Where every measured step overflowed the status is
    "not-finite".

    Raises:
        RuntimeError: something was compiled in every measured step.
    """
    steps = _Steps(context)
    judge = _Judge(context, probe, steps)
    finite = steps.run(probe.warm_up_steps + probe.measured_steps, judge)
    measured = judge.measured()
    if finite and not measured and len(steps.overflowed) < probe.measured_steps:
        raise RuntimeError(
            f"steps {steps.compiled} compiled something, which leaves none to measure: probe.warm_up_steps "
            f"{probe.warm_up_steps} is too few"
        )
    result: dict[str, Any] = {
        "version": RESULT_VERSION,
        "status": "measured" if finite and measured else "not-finite",
        "run_folder": context.job.run_folder,
        "ended": judge.ended,
        "step_times_s": measured,
        "warm_up_times_s": steps.times_s[: judge.warm_up_steps],
        "losses": steps.losses,
        "overflowed_steps": steps.overflowed,
        "compiled_steps": steps.compiled,
        "compile_time_s": steps.compile_time_s(measured),
        "build_time_s": context.build_time_s,
        "first_step_time_s": steps.times_s[0],
        **describe_memory(gather_peak_memory(context.device)),
        **describe_software(context.device),
    }
    if context.rank == 0:
        write_json(context.folder / "result.json", result)
    return len(steps.times_s)


class _Steps:
    """The steps run so far; step numbers count from 1."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._compiles = context.job.recipe.compile
        self.compiled: list[int] = []
        self.losses: list[float | None] = []
        self.times_s: list[float] = []
        self.overflowed: list[int] = []

    def run(self, most: int, judge: "_Judge") -> bool:
        """Run steps until the judge has seen enough, at most `most`, while they stay finite; whether all did."""
        for number in range(1, most + 1):
            graphs = compiled_graphs() if self._compiles else 0
            outcome, seconds = self._context.timed_step(number)
            if self._compiles and self._on_any_rank(compiled_graphs() > graphs):
                self.compiled.append(number)
            self.losses.append(finite_or_none(outcome.loss))
            self.times_s.append(seconds)
            if outcome.overflowed:
                self.overflowed.append(number)
            if not outcome.is_finite:
                return False
            if number < most and judge.has_seen_enough():
                break
        return True

    def usable(self, after: int) -> list[tuple[int, float]]:
        """Number and time of the steps after the first, without those that overflowed or in which a rank compiled."""
        left_out = {*self.overflowed, *self.compiled}
        numbered = enumerate(self.times_s[after:], start=after + 1)
        return [(number, seconds) for number, seconds in numbered if number not in left_out]

    def compile_time_s(self, measured: list[float]) -> float | None:
        """By how much the steps that compiled took longer than the median of the `measured`; None if not known."""
        if not (self._compiles and measured):
            return None
        usual = statistics.median(measured)
        return sum(max(0.0, self.times_s[number - 1] - usual) for number in self.compiled)

    def _on_any_rank(self, happened: bool) -> bool:  # noqa: FBT001
        flag = torch.tensor([happened], dtype=torch.int32, device=self._context.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


class _Judge:
    """Decides which steps are warm-up, and after each step whether another is needed.

    Rank 0 decides by its own clock, and informs the others between two steps, so that no step's time holds it.
    `ended` says why no more were needed; "limit" where an adaptive probe took all it may.
    """

    def __init__(self, context: RunContext, probe: Probe, steps: _Steps) -> None:
        self._context = context
        self._probe = probe
        self._steps = steps
        self.ended = "fixed" if probe.adaptive is None else "limit"

    @property
    def warm_up_steps(self) -> int:
        """How many of the first steps are warm-up."""
        return self._warm_up_and_measured()[0]

    def measured(self) -> list[float]:
        """Return the times of the measured steps."""
        return self._warm_up_and_measured()[1]

    def has_seen_enough(self) -> bool:
        """Return whether the probe ends here, on every rank alike."""
        adaptive = self._probe.adaptive
        # All ranks know these counts: there is nothing to agree on before.
        if adaptive is None:
            return False
        if len(self._steps.usable(self._probe.warm_up_steps)) < adaptive.min_measured_steps:
            return False
        return self._as_rank_0_says(self._context.rank == 0 and self._is_enough(adaptive))

    def _is_enough(self, adaptive: Adaptive) -> bool:
        times = self.measured()
        if len(times) < adaptive.min_measured_steps:
            return False
        found = ending(
            times,
            precision=adaptive.precision,
            best_step_time_s=adaptive.best_step_time_s,
            most=self._probe.measured_steps,
        )
        if found is not None:
            self.ended = found
        spent_s = self._context.build_time_s + sum(self._steps.times_s)
        return found is not None or spent_s + times[-1] > adaptive.stop_after_s

    def _warm_up_and_measured(self) -> tuple[int, list[float]]:
        least, adaptive = self._probe.warm_up_steps, self._probe.adaptive
        usable = self._steps.usable(least)
        times = [seconds for _, seconds in usable]
        if adaptive is None:
            return least, times
        # At least half of all steps stay, so that a machine that slows down is not taken for one long warm-up.
        most_dropped = max(0, (least + self._probe.measured_steps) // 2 - least)
        kept = settled(times, most_dropped=most_dropped, tolerance=adaptive.precision / 2)
        dropped = len(times) - len(kept)
        return (usable[dropped - 1][0] if dropped else least), kept

    def _as_rank_0_says(self, enough: bool) -> bool:  # noqa: FBT001
        flag = torch.tensor([enough], dtype=torch.int32, device=self._context.device)
        dist.broadcast(flag, src=0)
        return bool(flag.item())


SAMPLING_INTERVAL_S = 0.001
LEAST_SHARE = 0.02
"""Of the sampled time: functions that took less are left out of the tree."""


def run_profile(context: RunContext, wanted: Profile, *, steps_done: int) -> None:
    """Run the profiled steps, after the `steps_done` of the probe, and write their files.

    Raises:
        ImportError: steps are to be sampled, and pyinstrument is not installed.
    """
    numbers = count(steps_done + 1)
    if wanted.sampled_steps:
        _sample(context, wanted.sampled_steps, numbers)
    _trace(context, wanted.traced_steps, numbers)


def _sample(context: RunContext, steps: int, numbers: Iterator[int]) -> None:
    """Sample the Python stack of `steps` steps."""
    # pyinstrument is optional, and typed against its own classes only.
    sampler = import_module("pyinstrument").Profiler(interval=SAMPLING_INTERVAL_S, async_mode="disabled")
    sampler.start()
    for _ in range(steps):
        context.timed_step(next(numbers))
    sampler.stop()
    path = context.folder / f"rank-{context.rank}.host.txt"
    tree = sampler.output_text(unicode=True, color=False, processor_options={"filter_threshold": LEAST_SHARE})
    path.write_text(tree, encoding="utf-8")
    context.log.write("sampled", steps=steps)


def _trace(context: RunContext, steps: int, numbers: Iterator[int]) -> None:
    """Trace `steps` steps after one whose events are dropped: it pays for the profiler's own start."""
    path = context.folder / f"rank-{context.rank}.trace.json.gz"
    with (
        _recorded_waits(),
        profile(
            activities=_activities(context.device),
            schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler,
    ):
        for _ in range(1 + steps):
            context.timed_step(next(numbers))
            profiler.step()
    context.log.write("traced", steps=steps)


@contextmanager
def _recorded_waits() -> Iterator[None]:
    """Give each wait for a collective from Python a range in the trace.

    torch records what is in flight but not who waits for it: without this a host at work during a transfer would look
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
    """Return what to record: the host's operators, and the kernels of the rank's device."""
    devices = {"cuda": [ProfilerActivity.CUDA], "xpu": [ProfilerActivity.XPU]}
    return [ProfilerActivity.CPU, *devices.get(device.type, [])]
