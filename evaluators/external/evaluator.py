"""Evaluator that runs a trainer's command for each recipe and measures it by its log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frontrunner.evaluators.external.command import Command, MakeCommand, environment_of, request_of
from frontrunner.evaluators.external.config_check import stated_before, why_disagreeing
from frontrunner.evaluators.external.logs import LogReader, patterns_of
from frontrunner.evaluators.external.outcome import outcome_of
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.external.step_times import TimedStep, Verdict, is_finite, timed, verdict
from frontrunner.evaluators.external.supervisor import GRACE_S, KILL_S, ORDER
from frontrunner.evaluators.external.trainers import configured
from frontrunner.evaluators.probe.files import write_json, write_text
from frontrunner.evaluators.probe.measure import tokens_per_step
from frontrunner.evaluators.probe.processes import driver_tags, kernel_oom_kills, kill_tagged
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.probe.watch import Deadlines
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.spaces.legality import Reason

POLL_S = 0.1
RUN_TAG = "FRONTRUNNER_RUN"
"""Environment variable with the run folder, on every process of a command."""
SUPERVISOR = "frontrunner.evaluators.external.supervisor"
SUPERVISOR_LOG = "supervisor.log"
SUPERVISOR_GRACE_S = GRACE_S + KILL_S + 5.0
"""What a supervisor may take to end its command."""


class CommandEvaluator:
    """The `Evaluator` over a function from requests to commands; by default that of the campaign's [command]."""

    def __init__(self, setup: ProbeSetup, make_command: MakeCommand | None = None) -> None:
        self._setup = setup
        self._make = make_command or configured(setup.command)
        self._running: dict[str, CommandRun] = {}
        self._ready: list[Finished] = []
        setup.work_folder.mkdir(parents=True, exist_ok=True)

    def start(self, order: ProbeOrder) -> None:
        """Start one command, unless its recipe is refused or its own files disagree with one another."""
        order.run_folder.mkdir(parents=True, exist_ok=True)
        request, settings = request_of(self._setup, order.recipe, order.run_folder), self._setup.command
        command = self._make(request)
        if isinstance(command, Reason):
            failure = Failure(kind=FailureKind.ILLEGAL_FOR_ENGINE, message=command.text)
            self._ready.append(_finished(order, failure))
            return
        write_run(order.run_folder, command, environment_of(command, request, settings), settings)
        stated = stated_before(command.arguments, settings.start_folder)
        doubt = why_disagreeing(stated, order.recipe, self._setup.problem)
        if doubt is not None:
            self._ready.append(_finished(order, Failure(kind=FailureKind.IMPLAUSIBLE, message=doubt)))
            return
        self._running[order.token] = CommandRun(order, self._setup, command)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running commands for up to `timeout_s`, or until one of them has ended."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            ended = [token for token, run in self._running.items() if run.look()]
            if ended or self._ready or time.monotonic() >= deadline_s:
                done, self._ready = self._ready, []
                return [*done, *(self._conclude(self._running.pop(token)) for token in ended)]
            time.sleep(max(0.0, min(POLL_S, deadline_s - time.monotonic())))

    def _conclude(self, run: CommandRun) -> Finished:
        return _finished(run.order, outcome_of(run, self._setup))

    def progress(self, token: str) -> Progress | None:
        """Return phase and steps of a running command."""
        run = self._running.get(token)
        return None if run is None else run.progress

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk. A command dies with its driver: one that was not judged then is lost."""
        folder = RunFolder(order.run_folder)
        folder.remove_unfinished()
        return folder.outcome()

    def close(self) -> None:
        """End what still runs, and every process behind it."""
        for run in self._running.values():
            run.request_end()
        for run in self._running.values():
            run.wait()


def _finished(order: ProbeOrder, outcome: Outcome) -> Finished:
    RunFolder(order.run_folder).write_outcome(outcome)
    return Finished(token=order.token, outcome=outcome)


class CommandRun:
    """Starts a command and follows it, by a monotonic clock that starts with the command.

    `overdue` is the deadline that passed; `measured` is True if the command was ended because its step time was known,
    and `killed` if it was ended for any reason.
    """

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, command: Command) -> None:
        """Start the command that `write_run` has written to the order's run folder."""
        self.order = order
        self.overdue: tuple[FailureKind, str] | None = None
        self.measured = False
        self.killed = False
        self.log = LogReader(order.run_folder, patterns_of(command.log_patterns))
        self._setup = setup
        self._oom_kills_before = kernel_oom_kills()
        self._end_requested_s: float | None = None
        self._deadlines = Deadlines(setup.probe)
        with (order.run_folder / SUPERVISOR_LOG).open("wb") as errors:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", SUPERVISOR, str(order.run_folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # signals of the terminal are for the driver to handle
                env={**os.environ, **driver_tags(order.run_folder.parent)},
            )

    @property
    def seconds(self) -> float:
        """Return the time since the command was started."""
        return self._deadlines.seconds

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory meanwhile, on the whole machine."""
        return kernel_oom_kills() - self._oom_kills_before

    @property
    def steps(self) -> list[TimedStep]:
        """Return the steps logged so far, with their times."""
        return timed(self.log.steps, self.order.recipe, self._setup.problem)

    def verdict(self) -> Verdict:
        """Return the verdict on the step time so far."""
        best = self.order.best_tokens_per_s
        best_step_time_s = tokens_per_step(self.order.recipe, self._setup.problem) / best if best else None
        return verdict(self.steps, self._setup.probe, best_step_time_s=best_step_time_s, spent_s=self.seconds)

    @property
    def progress(self) -> Progress:
        """Return phase and steps."""
        done, most = sum(step.covers for step in self.steps), self._setup.probe.most_steps
        return Progress(phase="stepping" if done else "starting", steps_done=min(done, most), steps_total=most)

    def look(self) -> bool:
        """Note progress and return whether the command has ended.

        End it when its step time is known or a deadline has passed, and also when its supervisor was killed.
        """
        if self._supervisor.poll() is not None:
            self._close_stdin()
            self.log.advance(to_the_end=True)
            kill_tagged(RUN_TAG, str(self.order.run_folder))
            return True
        before = len(self.log.steps)
        wrote = self.log.advance()
        came = len(self.log.steps) > before
        # Until the first step any output is progress: trainers take long to build, and report that.
        if came or (wrote and not before):
            self._deadlines.progressed()
        if self._end_requested_s is None:
            # A loss that is not finite makes further steps useless.
            self.measured = came and (not all(map(is_finite, self.steps)) or self.verdict().ended is not None)
            done = self.progress.steps_done
            missing = "finished step in the log" if done else "output"
            self.overdue = None if self.measured else self._deadlines.overdue(done, missing=missing)
            if self.measured or self.overdue is not None:
                self.request_end()
        elif time.monotonic() - self._end_requested_s > SUPERVISOR_GRACE_S:
            self._supervisor.kill()
        return False

    def request_end(self) -> None:
        """Have the supervisor end the command; return at once."""
        self.killed = True
        self._end_requested_s = time.monotonic()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()

    def wait(self) -> None:
        """Wait for the supervisor, and kill it and the command if it takes too long."""
        try:
            self._supervisor.wait(SUPERVISOR_GRACE_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        kill_tagged(RUN_TAG, str(self.order.run_folder))


def write_run(run_folder: Path, command: Command, environment: Mapping[str, str], settings: CommandSettings) -> None:
    """Write the command's files and the supervisor's order.

    Of the driver's variables it holds only the names: their values may be secrets. The command is tagged as the
    driver's, since its ranks may outlive a supervisor that is killed.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    for name, text in command.files.items():
        write_text(run_folder / Path(name).name, text)
    order: dict[str, Any] = {
        "arguments": list(command.arguments),
        "environment": {**environment, RUN_TAG: str(run_folder), **driver_tags(run_folder.parent)},
        "passed": sorted(settings.passed(os.environ)),
        "folder": str(settings.start_folder),
    }
    write_json(run_folder / ORDER, order)
