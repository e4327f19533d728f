"""Probes: the evaluator that runs a program for each recipe, until its step time is known."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from frontrunner.evaluators.nodes.base import Nodes
from frontrunner.evaluators.nodes.dispatched import SourceNodes
from frontrunner.evaluators.nodes.local import ThisMachine
from frontrunner.evaluators.nodes.settings import NodeSource
from frontrunner.evaluators.programs.base import Program, Watch, written
from frontrunner.evaluators.protocol import (
    QUEUED,
    Evaluator,
    Finished,
    NodeCheck,
    ProbeOrder,
    Progress,
)
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Outcome


class Probes(Evaluator):
    """The `Evaluator` that runs a program on nodes, with which it ends."""

    def __init__(self, program: Program, nodes: Nodes) -> None:
        self.program, self.nodes = program, nodes
        self.measures_here = nodes.are_local
        self._waiting: dict[str, ProbeOrder] = {}
        self._running: dict[str, Watch] = {}
        self._refused: list[Finished] = []

    def start(self, order: ProbeOrder) -> None:
        """Accept an order, and start it at once where there is room."""
        failure = self.program.why_refused(order)
        if failure is None:
            self._waiting[order.token] = order
            if self.nodes.starts_at_once:
                self._start_waiting()
            return
        order.run_folder.mkdir(parents=True, exist_ok=True)
        outcome = written(RunFolder(order.run_folder), failure)
        self._refused.append(Finished(token=order.token, outcome=outcome))

    def _start_waiting(self) -> None:
        for token in self.nodes.place(self._waiting.values()):
            order = self._waiting.pop(token)
            processes = self.nodes.start(order, self.program.prepare(order))
            self._running[token] = self.program.watch(order, processes)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running probes for up to `timeout_s`, or until one of them has ended."""
        end_s = time.monotonic() + (0.0 if self._refused else timeout_s)
        while True:
            self._start_waiting()
            self.nodes.poll(max(0.0, min(self.nodes.poll_s, end_s - time.monotonic())))
            ended = [token for token, watch in self._running.items() if watch.look()]
            if ended or time.monotonic() >= end_s:
                break
        refused, self._refused = self._refused, []
        return [*refused, *(self._conclude(self._running.pop(token)) for token in ended)]

    def _conclude(self, watch: Watch) -> Finished:
        processes = watch.processes
        processes.close()
        self.nodes.forget(processes)
        if watch.lost is None:
            self.nodes.note(watch.seconds)
        watch.folder.remove_unfinished()
        return Finished(
            token=watch.order.token,
            outcome=written(watch.folder, watch.outcome()),
            is_cut=watch.is_cut,
            blames_nodes=processes.blames_nodes,
            has_stepped=watch.progress.steps_done > 0,
        )

    def progress(self, token: str) -> Progress | None:
        """Return phase and steps of a probe; one that waits has spent nothing."""
        if token in self._waiting:
            most_steps = self.program.setup.probe.most_steps
            return Progress(phase=QUEUED, steps_done=0, steps_total=most_steps, node_seconds=0.0)
        return self._running[token].progress if token in self._running else None

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits; with the last of them, the requests for more nodes."""
        if self._waiting.pop(token, None) is None:
            return False
        if not self._waiting:
            self.nodes.withdraw_requests()
        return True

    def avoid_nodes(self, aside: Mapping[str, str], *, due: Collection[str]) -> None:
        """See `Evaluator`."""
        self.nodes.avoid(aside, due=due)

    def checked_nodes(self) -> list[NodeCheck]:
        """See `Evaluator`."""
        return self.nodes.checked()

    @property
    def waits_for(self) -> str:
        """See `Evaluator`."""
        return self.nodes.waits_for if self._waiting else ""

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or what the processes had finished measuring when their
        driver died.
        """
        self.nodes.remove(self.program.scratch(order))
        return self.program.harvest(order)

    def close(self) -> None:
        """End what still runs, and every process behind it."""
        for watch in self._running.values():
            watch.end()
        self.nodes.close([watch.processes for watch in self._running.values()])


def probes_on(source: NodeSource | None, program: Program) -> Probes:
    """Return the evaluator of a program on the nodes of a source, or on this machine for None."""
    setup = program.setup
    if source is not None:
        return Probes(program, SourceNodes(setup, source, program.server))
    return Probes(program, ThisMachine(setup.work_folder, program.server))
