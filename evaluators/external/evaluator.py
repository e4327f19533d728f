"""The evaluator that runs a command for each recipe and measures it by its log."""

from __future__ import annotations

import time

from frontrunner.evaluators.external.agreement import stated_before, why_disagreeing
from frontrunner.evaluators.external.command import MakeCommand, request_of
from frontrunner.evaluators.external.outcome import outcome_of
from frontrunner.evaluators.external.run import CommandRun, environment_of, write_run
from frontrunner.evaluators.external.trainers import configured
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.spaces.legality import Reason

POLL_S = 0.1


class CommandEvaluator:
    """The `Evaluator` over a function from requests to commands; without one, over the campaign's [command]."""

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
        found = self._make(request)
        if isinstance(found, Reason):
            self._refuse(order, FailureKind.ILLEGAL_FOR_ENGINE, found.text)
            return
        write_run(order.run_folder, found, environment_of(found, request, settings), settings)
        stated = stated_before(found.arguments, settings.start_folder)
        doubt = why_disagreeing(stated, order.recipe, self._setup.problem)
        if doubt is not None:
            self._refuse(order, FailureKind.IMPLAUSIBLE, doubt)
            return
        self._running[order.token] = CommandRun(order, self._setup, found)

    def _refuse(self, order: ProbeOrder, kind: FailureKind, why: str) -> None:
        self._ready.append(self._concluded(order, Failure(kind=kind, message=why)))

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
        return self._concluded(run.order, outcome_of(run, self._setup))

    @staticmethod
    def _concluded(order: ProbeOrder, outcome: Outcome) -> Finished:
        RunFolder(order.run_folder).write_outcome(outcome)
        return Finished(token=order.token, outcome=outcome)

    def progress(self, token: str) -> Progress | None:
        """Phase and steps of a running command."""
        run = self._running.get(token)
        return None if run is None else run.progress

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """The outcome on disk. A command dies with its driver: one that was not judged then is lost."""
        folder = RunFolder(order.run_folder)
        folder.clear()
        return folder.outcome()

    def close(self) -> None:
        """End what still runs, and every process behind it."""
        for run in self._running.values():
            run.ask_to_end()
        for run in self._running.values():
            run.wait()
