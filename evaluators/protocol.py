"""Interface between the driver and the evaluators that turn recipes into outcomes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.tables import TableSettings
from frontrunner.results.outcome import Outcome
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ProbeOrder:
    """One attempt at a recipe, with its token and the folder for its files.

    `best_tokens_per_s` is the campaign's best so far: a probe may end once its recipe is clearly slower.
    """

    token: str
    recipe: Recipe
    run_folder: Path
    best_tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeSetup:
    """What all probes of a campaign share; `engines` are those that its recipes may use."""

    problem: Problem
    probe: ProbeSettings
    data: DataSettings
    work_folder: Path
    seed: int
    engines: tuple[str, ...] = ("torch",)
    table: TableSettings = field(default_factory=TableSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    command: CommandSettings = field(default_factory=CommandSettings)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """An order's outcome; `is_cut` if the machine was taken away during the probe, as at the end of a walltime."""

    token: str
    outcome: Outcome
    is_cut: bool = False


QUEUED = "waiting for nodes"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Phase of an order, and the steps it has finished of the most it will run.

    The phase is `QUEUED` as long as it has no nodes: no time is charged then. `node_seconds` is what it has spent, if
    the evaluator knows that better than by the time since it got its nodes.
    """

    phase: str
    steps_done: int
    steps_total: int
    node_seconds: float | None = None


class NodesUnavailable(FrontrunnerError):
    """There is nothing to run probes on; the campaign may be resumed later."""


class Evaluator(Protocol):
    """Turns recipes into outcomes. Used by one thread; `parallel` orders may run at a time.

    An outcome is on disk in its order's run folder before `finished` returns it, and every order that was started ends
    in exactly one outcome: from `finished`, or after a crash of the driver from `harvest`.
    """

    def start(self, order: ProbeOrder) -> None:
        """Begin an order and return at once."""

    def finished(self, timeout_s: float) -> list[Finished]:
        """Return the orders that have ended since the last call, waiting up to `timeout_s` for the first.

        Raises `NodesUnavailable` if those under way have nothing to run on, now and for some time to come.
        """

    def progress(self, token: str) -> Progress | None:
        """Return the progress of a running order; None for one that is not running."""

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome that an order of an earlier driver left in its run folder, or None."""

    def close(self) -> None:
        """End whatever still runs, and every process behind it."""


@runtime_checkable
class Queueing(Protocol):
    """Addition to an `Evaluator` whose orders may wait for nodes."""

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for nodes, as if it had never been given; return False for any other."""


@runtime_checkable
class Located(Protocol):
    """Addition to an `Evaluator` that knows whether it measures on devices of the driver's host; by default it does."""

    measures_here: bool


EvaluatorFactory = Callable[[ProbeSetup], Evaluator]

COMMAND = "frontrunner.evaluators.external.evaluator:CommandEvaluator"
EVALUATORS: dict[str, str] = {
    "probe": "frontrunner.evaluators.cluster.choice:training_probe",
    "simulated": "frontrunner.evaluators.analytic.simulated:Simulated",
    "table": "frontrunner.evaluators.tables.lookup:TableLookup",
    "command": COMMAND,
}
"""The built-in evaluators by name, as import paths; others are plug-ins (`plugins.py`)."""


class ImmediateEvaluator(ABC):
    """Base of evaluators whose outcomes are computed or looked up at once; a subclass defines `_outcome`."""

    measures_here = False

    def __init__(self) -> None:
        self._orders: list[ProbeOrder] = []

    @abstractmethod
    def _outcome(self, recipe: Recipe) -> Outcome:
        """Return the outcome of one recipe."""

    def start(self, order: ProbeOrder) -> None:
        """Accept an order; its outcome is ready at the next `finished`."""
        self._orders.append(order)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Return all orders since the last call; without any wait, as a real evaluator would."""
        if not self._orders:
            time.sleep(timeout_s)
        orders, self._orders = self._orders, []
        return [self._finish(order) for order in orders]

    def _finish(self, order: ProbeOrder) -> Finished:
        outcome = self._outcome(order.recipe)
        order.run_folder.mkdir(parents=True, exist_ok=True)
        RunFolder(order.run_folder).write_outcome(outcome)
        return Finished(token=order.token, outcome=outcome)

    def progress(self, token: str) -> Progress | None:
        """Return None: no order is ever running."""
        del token
        return None

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or None."""
        folder = RunFolder(order.run_folder)
        folder.remove_unfinished()
        return folder.outcome()

    def close(self) -> None:
        """Forget the orders that were not reported."""
        self._orders.clear()
