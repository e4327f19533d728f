"""Probe mode: a few warm-up steps, a few measured ones, one result file."""

from typing import Any

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


def run_probe(session: Session, probe: Probe) -> None:
    """Step until measured, or until a loss is not finite, and write `result.json` on rank 0."""
    losses: list[float | None] = []
    times: list[float] = []
    status = "measured"
    for number in range(1, probe.warm_up_steps + probe.measured_steps + 1):
        outcome, seconds = session.timed_step(number)
        losses.append(finite_or_none(outcome.loss))
        times.append(seconds)
        if not outcome.is_finite:
            status = "not-finite"
            break
    result: dict[str, Any] = {
        "version": RESULT_VERSION,
        "status": status,
        "step_times_s": times[probe.warm_up_steps :],
        "warm_up_times_s": times[: probe.warm_up_steps],
        "losses": losses,
        "build_time_s": session.build_time_s,
        "first_step_time_s": times[0],
        **describe_memory(gather_peak_memory(session.device)),
        **describe_software(session.device),
    }
    if session.rank == 0:
        write_json(session.folder / "result.json", result)
