"""The seam between the driver and whatever judges recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.tables.table_settings import TableSettings
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ProbeOrder:
    """One attempt to be made: which recipe, under which token, with which folder for its files.

    `best_tokens_per_s` is the campaign's best so far, against which a recipe may show itself clearly slower.
    """

    token: str
    recipe: Recipe
    run_folder: Path
    best_tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeSetup:
    """What all probes of a campaign share; `engines` are those that its recipes may ask for."""

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
    """An order's outcome; `is_cut` where the machine was taken away under the probe, as at the end of a walltime."""

    token: str
    outcome: Measurement | Failure
    is_cut: bool = False


QUEUED = "waiting for nodes"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an order has come: what it does, and the steps it has finished of the most it will run.

    The phase is `QUEUED` as long as it has no nodes: it is then charged nothing. `node_seconds` is what it has spent,
    where the evaluator knows that better than by the time since it got its nodes.
    """

    phase: str
    steps_done: int
    steps_total: int
    node_seconds: float | None = None


class NodesUnavailable(FrontrunnerError):
    """There is nothing to run probes on, in the words of whoever was asked; the campaign may be resumed later."""


class Evaluator(Protocol):
    """Turns recipes into outcomes. Used by one thread; `parallel` orders may run at a time.

    An outcome is on disk in its order's run folder before `finished` returns it, and every order that was
    started ends in exactly one outcome: from `finished`, or after a crash of the driver from `harvest`.
    """

    def start(self, order: ProbeOrder) -> None:
        """Begin an order; returns at once."""

    def finished(self, timeout_s: float) -> list[Finished]:
        """The orders that have ended since the last call, waiting up to `timeout_s` for the first.

        Raises `NodesUnavailable` where those under way have nothing to run on, now and for some time to come.
        """

    def progress(self, token: str) -> Progress | None:
        """How far a running order is; None for one that is not running."""

    def harvest(self, order: ProbeOrder) -> Measurement | Failure | None:
        """The outcome that an order of an earlier driver left in its run folder, or None if it left none."""

    def close(self) -> None:
        """End whatever still runs, and every process behind it."""


@runtime_checkable
class Queueing(Protocol):
    """What an `Evaluator` whose orders may wait for nodes has besides."""

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for nodes, as if it had never been given; False for any other."""


@runtime_checkable
class Located(Protocol):
    """What an `Evaluator` has besides that knows where it measures: whether on devices of the driver's host.

    Of one that does not say so it is assumed.
    """

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


def make_evaluator(name: str, setup: ProbeSetup) -> Evaluator:
    """The named evaluator, built in or a plug-in; raises `InvalidInput` for an unknown name."""
    if name not in EVALUATORS:
        from frontrunner.evaluators.plugins import made_by_plugin

        return made_by_plugin(name, setup)
    module, factory = EVALUATORS[name].split(":")
    make: EvaluatorFactory = getattr(import_module(module), factory)
    return make(setup)
