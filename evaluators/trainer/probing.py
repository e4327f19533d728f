"""Probe mode: a few warm-up steps, a few measured ones, one result file."""

import statistics
from typing import Any

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.compilation import compiled_graphs
from frontrunner.evaluators.trainer.files import write_json
from frontrunner.evaluators.trainer.job import Probe
from frontrunner.evaluators.trainer.session import (
    RESULT_VERSION,
    Session,
    describe_memory,
    describe_software,
    finite_or_none,
    gather_peak_memory,
)


def run_probe(session: Session, probe: Probe) -> int:
    """Step until measured, or until a loss is not finite, and write `result.json` on rank 0; the steps done.

    A step that overflowed in fp16 changed no weight, and one in which a rank compiled something is slower than those
    that follow: their times are not among the measured ones. Where every measured step overflowed the status is
    "not-finite".

    Raises:
        RuntimeError: something was compiled in every measured step.
    """
    steps = _Steps(session)
    finite = steps.run(probe.warm_up_steps + probe.measured_steps)
    measured = steps.times_after(probe.warm_up_steps)
    if finite and not measured and len(steps.overflowed) < probe.measured_steps:
        raise RuntimeError(
            f"steps {steps.compiled} compiled something, which leaves none to measure: probe.warm_up_steps "
            f"{probe.warm_up_steps} is too few"
        )
    result: dict[str, Any] = {
        "version": RESULT_VERSION,
        "status": "measured" if finite and measured else "not-finite",
        "step_times_s": measured,
        "warm_up_times_s": steps.times_s[: probe.warm_up_steps],
        "losses": steps.losses,
        "overflowed_steps": steps.overflowed,
        "compiled_steps": steps.compiled,
        "compile_time_s": steps.compile_time_s(measured),
        "build_time_s": session.build_time_s,
        "first_step_time_s": steps.times_s[0],
        **describe_memory(gather_peak_memory(session.device)),
        **describe_software(session.device),
    }
    if session.rank == 0:
        write_json(session.folder / "result.json", result)
    return len(steps.times_s)


class _Steps:
    """The steps run so far; step numbers count from 1."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._compiles = session.job.recipe.compile
        self.compiled: list[int] = []
        self.losses: list[float | None] = []
        self.times_s: list[float] = []
        self.overflowed: list[int] = []

    def run(self, count: int) -> bool:
        """Run `count` steps, or as many as stay finite; whether all did."""
        for number in range(1, count + 1):
            graphs = compiled_graphs() if self._compiles else 0
            outcome, seconds = self._session.timed_step(number)
            if self._compiles and self._on_any_rank(compiled_graphs() > graphs):
                self.compiled.append(number)
            self.losses.append(finite_or_none(outcome.loss))
            self.times_s.append(seconds)
            if outcome.overflowed:
                self.overflowed.append(number)
            if not outcome.is_finite:
                return False
        return True

    def times_after(self, warm_up_steps: int) -> list[float]:
        """The times of the steps after the warm-up, without those that overflowed or in which a rank compiled."""
        left_out = {*self.overflowed, *self.compiled}
        numbered = enumerate(self.times_s[warm_up_steps:], start=warm_up_steps + 1)
        return [seconds for number, seconds in numbered if number not in left_out]

    def compile_time_s(self, measured: list[float]) -> float | None:
        """By how much the steps that compiled took longer than the median of the `measured`; None if not known."""
        if not (self._compiles and measured):
            return None
        usual = statistics.median(measured)
        return sum(max(0.0, self.times_s[number - 1] - usual) for number in self.compiled)

    def _on_any_rank(self, happened: bool) -> bool:  # noqa: FBT001
        flag = torch.tensor([happened], dtype=torch.int32, device=self._session.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
