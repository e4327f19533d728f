"""Outcome of a probe from its command's log and end."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.evaluators.external.config_check import why_disagreeing
from frontrunner.evaluators.external.step_times import TimedStep, is_finite, measured, why_inconsistent
from frontrunner.evaluators.external.supervisor import ENDED, LOG, NOT_STARTED
from frontrunner.evaluators.probe.classify import Evidence, RankError, Verdict, classify, first_line, is_about_a_peer
from frontrunner.evaluators.probe.files import read_json, tail, why_disk_full
from frontrunner.evaluators.probe.measure import measurement, nodes_used
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, ProbeEnding

if TYPE_CHECKING:
    from frontrunner.evaluators.external.evaluator import CommandRun

TAIL_LINES = 400
TAIL_BYTES = 262_144
"""Searched for signs: launchers write pages after the line that matters."""
EXCEPTION = re.compile(r"^(?:\[[\w.-]+\]:?\s*|[\w.-]+:\s+)?(?:\w+\.)*(\w*(?:Error|Exception|Interrupt))(?:: (.*))?$")
"""The last line of a traceback, after the rank that launchers put before it."""
USAGE = re.compile(r"^(?:\[[\w.-]+\]:?\s*|[\w.-]+:\s+)?\S+: error: (.*)$")
"""argparse's message about arguments that it rejects."""
REFUSALS = ("AssertionError", "ValueError", "NotImplementedError")
"""Raised by trainers, before the first step, for configurations that they reject."""
RANK_KILLED = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)|Exited with exit code 137|signal 9 \(Killed\)")
"""Messages of torchrun, srun and mpirun that a rank was killed, while they end with a status of their own."""
FOREIGN_OOM = re.compile(r"oom[_-]kill|OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES", re.IGNORECASE)
"""Messages of Slurm and the runtimes of other accelerators that memory ran out."""


def outcome_of(run: CommandRun, setup: ProbeSetup) -> Outcome:
    """Return the outcome of a command that has ended."""
    order = run.order
    end = read_end(order.run_folder)
    seconds = run.seconds if end is None else end.seconds
    node_seconds = seconds * nodes_used(order.recipe, setup.problem)
    found = _judged(run, setup, end, node_seconds)
    if isinstance(found, Measurement):
        return found
    log = order.run_folder / LOG
    return replace(found, log_tail=tail(log), log_path=str(log))


def _judged(run: CommandRun, setup: ProbeSetup, end: End | None, node_seconds: float) -> Outcome:
    recipe, problem, steps = run.order.recipe, setup.problem, run.steps
    failed = run.overdue is not None or end is None or (end.status != 0 and not run.measured)
    doubt = why_disagreeing(run.log.statements, recipe, problem)
    if not failed or not steps:
        doubt = doubt or why_inconsistent(steps, recipe, problem)
    if doubt is not None and steps:
        return Failure(kind=FailureKind.IMPLAUSIBLE, message=doubt, node_seconds=node_seconds)
    unfinite = next((step for step in steps if not is_finite(step)), None)
    if unfinite is not None:
        message = f"the loss was not finite at step {unfinite.logged.number}"
        return Failure(kind=FailureKind.NOT_FINITE, message=message, node_seconds=node_seconds)
    if failed:
        return _failure(run, end, node_seconds)
    return _measurement(run, setup, steps, end, node_seconds)


def _measurement(
    run: CommandRun, setup: ProbeSetup, steps: list[TimedStep], end: End | None, node_seconds: float
) -> Outcome:
    settings, verdict = setup.probe, run.verdict()
    if not verdict.times_s:
        overflowed = sum(step.logged.skipped_steps for step in steps)
        if overflowed and not measured(steps, settings.warm_up_steps):
            message = f"gradients overflowed in {overflowed} of {len(steps)} steps, and in every measured one"
            return Failure(kind=FailureKind.NOT_FINITE, message=message, node_seconds=node_seconds)
        message = f"the log reports {len(steps)} steps, and {settings.warm_up_steps} are warm-up: see [command]"
        return Failure(kind=FailureKind.CRASHED, message=message, node_seconds=node_seconds)
    peak = run.log.peak_memory_bytes
    if not peak and setup.problem.cluster.backend == "cpu" and end is not None:
        peak = end.peak_resident_bytes
    first_s = steps[0].time_s if steps[0].is_claimed and steps[0].time_s else 0.0
    result = {
        "status": "measured",
        "step_times_s": verdict.times_s,
        "peak_memory_bytes": (peak,),
        "losses": [step.logged.loss for step in steps if step.logged.loss is not None],
        "build_time_s": max(0.0, steps[0].logged.arrival_s - first_s),
        "first_step_time_s": first_s,
        "ended": verdict.ended or ProbeEnding.LIMIT,
    }
    return measurement(result, run.order.recipe, setup.problem, node_seconds, memory_is_known=peak > 0)


def _failure(run: CommandRun, end: End | None, node_seconds: float) -> Failure:
    text = tail(run.order.run_folder / LOG, TAIL_LINES, TAIL_BYTES)
    phase = "stepping" if run.steps else "starting"
    verdict = command_verdict(
        text, run, status=-9 if end is None else end.status, phase=phase, lost=end is None and not run.killed
    )
    return Failure(kind=verdict.kind, message=verdict.message, node_seconds=node_seconds)


def command_verdict(text: str, run: CommandRun, *, status: int, phase: str, lost: bool) -> Verdict:
    """Return the kind of a failure from the log's end and the exit status, by the rules of our own probes."""
    errors = exceptions(text, phase)
    if RANK_KILLED.search(text) and not run.killed and all(map(is_about_a_peer, errors)):
        status, errors = -9, ()
    evidence = Evidence(
        statuses={0: status},
        errors=errors,
        log_tails={0: text},
        overdue=run.overdue,
        killed_by_us=frozenset({0}) if run.killed else frozenset(),
        kernel_oom_kills=run.kernel_oom_kills,
    )
    foreign = next((line for line in text.splitlines() if FOREIGN_OOM.search(line)), None)
    if foreign is not None:
        return Verdict(kind=FailureKind.OUT_OF_MEMORY, message=first_line(foreign), rank=0)
    if lost:
        why = why_disk_full(run.order.run_folder) or "its supervisor was killed, and the command with it"
        return Verdict(kind=FailureKind.LOST, message=why, rank=0)
    if status == NOT_STARTED and not errors:
        return Verdict(kind=FailureKind.CRASHED, message=first_line(text), rank=0)
    verdict = classify(evidence)
    message = verdict.message.replace(f"rank 0 while {phase}: ", "").replace("rank 0", "the command")
    return Verdict(kind=verdict.kind, message=message, rank=0)


def exceptions(text: str, phase: str) -> tuple[RankError, ...]:
    """Return the first exception in the log that ended a process, if any.

    Before the first step an assertion is a refusal like a ValueError, and so is an error about arguments.
    """
    for line in text.splitlines():
        usage = USAGE.match(line.strip())
        if usage is not None and phase == "starting":
            return (RankError(rank=0, type="ValueError", message=usage[1], phase=phase),)
        raised = EXCEPTION.match(line.rstrip())
        if raised is not None and raised[1] != "ChildFailedError":  # torchrun's, about a rank's
            refused = phase == "starting" and raised[1] in REFUSALS
            kind = "ValueError" if refused else raised[1]
            message = raised[2] or raised[1]
            if refused and raised[1] == "AssertionError":
                message = f"assertion: {message}"
            return (RankError(rank=0, type=kind, message=message, phase=phase),)
    return ()


@dataclass(frozen=True, kw_only=True)
class End:
    """End of a command: exit code or minus the signal, its seconds, and the largest resident set of one process."""

    status: int
    seconds: float
    peak_resident_bytes: int


def read_end(run_folder: Path) -> End | None:
    """Return how the command ended; None if its supervisor was killed before it could write that."""
    try:
        found = read_json(run_folder / ENDED)
        if found is None:
            return None
        status, seconds, peak = (found[key] for key in ("status", "seconds", "peak_resident_bytes"))
        return End(status=int(status), seconds=float(seconds), peak_resident_bytes=int(peak))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
