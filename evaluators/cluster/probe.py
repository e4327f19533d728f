"""Training probe on many nodes: the same ranks and verdicts as on one machine, as steps of
allocations.
"""

from __future__ import annotations

from frontrunner.evaluators.cluster.allocations import HeldAllocation, Placed
from frontrunner.evaluators.cluster.settings import NodeSource
from frontrunner.evaluators.cluster.steps import Dispatched, OnNodes, StepNodes
from frontrunner.evaluators.probe.job import MakeJob, disk_folder, probe_job
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.watch import (
    RankedProbes,
    RankWatch,
    rank_environment,
    write_job,
)
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.spaces.recipe import Recipe


class StepWatch(OnNodes, RankWatch):
    """Follows the ranks of a step."""

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, placed: Placed) -> None:
        super().__init__(order, setup)
        self.nodes = StepNodes(order.run_folder, placed)
        self.lost_log = self.nodes.launcher_log

    @property
    def has_ended(self) -> bool:
        """Return whether every rank has, or those that are left cannot be; not before it is known
        who ended them.
        """
        if self.nodes.interrupted is not None and not self.have_succeeded:
            return self.lost is not None
        return super().has_ended

    @property
    def have_succeeded(self) -> bool:
        """Return whether every rank ended well."""
        return self.have_all_ended and not any(self.statuses.values())

    def look(self) -> bool:
        """Read the nodes' reports, end what is overdue, and find out what happened to a silent
        step.
        """
        self._read_reports()
        super().look()
        if not self.have_succeeded and self.lost is None:
            self.lost = self.nodes.why_lost(
                have_begun=self.began_s is not None, have_ended=self.have_all_ended
            )
        return self.has_ended

    def end(self) -> None:
        """Have every node end its ranks."""
        super().end()
        self.nodes.cancel()

    def _read_reports(self) -> None:
        self.nodes.read()
        for report in self.nodes.reports.values():
            for rank in report.statuses.keys() - self.statuses.keys():
                self.rank_ended(rank, report.statuses[rank])
            self.killed.update(report.killed)
        if self.began_s is None and self.nodes.are_running:
            self.begin()


def environment_on_nodes(setup: ProbeSetup, recipe: Recipe) -> dict[str, str]:
    """Return the environment of a recipe's ranks on the nodes of a source."""
    environment = rank_environment(setup)
    if nodes_used(recipe, setup.problem) > 1:
        environment.pop("GLOO_SOCKET_IFNAME", None)  # the loopback connects only this node's ranks
    return environment


class DispatchedProbe(Dispatched[StepWatch], RankedProbes[StepWatch]):
    """The `Evaluator` that trains on the nodes of a source."""

    def __init__(
        self, setup: ProbeSetup, source: NodeSource, make_job: MakeJob = probe_job
    ) -> None:
        super().__init__(setup, source)
        self._make_job = make_job

    def _begin(self, order: ProbeOrder, allocation: HeldAllocation) -> StepWatch:
        setup = self._setup
        write_job(order, self._make_job(setup, order.recipe, order.run_folder, self.tokens), setup)
        environment = environment_on_nodes(setup, order.recipe)
        scratch = disk_folder(setup, order.recipe, order.run_folder)
        placed = self._dispatcher.start(order, allocation, environment=environment, scratch=scratch)
        return StepWatch(order, setup, placed)
