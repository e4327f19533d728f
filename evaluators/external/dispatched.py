"""Evaluator that runs commands on the nodes of a source, as steps of allocations."""

from __future__ import annotations

import time

from frontrunner.evaluators.cluster.allocations import HeldAllocation, Placed
from frontrunner.evaluators.cluster.steps import Dispatched, Dispatcher, OnNodes, StepNodes
from frontrunner.evaluators.external.command import Command
from frontrunner.evaluators.external.evaluator import CommandProbes
from frontrunner.evaluators.external.supervisor import END_S, ENDED, LOG, of_node
from frontrunner.evaluators.external.watch import CommandWatch
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.processes import PEER_GRACE_S
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup

AGENT = "frontrunner.evaluators.external.agent"
END_GRACE_S = END_S + 10.0
"""How long nodes may take to end a command: their supervisors, a look at the shared file system,
and its delays.
"""


class StepCommand(OnNodes, CommandWatch):
    """Follows a command on the nodes of a step."""

    def __init__(
        self, order: ProbeOrder, setup: ProbeSetup, command: Command, placed: Placed
    ) -> None:
        super().__init__(order, setup, command, placed.nodes)
        self.nodes = StepNodes(order.run_folder, placed)
        self.lost_log = self.nodes.launcher_log
        self._failed_s: float | None = None

    @property
    def running(self) -> set[int]:
        """Return the nodes whose command has not ended."""
        ended = {node for node, report in self.nodes.reports.items() if report.statuses}
        return set(range(self.nodes.placed.nodes)) - ended

    def look(self) -> bool:
        """Read the nodes' reports and logs, end what is overdue, and return whether the command has
        ended.
        """
        self.nodes.read()
        if self.began_s is None and self.nodes.are_running:
            self.begin()
        reports = self.nodes.reports.values()
        have_ended = len(reports) == self.nodes.placed.nodes and all(
            report.ended for report in reports
        )
        self.follow()
        statuses = [status for report in reports for status in report.statuses.values()]
        self.killed.update(node for report in reports for node in report.killed)
        if any(statuses):
            self._failed_s = self._failed_s or time.monotonic()
        is_over = self._failed_s is not None and time.monotonic() - self._failed_s > PEER_GRACE_S
        if is_over and not self.is_stopping:
            self.end()
        self.lost = next(
            (f"node {one.host}: {one.trouble}" for one in reports if one.trouble is not None), None
        )
        was_interrupted = (
            self.nodes.interrupted is not None and not self.is_measured and any(statuses)
        )
        if have_ended and not was_interrupted:
            return True
        self.lost = self.nodes.why_lost(have_begun=self.began_s is not None, have_ended=have_ended)
        late_s = (
            0.0
            if self.end_requested_s is None
            else time.monotonic() - self.end_requested_s - END_GRACE_S
        )
        if self.lost is None and late_s > 0:
            self.lost = f"the command had not ended on each of its nodes within {END_GRACE_S:g} s"
        return self.lost is not None

    def end(self) -> None:
        """Have every node end the command."""
        super().end()
        self.nodes.cancel()


class DispatchedCommands(Dispatched[StepCommand], CommandProbes[StepCommand]):
    """The `Evaluator` that runs commands on the nodes of a source."""

    def _begin(self, order: ProbeOrder, allocation: HeldAllocation) -> StepCommand:
        return start_on_nodes(
            self._dispatcher, order, self._setup, self._commands.pop(order.token), allocation
        )


def start_on_nodes(
    dispatcher: Dispatcher,
    order: ProbeOrder,
    setup: ProbeSetup,
    command: Command,
    allocation: HeldAllocation,
) -> StepCommand:
    """Start the command of an order, which `write_run` has written, on nodes of the allocation."""
    for node in range(nodes_used(order.recipe, setup.problem)):
        for name in (LOG, ENDED):
            (order.run_folder / of_node(name, node)).touch()
    placed = dispatcher.start(order, allocation, environment={}, agent=AGENT)
    return StepCommand(order, setup, command, placed)
