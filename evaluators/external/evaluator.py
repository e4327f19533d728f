"""Evaluator that runs a trainer's command for each recipe and measures it by its log."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from frontrunner.evaluators.external import CommandSettings, logs
from frontrunner.evaluators.external import command as commands
from frontrunner.evaluators.external.command import Command, MakeCommand
from frontrunner.evaluators.external.supervisor import ENDED, GRACE_S, KILL_S, LOG, NOT_STARTED, ORDER
from frontrunner.evaluators.external.trainers import configured
from frontrunner.evaluators.probe.classify import Evidence, RankError, classify, first_line
from frontrunner.evaluators.probe.files import read_json, tail, why_disk_full, write_json, write_text
from frontrunner.evaluators.probe.measure import measurement, tokens_per_step
from frontrunner.evaluators.probe.processes import driver_tags, kill_tagged
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.probe.watch import Watch, WatchedProbes, with_log, written
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, FailureKind, Outcome, ProbeEnding
from frontrunner.spaces.legality import Reason

RUN_TAG = "FRONTRUNNER_RUN"
SUPERVISOR = "frontrunner.evaluators.external.supervisor"
SUPERVISOR_GRACE_S = GRACE_S + KILL_S + 5.0
TAIL_LINES = 400
TAIL_BYTES = 262_144
"""Searched for signs: launchers write pages after the line that matters."""
EXCEPTION = re.compile(r"^(?:\[[\w.-]+\]:?\s*|[\w.-]+:\s+)?(?:\w+\.)*(\w*(?:Error|Exception|Interrupt))(?:: (.*))?$")
"""The last line of a traceback, after the rank that launchers put before it."""
USAGE = re.compile(r"^(?:\[[\w.-]+\]:?\s*|[\w.-]+:\s+)?\S+: error: (.*)$")
REFUSALS = ("AssertionError", "ValueError", "NotImplementedError")
"""Raised by trainers, before the first step, for configurations that they reject."""
RANK_KILLED = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)|Exited with exit code 137|signal 9 \(Killed\)")
"""Messages of torchrun, srun and mpirun that a rank was killed, while they end with a status of their own."""
FOREIGN_OOM = re.compile(r"oom[_-]kill|OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES", re.IGNORECASE)
"""Messages of Slurm and the runtimes of other accelerators that memory ran out."""


class CommandEvaluator(WatchedProbes["CommandRun"]):
    """The `Evaluator` over a function from requests to commands; by default that of the campaign's [command]."""

    def __init__(self, setup: ProbeSetup, make_command: MakeCommand | None = None) -> None:
        super().__init__(setup)
        self._make = make_command or configured(setup.command)
        self._refused: list[Finished] = []

    def start(self, order: ProbeOrder) -> None:
        """Start one command, unless its recipe is refused or its own files disagree with one another."""
        order.run_folder.mkdir(parents=True, exist_ok=True)
        request, settings = commands.request_of(self._setup, order.recipe, order.run_folder), self._setup.command
        command = self._make(request)
        if isinstance(command, Reason):
            self._refuse(order, FailureKind.ILLEGAL_FOR_ENGINE, command.text)
            return
        write_run(order.run_folder, command, commands.environment_of(command, request, settings), settings)
        stated = commands.stated_before(command.arguments, settings.start_folder)
        doubt = commands.why_disagreeing(stated, order.recipe, self._setup.problem)
        if doubt is not None:
            self._refuse(order, FailureKind.IMPLAUSIBLE, doubt)
            return
        self._running[order.token] = CommandRun(order, self._setup, command)

    def _refuse(self, order: ProbeOrder, kind: FailureKind, message: str) -> None:
        outcome = written(RunFolder(order.run_folder), Failure(kind=kind, message=message))
        self._refused.append(Finished(token=order.token, outcome=outcome))

    def _poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running commands for up to `timeout_s`, or until one of them has ended."""
        refused, self._refused = self._refused, []
        return [*refused, *super().finished(0.0 if refused else timeout_s)]

    def close(self) -> None:
        """End what still runs, and every process behind it."""
        for run in self._running.values():
            run.end()
        for run in self._running.values():
            run.wait()


class CommandRun(Watch):
    """Starts a command and follows it; `is_measured` once its step time is known."""

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, command: Command) -> None:
        super().__init__(order, setup)
        self.is_measured = False
        self.log = logs.LogReader(order.run_folder, logs.patterns_of(command.log_patterns))
        self._end_requested_s: float | None = None
        self._took_s: float | None = None
        self.begin()
        with (order.run_folder / "supervisor.log").open("wb") as errors:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", SUPERVISOR, str(order.run_folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # signals of the terminal are for the driver to handle
                env={**os.environ, **driver_tags(order.run_folder.parent)},
            )
        self._lifeline: IO[bytes] = self._supervisor.stdin  # type: ignore[assignment]

    @property
    def seconds(self) -> float:
        """Return the time since the command was started, or what it has taken."""
        return super().seconds if self._took_s is None else self._took_s

    @property
    def steps(self) -> list[logs.TimedStep]:
        """Return the steps logged so far, with their times."""
        return logs.timed(self.log.steps, self.order.recipe, self.setup.problem)

    @property
    def progress(self) -> Progress:
        """Return phase and steps."""
        done, most = sum(step.covers for step in self.steps), self.setup.probe.most_steps
        return Progress(phase="stepping" if done else "starting", steps_done=min(done, most), steps_total=most)

    def look(self) -> bool:
        """Note progress, and end the command when its step time is known or a deadline has passed."""
        if self._supervisor.poll() is not None:  # it may have been killed
            self.wait()
            self.log.advance()
            return True
        before = len(self.log.steps)
        wrote = self.log.advance()
        came = len(self.log.steps) > before
        # Until the first step any output is progress: trainers take long to build, and report that.
        if came or (wrote and not before):
            self.progressed_s = time.monotonic()
        if self._end_requested_s is None:
            # A loss that is not finite makes further steps useless.
            is_finite = all(step.is_finite for step in self.steps)
            self.is_measured = came and (not is_finite or self._verdict().ended is not None)
            done = self.progress.steps_done
            if not self.is_measured:
                self.overdue = self.find_overdue(done, "finished step in the log" if done else "output")
            if self.is_measured or self.overdue is not None:
                self.end()
        elif time.monotonic() - self._end_requested_s > SUPERVISOR_GRACE_S:
            self._supervisor.kill()
        return False

    def end(self) -> None:
        """Have the supervisor end the command."""
        self._end_requested_s = time.monotonic()
        self._lifeline.close()

    def wait(self) -> None:
        """Wait for the supervisor, and kill it and the command if it takes too long."""
        self._lifeline.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(SUPERVISOR_GRACE_S)
        self._supervisor.kill()
        self._supervisor.wait()
        kill_tagged(RUN_TAG, str(self.order.run_folder))

    def _verdict(self) -> logs.Verdict:
        best = self.order.best_tokens_per_s
        best_step_time_s = tokens_per_step(self.order.recipe, self.setup.problem) / best if best else None
        return logs.verdict(self.steps, self.setup.probe, best_step_time_s=best_step_time_s, spent_s=self.seconds)

    def outcome(self) -> Outcome:
        """Return the measurement that follows from the log, or why there is none."""
        end = read_end(self.order.run_folder)
        self._took_s = self.seconds if end is None else end["seconds"]
        found = self._judged(end)
        return with_log(found, self.order.run_folder / LOG) if isinstance(found, Failure) else found

    def _judged(self, end: dict[str, Any] | None) -> Outcome:
        recipe, problem, steps = self.order.recipe, self.setup.problem, self.steps
        failed = self.overdue is not None or end is None or (end["status"] != 0 and not self.is_measured)
        doubt = commands.why_disagreeing(self.log.statements, recipe, problem)
        if not failed or not steps:
            doubt = doubt or logs.why_inconsistent(steps, recipe, problem)
        if doubt is not None and steps:
            return self._failure(FailureKind.IMPLAUSIBLE, doubt)
        unfinite = next((step.logged.number for step in steps if not step.is_finite), None)
        if unfinite is not None:
            return self._failure(FailureKind.NOT_FINITE, f"the loss was not finite at step {unfinite}")
        if failed or end is None:
            return self._failure(*self._why_failed(end))
        found, warm_up = self._verdict(), self.setup.probe.warm_up_steps
        if not found.times_s:
            overflowed = sum(step.logged.skipped_steps for step in steps)
            if overflowed and not logs.measured(steps, warm_up):
                message = f"gradients overflowed in {overflowed} of {len(steps)} steps, and in every measured one"
                return self._failure(FailureKind.NOT_FINITE, message)
            message = f"the log reports {len(steps)} steps, and {warm_up} are warm-up: see [command]"
            return self._failure(FailureKind.CRASHED, message)
        peak = self.log.peak_memory_bytes
        if not peak and problem.cluster.backend == "cpu":
            peak = end["peak_resident_bytes"]
        first_s = steps[0].time_s if steps[0].is_claimed and steps[0].time_s else 0.0
        result = {
            "status": "measured",
            "step_times_s": found.times_s,
            "peak_memory_bytes": (peak,),
            "losses": [step.logged.loss for step in steps if step.logged.loss is not None],
            "build_time_s": max(0.0, steps[0].logged.arrival_s - first_s),
            "first_step_time_s": first_s,
            "ended": found.ended or ProbeEnding.LIMIT,
        }
        return measurement(result, recipe, problem, self.node_seconds, memory_is_known=peak > 0)

    def _failure(self, kind: FailureKind, message: str) -> Failure:
        return Failure(kind=kind, message=message, node_seconds=self.node_seconds)

    def _why_failed(self, end: dict[str, Any] | None) -> tuple[FailureKind, str]:
        lines = tail(self.order.run_folder / LOG, TAIL_LINES, TAIL_BYTES).splitlines()
        text = "\n".join(line.partition(" ")[2] for line in lines)  # without times of arrival
        phase, status = "stepping" if self.steps else "starting", -9 if end is None else end["status"]
        errors, is_killed = exceptions(text, phase), self._end_requested_s is not None
        if RANK_KILLED.search(text) and not is_killed and all(error.is_about_a_peer for error in errors):
            status, errors = -9, ()
        foreign = next((line for line in text.splitlines() if FOREIGN_OOM.search(line)), None)
        if foreign is not None:
            return FailureKind.OUT_OF_MEMORY, first_line(foreign)
        if end is None and not is_killed:
            why_full = why_disk_full(self.order.run_folder)
            return FailureKind.LOST, why_full or "its supervisor was killed, and the command with it"
        if status == NOT_STARTED and not errors:
            return FailureKind.CRASHED, first_line(text)
        evidence = Evidence(
            statuses={0: status},
            errors=errors,
            log_tails={0: text},
            overdue=self.overdue,
            killed_by_us=frozenset({0} if is_killed else ()),
            kernel_oom_kills=self.kernel_oom_kills,
        )
        found = classify(evidence)
        return found.kind, found.message.replace(f"rank 0 while {phase}: ", "").replace("rank 0", "the command")


def exceptions(text: str, phase: str) -> tuple[RankError, ...]:
    """Return the first exception in the log that ended a process; before the first step a refusal is a ValueError."""
    for line in text.splitlines():
        usage = USAGE.match(line.strip())
        if usage is not None and phase == "starting":
            return (RankError(rank=0, type="ValueError", message=usage[1], phase=phase),)
        raised = EXCEPTION.match(line.rstrip())
        if raised is not None and raised[1] != "ChildFailedError":  # torchrun's, about a rank's
            refused = phase == "starting" and raised[1] in REFUSALS
            message = raised[2] or raised[1]
            if refused and raised[1] == "AssertionError":
                message = f"assertion: {message}"
            return (RankError(rank=0, type="ValueError" if refused else raised[1], message=message, phase=phase),)
    return ()


def read_end(run_folder: Path) -> dict[str, Any] | None:
    """Return how the command ended; None if its supervisor was killed before it could write that."""
    try:
        found: dict[str, Any] | None = read_json(run_folder / ENDED)
    except ValueError:
        return None
    return found


def write_run(run_folder: Path, command: Command, environment: Mapping[str, str], settings: CommandSettings) -> None:
    """Write the command's files and the supervisor's order, which holds only the names of the driver's variables."""
    run_folder.mkdir(parents=True, exist_ok=True)
    for name, text in command.files.items():
        write_text(run_folder / Path(name).name, text)
    order = {
        "arguments": list(command.arguments),
        "environment": {**environment, RUN_TAG: str(run_folder), **driver_tags(run_folder.parent)},
        "passed": sorted(settings.passed(os.environ)),
        "folder": str(settings.start_folder),
    }
    write_json(run_folder / ORDER, order)
