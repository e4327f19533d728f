"""Probe mode: warm-up steps, measured ones until their time is known, one result file; and profiled
steps after them.

torch's profiler and pyinstrument never run at once: each would see what the other costs.
`rank-N.trace.json.gz` is a Chrome trace, which Perfetto shows, of the traced steps;
`rank-N.host.txt` pyinstrument's tree of the sampled ones.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from frontrunner.evaluators.trainer.job import WAIT_RANGE, Probe, Profile
from frontrunner.evaluators.trainer.run import RunContext
from frontrunner.evaluators.trainer.step_time_stats import ending, settled
from frontrunner.evaluators.trainer.torch_engine import compiled_graphs
from frontrunner.spaces.document import finite_or_none

SAMPLING_INTERVAL_S = 0.001
LEAST_SHARE = 0.02
_DEVICE_ACTIVITIES = {"cuda": [ProfilerActivity.CUDA], "xpu": [ProfilerActivity.XPU]}


def run_probe(context: RunContext, probe: Probe) -> int:
    """Step until measured, or until a loss is not finite, and write `result.json` on rank 0; return
    the steps done.

    Steps that overflowed in fp16, which changed no weight, or in which a rank compiled something
    are not measured. Raises RuntimeError where that leaves none because all compiled; where all
    overflowed the status is "not-finite".
    """
    run = _Probe(context, probe)
    is_finite = run.step_until_known()
    warm_up, measured = run.warm_up_and_measured()
    if is_finite and not measured and len(run.overflowed) < probe.measured_steps:
        too_few = f"probe.warm_up_steps {probe.warm_up_steps} is too few"
        raise RuntimeError(
            f"steps {run.compiled} compiled something, which leaves none to measure: {too_few}"
        )
    compile_time_s = (
        None  # by how much the steps that compiled took longer than the median of the measured ones
    )
    if context.job.recipe.compile and measured:
        usual = statistics.median(measured)
        compile_time_s = sum(max(0.0, run.times_s[number - 1] - usual) for number in run.compiled)
    context.write_result(
        "measured" if is_finite and measured else "not-finite",
        run_folder=context.job.run_folder,
        ended=run.ended,
        step_times_s=measured,
        warm_up_times_s=run.times_s[:warm_up],
        losses=run.losses,
        overflowed_steps=run.overflowed,
        compiled_steps=run.compiled,
        compile_time_s=compile_time_s,
        first_step_time_s=run.times_s[0],
    )
    return len(run.times_s)


class _Probe:
    """The steps run so far, numbered from 1. `ended` says why no more were needed; "limit" where
    all were taken.
    """

    def __init__(self, context: RunContext, probe: Probe) -> None:
        self._context = context
        self._probe = probe
        self.ended = "fixed" if probe.adaptive is None else "limit"
        self.compiled: list[int] = []
        self.losses: list[float | None] = []
        self.times_s: list[float] = []
        self.overflowed: list[int] = []

    def step_until_known(self) -> bool:
        most, compiles = (
            self._probe.warm_up_steps + self._probe.measured_steps,
            self._context.job.recipe.compile,
        )
        for number in range(1, most + 1):
            graphs = compiled_graphs() if compiles else 0
            if number == max(
                1, self._probe.warm_up_steps
            ):  # the last one that may wait for ranks that still read
                self._context.stepper.telemetry.watch_processors()
            outcome, seconds = self._context.timed_step(number)
            self._context.stepper.telemetry.stepped()
            if compiles and self._on_any_rank(compiled_graphs() > graphs):
                self.compiled.append(number)
            self.losses.append(finite_or_none(outcome.loss))
            self.times_s.append(seconds)
            if number == self._probe.warm_up_steps:
                self._context.stepper.telemetry.warmed_up()
            if outcome.overflowed:
                self.overflowed.append(number)
            if not outcome.is_finite:
                return False
            if number < most and self._has_seen_enough():
                break
        return True

    def warm_up_and_measured(self) -> tuple[int, list[float]]:
        least, adaptive = self._probe.warm_up_steps, self._probe.adaptive
        usable = self._usable()
        times = [self.times_s[number - 1] for number in usable]
        if adaptive is None:
            return least, times
        # At least half of all steps stay, so that a machine that slows down is not taken for one
        # long warm-up.
        most_dropped = max(0, (least + self._probe.measured_steps) // 2 - least)
        kept = settled(times, most_dropped=most_dropped, tolerance=adaptive.precision / 2)
        dropped = len(times) - len(kept)
        return (usable[dropped - 1] if dropped else least), kept

    def _usable(self) -> list[int]:
        """Return the steps after the least warm-up, without those that overflowed or in which a
        rank compiled.
        """
        steps = range(self._probe.warm_up_steps + 1, len(self.times_s) + 1)
        return [
            number
            for number in steps
            if number not in self.overflowed and number not in self.compiled
        ]

    def _has_seen_enough(self) -> bool:
        """Return whether the probe ends here: rank 0 decides, between two steps, so that no step's
        time holds it.
        """
        adaptive = self._probe.adaptive
        # All ranks know these counts: there is nothing to agree on before.
        if adaptive is None or len(self._usable()) < adaptive.min_measured_steps:
            return False
        (_, times), is_enough = self.warm_up_and_measured(), False
        if self._context.rank == 0 and len(times) >= adaptive.min_measured_steps:
            precision, best_s, most = (
                adaptive.precision,
                adaptive.best_step_time_s,
                self._probe.measured_steps,
            )
            found = ending(times, precision=precision, best_step_time_s=best_s, most=most)
            self.ended = found or self.ended
            spent_s = self._context.build_time_s + sum(self.times_s)
            is_enough = found is not None or spent_s + times[-1] > adaptive.stop_after_s
        return self._on_any_rank(is_enough)

    def _on_any_rank(self, happened: bool) -> bool:  # noqa: FBT001
        flag = torch.tensor([happened], dtype=torch.int32, device=self._context.stepper.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def run_profile(context: RunContext, wanted: Profile, *, steps_done: int) -> None:
    """Run the profiled steps, after the `steps_done` of the probe and one that pays for the
    profiler's own start.
    """
    numbers, files = count(steps_done + 1), context.folder / f"rank-{context.rank}"
    if wanted.sampled_steps:
        # pyinstrument is optional, and typed against its own classes only.
        sampler = import_module("pyinstrument").Profiler(
            interval=SAMPLING_INTERVAL_S, async_mode="disabled"
        )
        sampler.start()
        for number in islice(numbers, wanted.sampled_steps):
            context.timed_step(number)
        sampler.stop()
        tree = sampler.output_text(
            unicode=True, color=False, processor_options={"filter_threshold": LEAST_SHARE}
        )
        files.with_suffix(".host.txt").write_text(tree, encoding="utf-8")
        context.log.write("sampled", steps=wanted.sampled_steps)
    with (
        _recorded_waits(),
        profile(
            activities=[
                ProfilerActivity.CPU,
                *_DEVICE_ACTIVITIES.get(context.stepper.device.type, []),
            ],
            schedule=schedule(wait=0, warmup=1, active=wanted.traced_steps, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(
                str(files.with_suffix(".trace.json.gz"))
            ),
        ) as profiler,
    ):
        for number in islice(numbers, 1 + wanted.traced_steps):
            context.timed_step(number)
            profiler.step()
    context.log.write("traced", steps=wanted.traced_steps)


@contextmanager
def _recorded_waits() -> Iterator[None]:
    """Give each wait for a collective from Python a range in the trace, which else shows no one who
    waits.
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
