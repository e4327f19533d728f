"""Starts of a replay: its processes are started, stopped before their nodes are taken away, and
started again.

Each start has a folder of its own, `starts/N`. What the training writes (checkpoints, metrics) is
elsewhere, on a file system that all nodes and the driver share.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

from frontrunner.evaluators.nodes.base import Nodes
from frontrunner.evaluators.nodes.dispatched import LONGER_SHARE, POLL_S
from frontrunner.evaluators.programs.base import Watch
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.runs.files import tail
from frontrunner.evaluators.runs.training import PlannedReplay, ReplayStopped, RunFollower
from frontrunner.results.outcome import POLICIES, FailureKind
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.text import counted

LEAST_RUN_S = 60.0
"""Assumed: nodes that are left for less are not worth a start."""
LONGEST_RUN_S = 365 * 86_400.0
"""No deadline: the walltime of an allocation is one."""


class Ending(StrEnum):
    """How a start ended; no other one changes what is `DONE`."""

    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class Cause(NamedTuple):
    """Why a start failed, and the log that shows it."""

    kind: FailureKind
    message: str
    log: Path


AnyWatch = TypeVar("AnyWatch", bound=Watch)


class Starts(ABC, Generic[AnyWatch]):
    """One driver's starts of a replay on nodes, which end with it.

    Processes that outlive a driver are waited for.
    """

    no_progress: ClassVar[str]
    """What starts lack that count as failed in a row."""
    goes_on: ClassVar[str]
    """How the training goes on when the user runs it again."""

    def __init__(self, chosen: PlannedReplay, nodes: Nodes, follower: RunFollower) -> None:
        self._recipe, self._restarts = chosen.recipe, chosen.restarts
        self._nodes, self._follower = nodes, follower
        self.folder = chosen.folder / "starts"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._nodes.note(LEAST_RUN_S / LONGER_SHARE)  # what nodes have to be left for
        self._watch: AnyWatch | None = None
        self._is_running = False

    @abstractmethod
    def begin(self, order: ProbeOrder, number: int) -> AnyWatch:
        """Start the processes of an order for which there are nodes."""

    @abstractmethod
    def ending(self, watch: AnyWatch) -> Ending:
        """Return how a start has ended."""

    @abstractmethod
    def cause(self, watch: AnyWatch) -> Cause:
        """Return why a start has failed."""

    @abstractmethod
    def reached(self) -> int:
        """Return the step that the training is known to go on from."""

    def run(self) -> bool:
        """Start until the training is done, and return True.

        Return False where it was stopped for good: on a signal, or before the end of the driver's
        own job. Raise `FrontrunnerError` with why it was given up.
        """
        failures = 0
        try:
            while True:
                reached = self.reached()
                watch = self._start()
                self._follow(watch)
                ending = self.ending(watch)
                if ending is Ending.DONE:
                    return True
                is_last = bool(self._follower.signals) or not self._nodes.takes_others
                if ending is Ending.STOPPED and is_last:
                    return False
                failures = 0 if self.reached() > reached else failures + 1
                if ending is Ending.STOPPED:
                    self._follower.note("stopped", why="the nodes were about to be taken away")
                    self._refuse_to_stand_still(failures)
                    self._nodes.give_back(watch.processes)  # too little of their time is left
                else:
                    self._restart_or_raise(watch, failures)
        finally:
            self._close()

    def _start(self) -> AnyWatch:
        self._stop_on_signal()
        number = self._wait_for_earlier() + 1
        folder = self.folder / f"{number:04d}"
        order = ProbeOrder(token=f"start-{number}", recipe=self._recipe, run_folder=folder)
        while not self._nodes.place([order]):
            self._nodes.poll(POLL_S)
            self._stop_on_signal()
        folder.mkdir()
        self._follower.begin()
        self._watch, self._is_running = self.begin(order, number), True
        return self._watch

    def _wait_for_earlier(self) -> int:
        """Wait until the processes of the newest start have ended, be it another driver's; return
        its number.
        """
        newest = max((int(path.name) for path in self.folder.iterdir()), default=0)
        left = self._nodes.left_by([self.folder / f"{newest:04d}"] if newest else [])
        while not left.have_ended():
            time.sleep(POLL_S)
            self._stop_on_signal()
        return newest

    def _stop_on_signal(self) -> None:
        """Raise `ReplayStopped` if a signal came while nothing is running."""
        if self._follower.signals:
            why = self._follower.why_stopped
            raise ReplayStopped(f"stopped {why}, while nothing was running", hint=self.goes_on)

    def _follow(self, watch: AnyWatch) -> None:
        while not watch.look():
            self._nodes.poll(POLL_S)
            self._follower.read()
            self._follower.stop_before(watch.processes.end_s)
        watch.processes.close()
        self._nodes.forget(watch.processes)
        self._is_running = False
        self._follower.read()

    def _refuse_to_stand_still(self, failures: int) -> None:
        """Raise `FrontrunnerError` where stopping in time has stored nothing, so often in a row."""
        if (
            failures > self._restarts + 1
        ):  # what the first start has stored may show in the second alone
            raise FrontrunnerError(
                f"stopped {failures} times in a row before its nodes were taken away,"
                f" {self.no_progress}",
                hint="a longer --walltime or --stop-margin gives it time to store a checkpoint",
            )

    def _restart_or_raise(self, watch: AnyWatch, failures: int) -> None:
        kind, message, log = self.cause(watch)
        self._follower.note("failed", kind=kind.value, why=message)
        may_help = POLICIES[kind].max_attempts > 1
        if may_help and failures <= self._restarts:
            return
        why = f"the replay failed, {kind}: {message}"
        if may_help:
            why += (
                f"; {counted(failures, 'start')} in a row {self.no_progress}, and --restarts is"
                f" {self._restarts}"
            )
        raise FrontrunnerError(
            f"{why}\n{tail(log)}".rstrip(), hint=f"the whole log: {log}; {self.goes_on}"
        )

    def _close(self) -> None:
        if self._watch is not None and self._is_running:
            self._watch.end()
        self._nodes.close([] if self._watch is None else [self._watch.processes])
