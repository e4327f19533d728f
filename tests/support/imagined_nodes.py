"""Allocations without a batch system behind them, and probes on their nodes, some of which lose
whatever starts there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.nodes import dispatched, parsl_allocation
from frontrunner.evaluators.nodes.agent import NodeReport, Step, StepFolder
from frontrunner.evaluators.nodes.backends import Placed
from frontrunner.evaluators.nodes.base import Start
from frontrunner.evaluators.nodes.dispatched import SourceNodes
from frontrunner.evaluators.nodes.fork_server import ProcessKind, ServerSettings
from frontrunner.evaluators.nodes.settings import DispatchSettings, NodeSource
from frontrunner.evaluators.programs.base import Program, Watch
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.registry import EVALUATORS
from frontrunner.evaluators.runs.probes import Probes
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.spaces.recipe import Recipe
from support.doubles import as_evaluator, register

LOOKS = 30
"""Looks at the nodes until a probe is measured; a bad node has lost its probe at the next look."""


class Imagined:
    """An allocation whose fate the test decides."""

    def __init__(self, source: NodeSource, name: str, folder: Path) -> None:
        self.name, self.nodes, self.job_id = name, source.nodes, "7"
        self.excluded = source.excluded
        self.hosts = tuple(f"n{number}" for number in range(1, 1 + source.nodes))
        self.queued_s = 0.0
        self.ready_s: float | None = None
        self.ended_s: float | None = None
        self.end_s: float | None = None
        self.why = self.waits_for = ""
        self.is_given_back = False

    def start(self, placed: Placed) -> None:
        placed.task = Future()

    def give_back(self) -> None:
        self.is_given_back = True

    def wait(self, timeout_s: float) -> bool:
        return self.is_given_back

    def begin(self, *, end_s: float | None = None) -> None:
        self.ready_s, self.end_s = 1.0, end_s

    def end(self, why: str = "it has ended") -> None:
        self.ended_s, self.why = 2.0, why


class World:
    """Nodes by number, from n1 on, of which the `bad` lose all probes before their first step.

    Every node loses the recipe `deadly` as well, after a step with `after_step`. `ran` has the
    order and the nodes of each attempt. A node is bad as well once it has measured `lasts` probes.
    With `fresh_nodes` each allocation has nodes of its own, as where a batch system excludes the
    others.
    """

    def __init__(
        self,
        *,
        nodes: int,
        bad: Collection[str] = (),
        deadly: Recipe | None = None,
        after_step: bool = False,
        fresh_nodes: bool = False,
        lasts: float = math.inf,
    ) -> None:
        self.nodes = nodes
        self.bad = bad
        self.deadly = deadly
        self.after_step = after_step
        self.fresh_nodes = fresh_nodes
        self.lasts = lasts
        self.measured: Counter[str] = Counter()
        self.allocations: list[ImaginedJob] = []
        self.orders: dict[str, ProbeOrder] = {}
        self.ran: list[tuple[ProbeOrder, tuple[str, ...]]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Register an evaluator `imagined` that runs probes on these nodes."""
        monkeypatch.setattr(parsl_allocation, "ParslAllocation", self._request)
        monkeypatch.setattr(dispatched, "LAST_FILES_S", 0.0)
        settings = DispatchSettings(backend="parsl", scheduler="slurm", walltime="01:00:00")
        source = NodeSource(
            backend="parsl",
            scheduler="slurm",
            nodes=self.nodes,
            allocations=1,
            launcher="srun",
            settings=settings,
        )

        def make(setup: ProbeSetup) -> Probes:
            return Probes(ImaginedProgram(setup, self), ImaginedNodes(setup, source, self))

        register(monkeypatch, EVALUATORS, "imagined", make, as_evaluator)

    def _request(self, source: NodeSource, name: str, folder: Path) -> ImaginedJob:
        first = 1 + len(self.allocations) * self.nodes * self.fresh_nodes
        job = ImaginedJob(source, name, folder)
        job.hosts = tuple(f"n{number}" for number in range(first, first + self.nodes))
        job.world = self
        job.begin()
        self.allocations.append(job)
        return job

    def loses(self, step: Step) -> bool:
        """Return whether a step is lost."""
        is_deadly = self.orders[step.token].recipe == self.deadly
        return is_deadly or any(self.is_bad(host) for host in step.hosts)

    def is_bad(self, host: str) -> bool:
        """Return whether a node loses all probes; all nodes are bad where "*" is."""
        return host in self.bad or "*" in self.bad or self.measured[host] >= self.lasts


class ImaginedJob(Imagined):
    """An allocation whose steps take `LOOKS` looks, unless they are lost at once."""

    world: World

    def __init__(self, source: NodeSource, name: str, folder: Path) -> None:
        super().__init__(source, name, folder)
        self._running: list[tuple[Placed, Step, list[None]]] = []

    def start(self, placed: Placed) -> None:
        super().start(placed)
        step = Step.read(placed.step)
        self.world.ran.append((self.world.orders[step.token], step.hosts))
        self._running.append((placed, step, [None] * LOOKS))

    def look(self) -> None:
        """Let one moment pass."""
        for running in list(self._running):
            placed, step, looks_left = running
            is_lost = self.world.loses(step)
            if not is_lost and looks_left:
                looks_left.pop()
                continue
            self._running.remove(running)
            for number, host in enumerate(step.hosts):
                begins = self.world.after_step if is_lost else True
                if begins and not self.world.is_bad(host):
                    report = NodeReport(node=number, host=host, running=True, ended=not is_lost)
                    StepFolder(placed.step.parent).write_report(report)
            if not is_lost:
                self.world.measured.update(step.hosts)
            assert placed.task is not None
            placed.task.set_result(int(is_lost))


class ImaginedNodes(SourceNodes):
    """Nodes on which time passes from look to look."""

    def __init__(self, setup: ProbeSetup, source: NodeSource, world: World) -> None:
        super().__init__(setup, source, ServerSettings())
        self._world = world

    def poll(self, timeout_s: float) -> None:
        """Let a moment pass."""
        for allocation in self._world.allocations:
            allocation.look()


class ImaginedProgram(Program):
    """A program of which an attempt that is not lost is measured, as simulated."""

    def __init__(self, setup: ProbeSetup, world: World) -> None:
        super().__init__(setup)
        self._world = world

    def why_refused(self, order: ProbeOrder) -> None:
        return None

    def prepare(self, order: ProbeOrder) -> Start:
        self._world.orders[order.token] = order
        order.run_folder.mkdir(parents=True, exist_ok=True)
        return Start(kind=ProcessKind.COMMAND)

    def watch(self, order: ProbeOrder, processes: Any) -> Watch:
        return ImaginedWatch(order, self.setup, processes)


class ImaginedWatch(Watch):
    """Has seen a step once each node has begun."""

    def look(self) -> bool:
        self.processes.read()
        self.note_begin()
        if not self.processes.have_ended:
            has_begun = self.began_s is not None
            self.lost = self.processes.why_lost(have_begun=has_begun, have_ended=False)
        return self.lost is not None or self.processes.have_ended

    def outcome(self) -> Outcome:
        if self.lost is None:
            return simulate(self.order.recipe, self.setup)
        return Failure(kind=FailureKind.LOST, message=self.lost)

    @property
    def progress(self) -> Progress:
        done = int(self.began_s is not None)
        return Progress(phase="stepping", steps_done=done, steps_total=3, node_seconds=0.0)
