"""One command in flight, as the evaluator sees it: its keeper, its log as far as it has come, its deadlines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.external.command import Command, CommandRequest
from frontrunner.evaluators.external.fields import field_values
from frontrunner.evaluators.external.judging import TimedStep, Verdict, timed, verdict
from frontrunner.evaluators.external.keeper import ENDED, GRACE_S, KILL_S, ORDER
from frontrunner.evaluators.external.patterns import patterns_of
from frontrunner.evaluators.external.reading import LogReader
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.external.template import filled_text
from frontrunner.evaluators.probe.files import read_json, write_json, write_text
from frontrunner.evaluators.probe.marks import marks
from frontrunner.evaluators.probe.measure import tokens_per_step
from frontrunner.evaluators.probe.watch import kernel_oom_kills
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import FailureKind

RUN_VARIABLE = "FRONTRUNNER_RUN"
"""Environment variable that marks every process of a command, with its run folder."""
KEEPER_LOG = "keeper.log"
KEEPER_GRACE_S = GRACE_S + KILL_S + 5.0
"""What a keeper may take to end its command."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a command ended: exit code or minus the signal, its seconds, and the largest resident set of one process."""

    status: int
    seconds: float
    peak_resident_bytes: int


class CommandRun:
    """Starts a command and follows it. Its clock is monotonic and starts with the command.

    `overdue` is the deadline that passed; `measured` says that the command was ended because its step time was known.
    """

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, command: Command) -> None:
        """Start the command that `write_run` has written to the order's run folder."""
        self.order = order
        self.overdue: tuple[FailureKind, str] | None = None
        self.measured = False
        self.killed = False
        self._setup = setup
        self.log = LogReader(order.run_folder, patterns_of(command.log_patterns))
        self._oom_kills_before = kernel_oom_kills()
        self._asked_s: float | None = None
        self._began_s = self._last_progress_s = time.monotonic()
        with (order.run_folder / KEEPER_LOG).open("wb") as errors:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "frontrunner.evaluators.external.keeper", str(order.run_folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # what a terminal sends to the driver is the driver's to judge
                env={**os.environ, **marks(order.run_folder.parent)},
            )

    @property
    def seconds(self) -> float:
        """Since the command was started."""
        return time.monotonic() - self._began_s

    @property
    def kernel_oom_kills(self) -> int:
        """Processes that the kernel killed for memory meanwhile, on the whole machine."""
        return kernel_oom_kills() - self._oom_kills_before

    @property
    def steps(self) -> list[TimedStep]:
        """The steps logged so far, with their times."""
        return timed(self.log.steps, self.order.recipe, self._setup.problem)

    def verdict(self) -> Verdict:
        """What they say of the step time."""
        best = self.order.best_tokens_per_s
        best_step_time_s = tokens_per_step(self.order.recipe, self._setup.problem) / best if best else None
        return verdict(self.steps, self._setup.probe, best_step_time_s=best_step_time_s, spent_s=self.seconds)

    @property
    def progress(self) -> Progress:
        """Phase and steps."""
        done = sum(step.covers for step in self.steps)
        most = self._setup.probe.most_steps
        return Progress(phase="stepping" if done else "starting", steps_done=min(done, most), steps_total=most)

    def look(self) -> bool:
        """Note progress, and end the command where its step time is known or a deadline has passed; whether it ended.

        A command whose keeper was killed is ended from here.
        """
        if self._keeper.poll() is not None:
            self._close_lifeline()
            self.log.advance(to_the_end=True)
            kill_marked(self.order.run_folder)
            return True
        before = len(self.log.steps)
        wrote = self.log.advance()
        # Until the first step any output is progress: trainers take long to build, and say what they do meanwhile.
        if len(self.log.steps) > before or (wrote and not before):
            self._last_progress_s = time.monotonic()
        if self._asked_s is None:
            self._judge(came=len(self.log.steps) > before)
        elif time.monotonic() - self._asked_s > KEEPER_GRACE_S:
            self._keeper.kill()
        return False

    def _judge(self, *, came: bool) -> None:
        self.measured = came and (self._is_lost_cause() or self.verdict().ended is not None)
        self.overdue = None if self.measured else self._overdue()
        if self.measured or self.overdue is not None:
            self.ask_to_end()

    def _is_lost_cause(self) -> bool:
        """Whether the loss is not finite, so that no further step is of use."""
        return any(not is_finite(step) for step in self.steps)

    def ask_to_end(self) -> None:
        """Have the keeper end the command; returns at once."""
        self.killed = True
        self._asked_s = time.monotonic()
        self._close_lifeline()

    def _close_lifeline(self) -> None:
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()

    def wait(self) -> None:
        """Wait for the keeper, and kill it and the command if it takes too long."""
        try:
            self._keeper.wait(KEEPER_GRACE_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        kill_marked(self.order.run_folder)

    def _overdue(self) -> tuple[FailureKind, str] | None:
        settings, done, now = self._setup.probe, self.progress.steps_done, time.monotonic()
        if now - self._last_progress_s > settings.step_deadline_s:
            what = "finished step in the log" if done else "output"
            limit = f"probe.step_deadline_s = {settings.step_deadline_s:g} s"
            return FailureKind.HUNG, f"no {what} within {limit}, after {done} steps"
        if now - self._began_s > settings.deadline_s:
            limit = f"probe.deadline_s = {settings.deadline_s:g} s"
            return FailureKind.TOO_SLOW, f"{done} of at most {settings.most_steps} steps within {limit}"
        return None


def is_finite(step: TimedStep) -> bool:
    """Whether a logged step's loss is, where the log states it."""
    loss = step.logged.loss
    return not step.logged.nan_steps and (loss is None or abs(loss) < float("inf"))


def environment_of(command: Command, request: CommandRequest, settings: CommandSettings) -> dict[str, str]:
    """What is set for the command, beside the variables that it gets of the driver's environment."""
    fields = field_values(request)
    own = {name: filled_text(value, fields) for name, value in settings.environment.items()}
    return dict(command.environment) | own


def write_run(run_folder: Path, command: Command, environment: Mapping[str, str], settings: CommandSettings) -> None:
    """Write the command's files and the keeper's order.

    Of the driver's variables it holds names alone: their values may be secrets. The command is marked as the driver's,
    since its ranks may outlive a keeper that is killed.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    for name, text in command.files.items():
        write_text(run_folder / Path(name).name, text)
    order: dict[str, Any] = {
        "arguments": list(command.arguments),
        "environment": {**environment, RUN_VARIABLE: str(run_folder), **marks(run_folder.parent)},
        "passed": sorted(settings.passed(os.environ)),
        "folder": str(settings.start_folder),
    }
    write_json(run_folder / ORDER, order)


def read_end(run_folder: Path) -> End | None:
    """How the command ended; None where its keeper did not live to tell."""
    try:
        found = read_json(run_folder / ENDED)
        if found is None:
            return None
        status, seconds, peak = (found[key] for key in ("status", "seconds", "peak_resident_bytes"))
        return End(status=int(status), seconds=float(seconds), peak_resident_bytes=int(peak))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def kill_marked(run_folder: Path) -> None:
    """Kill what a command has left behind: every process that carries its mark."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == str(run_folder):
                process.kill()
