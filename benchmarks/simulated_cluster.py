"""A cluster that is simulated in time: nodes in allocations that end, probes that fail, straggle
and are cut off.

It keeps the contract of `Evaluator`, so that the real driver runs on it. Its clock is virtual:
`finished` goes on to the next moment at which a probe or an allocation ends, however far away that
is. Which probe starts where is decided by `evaluators/nodes/allocations.py`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.nodes.allocations import Occupied, Room, Waiting, place
from frontrunner.evaluators.protocol import (
    QUEUED,
    Evaluator,
    Finished,
    ProbeOrder,
    ProbeSetup,
    Progress,
)
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Outcome


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The cluster's and its probes' chances.

    `walltime_s` bounds an allocation's length, `probe_s` a probe's. Of all probes the shares
    `crashes`, `node_losses` and `stragglers` end early by their own fault, lose a node, and take
    `straggling` times as long as expected.
    """

    nodes: int = 1000
    allocations: int = 5
    walltime_s: tuple[float, float] = (3600.0, 14400.0)
    probe_s: tuple[float, float] = (60.0, 600.0)
    crashes: float = 0.03
    node_losses: float = 0.01
    stragglers: float = 0.02
    straggling: float = 4.0


@dataclass(kw_only=True)
class Running:
    """A probe that holds nodes: since when, how long it is expected to, and what becomes of it if
    nothing cuts it.
    """

    order: ProbeOrder
    allocation_id: str
    nodes: int
    began_s: float
    expected_end_s: float
    outcome: Outcome


@dataclass(kw_only=True)
class Record:
    """What happened, for the benchmark to judge. Node-seconds are those that probes held, by any
    end.
    """

    cpu_s: float = 0.0
    packing_s: float = 0.0
    node_seconds_held: float = 0.0
    longest_probe_s: float = 0.0
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    cut_by_walltime: int = 0
    lost_nodes: int = 0
    allocations: int = 0
    on_end: Callable[[], None] = lambda: None


class SimulatedCluster(Evaluator):
    """The `Evaluator` of such a cluster. `now_s` is its clock; `record` outlives it."""

    def __init__(self, setup: ProbeSetup, settings: ClusterSettings, record: Record) -> None:
        self._setup, self._settings, self.record = setup, settings, record
        self._draw = random.Random(setup.seed)
        self._names = itertools.count(1)
        self._waiting: dict[str, tuple[Waiting, ProbeOrder]] = {}
        self._running: dict[str, Running] = {}
        self._ends: list[tuple[float, int, str]] = []
        self._allocations: dict[str, tuple[int, float]] = {}
        self.now_s = 0.0
        for number in range(settings.allocations):
            self._allocate(
                settings.nodes // settings.allocations, first=number / settings.allocations
            )

    def start(self, order: ProbeOrder) -> None:
        """Queue an order."""
        with self._counted():
            expected_s = self._draw.uniform(*self._settings.probe_s)
            nodes = nodes_used(order.recipe, self._setup.problem)
            waiting = Waiting(token=order.token, nodes=nodes, expected_s=expected_s)
            self._waiting[order.token] = waiting, order
            self.record.started.append(order.token)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Place what fits and go on to the next end; an idle cluster waits, as a real one would."""
        with self._counted():
            self._place()
            done = self._advance()
        if not done and not self._running:
            time.sleep(timeout_s)
        return done

    def progress(self, token: str) -> Progress | None:
        """Queued or stepping."""
        phase = QUEUED if token in self._waiting else "stepping" if token in self._running else None
        return None if phase is None else Progress(phase=phase, steps_done=0, steps_total=1)

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """The outcome on disk, or None."""
        return RunFolder(order.run_folder).outcome()

    def close(self) -> None:
        """Forget what waits and runs."""
        self._waiting.clear()
        self._running.clear()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.record.cpu_s += time.process_time() - began_s

    def _allocate(self, nodes: int, *, first: float = 1.0) -> None:
        """A new allocation, and its end as an event; the first ones are `first` times as long, so
        that ends differ.
        """
        name = f"job-{next(self._names)}"
        end_s = self.now_s + self._draw.uniform(*self._settings.walltime_s) * (0.5 + 0.5 * first)
        self._allocations[name] = nodes, end_s
        self.record.allocations += 1
        heapq.heappush(self._ends, (end_s, 1, name))

    def _place(self) -> None:
        began_s = time.process_time()
        occupied: dict[str, list[Occupied]] = {name: [] for name in self._allocations}
        for running in self._running.values():
            held = Occupied(nodes=running.nodes, expected_end_s=running.expected_end_s)
            occupied[running.allocation_id].append(held)
        rooms = [
            Room(name=name, nodes=nodes, end_s=end_s, occupied=occupied[name])
            for name, (nodes, end_s) in self._allocations.items()
        ]
        placed = place([waiting for waiting, _ in self._waiting.values()], rooms, self.now_s)
        self.record.packing_s += time.process_time() - began_s
        for token, allocation in placed.items():
            self._run(token, allocation)

    def _run(self, token: str, allocation: str) -> None:
        waiting, order = self._waiting.pop(token)
        outcome, seconds = self._fate(order, waiting.expected_s)
        self._running[token] = Running(
            order=order,
            allocation_id=allocation,
            nodes=waiting.nodes,
            began_s=self.now_s,
            expected_end_s=self.now_s + waiting.expected_s,
            outcome=outcome,
        )
        heapq.heappush(self._ends, (self.now_s + seconds, 0, token))

    def _fate(self, order: ProbeOrder, expected_s: float) -> tuple[Outcome, float]:
        """What becomes of a probe and after how many seconds, should its allocation last as
        long.
        """
        chance, chances = self._draw.random(), self._settings
        if chance < chances.crashes:
            failure = Failure(
                kind=FailureKind.CRASHED, message="simulated: a rank ended with an error"
            )
            return failure, expected_s * self._draw.random()
        if chance < chances.crashes + chances.node_losses:
            self.record.lost_nodes += 1
            return Failure(
                kind=FailureKind.LOST, message="simulated: a node went down"
            ), expected_s * self._draw.random()
        is_straggler = chance > 1 - chances.stragglers
        stretch = chances.straggling if is_straggler else self._draw.uniform(0.7, 1.0)
        return simulate(order.recipe, self._setup), expected_s * stretch

    def _advance(self) -> list[Finished]:
        """Go on to the next end and take all ends of that moment; an allocation's end cuts what
        runs in it.
        """
        done: list[Finished] = []
        while self._ends and not done and self._running:
            self.now_s = self._ends[0][0]
            while self._ends and self._ends[0][0] <= self.now_s:
                _, is_allocation, name = heapq.heappop(self._ends)
                done += self._end_of_allocation(name) if is_allocation else self._end_of_probe(name)
        return done

    def _end_of_probe(self, token: str) -> list[Finished]:
        running = self._running.pop(token, None)
        return [] if running is None else [self._finish(running, running.outcome)]

    def _end_of_allocation(self, name: str) -> list[Finished]:
        nodes, _ = self._allocations.pop(name)
        self._allocate(nodes)
        cut = [running for running in self._running.values() if running.allocation_id == name]
        self.record.cut_by_walltime += len(cut)
        lost = Failure(kind=FailureKind.LOST, message="simulated: the allocation ended")
        return [self._finish(self._running.pop(running.order.token), lost) for running in cut]

    def _finish(self, running: Running, outcome: Outcome) -> Finished:
        seconds = self.now_s - running.began_s
        self.record.node_seconds_held += seconds * running.nodes
        self.record.longest_probe_s = max(self.record.longest_probe_s, seconds)
        self.record.finished.append(running.order.token)
        self.record.on_end()
        spent = replace(outcome, node_seconds=seconds * running.nodes)
        RunFolder(running.order.run_folder).write_outcome(spent)
        return Finished(token=running.order.token, outcome=spent)
