"""Interface between the driver and the evaluators that turn recipes into outcomes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.nodes.settings import DispatchSettings
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.runs.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.tables import TableSettings
from frontrunner.results.outcome import Outcome
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

QUEUED = "waiting for nodes"


@dataclass(frozen=True, kw_only=True)
class ProbeOrder:
    """One attempt at a recipe; a probe may end once it is clearly slower than the campaign's
    `best_tokens_per_s`.

    `avoids` are the names of nodes that have lost this recipe. The attempt waits for others, where
    there are enough of them.
    """

    token: str
    recipe: Recipe
    run_folder: Path
    best_tokens_per_s: float | None = None
    avoids: frozenset[str] = frozenset()


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
    """An order's outcome; `is_cut` if the machine was taken away during the probe, as at the end of
    a walltime.

    `blames_nodes` is False where that was a whole allocation, which says nothing of its nodes.
    `has_stepped` is False where no training step was seen.
    """

    token: str
    outcome: Outcome
    is_cut: bool = False
    blames_nodes: bool = True
    has_stepped: bool = True


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """A `doctor` check of a node; `found` is what is not fine there, empty where it is to be used
    again.
    """

    node: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Phase and steps of an order; in phase `QUEUED`, without nodes, no time is charged."""

    phase: str
    steps_done: int
    steps_total: int
    node_seconds: float | None = None


class Evaluator(ABC):
    """Turns recipes into outcomes. Used by one thread.

    An outcome is on disk in its order's run folder before `finished` returns it; every order that
    was started ends in exactly one outcome, from `finished` or, after a crash of the driver, from
    `harvest`.
    """

    measures_here = True

    @abstractmethod
    def start(self, order: ProbeOrder) -> None:
        """Begin an order and return at once."""

    @abstractmethod
    def finished(self, timeout_s: float) -> list[Finished]:
        """Return the orders that have ended since the last call, waiting up to `timeout_s` for the
        first.

        Raises `NodesUnavailable` if those under way have nothing to run on for some time to come.
        """

    def progress(self, token: str) -> Progress | None:  # noqa: ARG002
        """Return the progress of a running order; None for one that is not running."""
        return None

    def withdraw(self, token: str) -> bool:  # noqa: ARG002
        """Take back an order that waits for nodes, as if it had never been given; return False for
        any other.
        """
        return False

    def avoid_nodes(self, aside: Mapping[str, str], *, due: Collection[str]) -> None:  # noqa: ARG002
        """Start no probe on the nodes of these names from now on, until a later call leaves them
        out; here: no effect.

        `aside` has the reason for each, for the `NodesUnavailable` to raise where the others are
        too few for a probe that waits. Those that are `due` are checked when they are free
        (`checked_nodes`), and may be requested. A backend with nodes reserves others: the names are
        those in `Step.hosts` and in its nodes' reports.
        """
        return

    def checked_nodes(self) -> list[NodeCheck]:
        """Return the checks of nodes that have ended since the last call."""
        return []

    @property
    def waits_for(self) -> str:
        """What the nodes that orders wait for lack, if that is known; empty where none waits."""
        return ""

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome that an order of an earlier driver left in its run folder, or None."""
        folder = RunFolder(order.run_folder)
        folder.remove_unfinished()
        return folder.outcome()

    @abstractmethod
    def close(self) -> None:
        """End whatever still runs, and every process behind it."""


class ImmediateEvaluator(Evaluator):
    """Base of evaluators whose outcomes are computed or looked up at once; a subclass defines
    `_outcome`.
    """

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
        found = [
            Finished(token=order.token, outcome=self._outcome(order.recipe))
            for order in self._orders
        ]
        for order, finished in zip(self._orders, found, strict=True):
            order.run_folder.mkdir(parents=True, exist_ok=True)
            RunFolder(order.run_folder).write_outcome(finished.outcome)
        self._orders = []
        return found

    def close(self) -> None:
        """Forget the orders that were not reported."""
        self._orders.clear()
