"""A program, from the driver's side: what it writes before its processes start, and how these are
followed to an outcome. It knows nothing of where they run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

from frontrunner.evaluators.nodes.base import Processes, Start
from frontrunner.evaluators.nodes.fork_server import ServerSettings
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.runs.files import is_disk_full, tail
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Outcome


class Watch(ABC):
    """One order in flight, as its program's files and its processes show it.

    `overdue` is the deadline that passed, `lost` what has taken the processes along.
    """

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, processes: Processes) -> None:
        self.order = order
        self.setup = setup
        self.processes = processes
        self.folder = RunFolder(order.run_folder)
        self.overdue: tuple[FailureKind, str] | None = None
        self.lost: str | None = None
        self.began_s: float | None = None
        self.progressed_s = 0.0

    @abstractmethod
    def look(self) -> bool:
        """Note progress, end what is overdue, and return whether the order is over."""

    @abstractmethod
    def outcome(self) -> Outcome:
        """Return the outcome of an order that is over."""

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """Return phase and steps."""

    def end(self) -> None:
        """Have the processes end; return at once."""
        self.processes.end()

    def note_begin(self) -> None:
        """Count deadlines from now on, once each node has started its part."""
        if self.began_s is None and self.processes.have_begun:
            self.began_s = self.progressed_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return how long the processes have held nodes."""
        return self.processes.seconds

    @property
    def node_seconds(self) -> float:
        """Return what the order has spent."""
        return self.seconds * nodes_used(self.order.recipe, self.setup.problem)

    @property
    def is_cut(self) -> bool:
        """Return whether the machine was taken away meanwhile."""
        return self.lost is not None and self.processes.were_taken_away

    def find_overdue(
        self, steps_done: int, missing: str = "progress"
    ) -> tuple[FailureKind, str] | None:
        """Return the deadline that has passed, as a kind of failure and a message, or None."""
        settings, now = self.setup.probe, time.monotonic()
        if self.began_s is None:
            return None
        if now - self.progressed_s > settings.step_deadline_s:
            limit = f"probe.step_deadline_s = {settings.step_deadline_s:g} s"
            return FailureKind.HUNG, f"no {missing} within {limit}, after {steps_done} steps"
        if now - self.began_s > settings.deadline_s:
            limit = f"probe.deadline_s = {settings.deadline_s:g} s"
            return (
                FailureKind.TOO_SLOW,
                f"{steps_done} of at most {settings.most_steps} steps within {limit}",
            )
        return None


class Program(ABC):
    """What runs for the recipes of one campaign: the built-in trainer, or a command."""

    def __init__(self, setup: ProbeSetup) -> None:
        self.setup = setup
        setup.work_folder.mkdir(parents=True, exist_ok=True)

    @property
    def server(self) -> ServerSettings:
        """Return what the fork servers of its nodes have."""
        return ServerSettings()

    @abstractmethod
    def why_refused(self, order: ProbeOrder) -> Failure | None:
        """Return why an order is not to be started, before it waits for nodes, or None."""

    @abstractmethod
    def prepare(self, order: ProbeOrder) -> Start:
        """Write what the processes of an order read, and return how they start."""

    @abstractmethod
    def watch(self, order: ProbeOrder, processes: Processes) -> Watch:
        """Follow the processes of an order that was prepared."""

    def scratch(self, order: ProbeOrder) -> Path | None:  # noqa: ARG002 - by default
        """Return the folder on a node's own disk that an order uses, or None."""
        return None

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome that an order of an earlier driver has left on disk, or None."""
        folder = RunFolder(order.run_folder)
        folder.remove_unfinished()
        return folder.outcome()


def with_log(failure: Failure, log: Path) -> Failure:
    """Return the failure with the log that explains it."""
    return replace(failure, log_tail=tail(log), log_path=str(log))


def written(folder: RunFolder, outcome: Outcome) -> Outcome:
    """Write the outcome down where there is room for it.

    A crash on a full disk is not the recipe's fault, and neither is what became of a probe whose
    folder was removed meanwhile: both are lost.
    """
    try:
        folder.write_outcome(outcome)
    except FileNotFoundError:
        message = (
            f"its run folder {folder.path} was removed while it ran; keep what cleans that file"
            " system away from it, or set store.run_folder"
        )
        return Failure(kind=FailureKind.LOST, message=message, node_seconds=outcome.node_seconds)
    except OSError as error:
        if not is_disk_full(error):
            raise
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.CRASHED:
            message = f"{outcome.message}; its run folder is full: {error}"
            return replace(outcome, kind=FailureKind.LOST, message=message)
    return outcome
