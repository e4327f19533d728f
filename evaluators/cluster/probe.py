"""Training probe on many nodes: the same ranks and verdicts as on one machine, as steps of allocations."""

from __future__ import annotations

import os
import re
import time

from frontrunner.evaluators.cluster.agent import Heartbeat, NodeReport, Step, StepFolder
from frontrunner.evaluators.cluster.allocations import HeldAllocation, Placed, Pool, Waiting
from frontrunner.evaluators.cluster.settings import NodeSource
from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.job import disk_folder, probe_job
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.watch import RankedProbes, RankWatch, rank_environment, write_job
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup
from frontrunner.spaces.errors import bad_value

POLL_S = 0.25
CLOSE_S = 10.0
"""How long steps that are cancelled at the end have to leave their nodes before these are given back."""
START_TIMEOUT_S = 300.0
"""Until every node has forked its ranks: a launcher and an import of torch from a busy file system take a minute."""
LAST_FILES_S = 6.0
"""How long a network file system may take to show what a node wrote last."""
VERDICT_S = 12.0
"""How long the batch system may take to report why it has ended a step."""
SILENCE_S = 60.0
"""By default: how long a probe's nodes go on without a heartbeat of the driver."""
LONGER_SHARE = 1.5
"""Assumed: a probe takes at most this many times the longest before it."""
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


class StepWatch(RankWatch):
    """A watch whose ranks are on other nodes: it reads their reports from files, and a file ends them."""

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, placed: Placed) -> None:
        super().__init__(order, setup)
        self.placed = placed
        self._files = StepFolder(order.run_folder)
        self._reports: dict[int, NodeReport] = {}
        self._placed_s = time.monotonic()
        self._first_report_s: float | None = None
        self._interrupted: NodeReport | None = None
        self._over_s: float | None = None
        self.lost_log = self._files.launcher_log

    @property
    def seconds(self) -> float:
        """Time since the step began on its nodes; 0 before."""
        return 0.0 if self._first_report_s is None else time.monotonic() - self._first_report_s

    @property
    def kernel_oom_kills(self) -> int:
        """Processes that the kernels of the step's nodes killed for memory meanwhile."""
        return sum(report.oom_kills for report in self._reports.values())

    @property
    def is_cut(self) -> bool:  # type: ignore[override]
        """Whether the machine was taken away during the probe."""
        return self.lost is not None and (self._interrupted is not None or self.placed.allocation.ended_s is not None)

    @property
    def has_ended(self) -> bool:
        """Return whether every rank has, or those that are left cannot be; not before it is known who ended them."""
        if self._interrupted is not None and not self._all_succeeded:
            return self.lost is not None
        return super().has_ended

    @property
    def _all_succeeded(self) -> bool:
        return self.have_all_ended and not any(self.statuses.values())

    def look(self) -> bool:
        """Read the nodes' reports, end what is overdue, and find out what happened to a silent step."""
        self._read_reports()
        super().look()
        if not self._all_succeeded:
            self._find_loss()
        return self.has_ended

    def end(self) -> None:
        """Have every node end its ranks."""
        super().end()
        self._files.cancel()

    def _read_reports(self) -> None:
        now = time.monotonic()
        for node in range(self.placed.nodes):
            report = self._files.report(node)
            if report is None:
                continue
            self._reports[node] = report
            self._first_report_s = self._first_report_s or now
            for rank in report.statuses.keys() - self.statuses.keys():
                self.rank_ended(rank, report.statuses[rank])
            self.killed.update(report.killed)
            if report.interrupted is not None:
                self._interrupted = self._interrupted or report
        reports = self._reports.values()
        if self.began_s is None and len(reports) == self.placed.nodes and all(report.running for report in reports):
            self.begin()

    def _find_loss(self) -> None:
        placed, now = self.placed, time.monotonic()
        if self._interrupted is None and (self.have_all_ended or not placed.is_over):
            if self.began_s is None and now - self._placed_s > START_TIMEOUT_S:
                self.lost = f"its {placed.nodes} nodes had not all begun within {START_TIMEOUT_S:g} s"
                self.end()
            return
        self._over_s = self._over_s or now
        is_explained = self._interrupted is not None and placed.allocation.ended_s is not None
        if is_explained or now - self._over_s > (LAST_FILES_S if self._interrupted is None else VERDICT_S):
            self.lost = self._why_over()

    def _why_over(self) -> str:
        if self.placed.allocation.ended_s is not None:
            return self.placed.allocation.why
        if self._interrupted is not None:
            return f"node {self._interrupted.host} was told to end ({self._interrupted.interrupted})"
        for report in self._reports.values():
            if report.trouble is not None:
                return f"node {report.host}: {report.trouble}"
        task, output = self.placed.task, tail(self._files.launcher_log, 1)
        if task is None or task.exception() is not None:
            return f"the step was lost: {task and task.exception()}"
        return f"the launcher ended with status {task.result()}" + (f": {output}" if output else "")


class DispatchedProbe(RankedProbes[StepWatch]):
    """The `Evaluator` that trains on the nodes of a source; orders wait in it until nodes are free."""

    _poll_s = POLL_S

    def __init__(self, setup: ProbeSetup, source: NodeSource) -> None:
        super().__init__(setup)
        self.measures_here = source.held is not None  # the driver may be on one of its own job's nodes
        folder = setup.work_folder.resolve() / "dispatch" / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        if not _PLAIN_PATH.fullmatch(str(folder)):  # Parsl submits scripts through a shell, by unquoted paths
            expected = "a path of letters, digits and _@%+=:,./-, which Parsl hands to a shell as it is"
            raise bad_value("store.run_folder", str(folder), expected)
        self._lifeline = folder / "lifeline"
        self._heartbeat = Heartbeat(self._lifeline)
        self._pool = Pool(source, folder)
        self._longest_s: float | None = None

    def _poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)
        waiting = [
            Waiting(token, nodes_used(order.recipe, self._setup.problem), self._expected_s)
            for token, (order, _) in self._waiting.items()
        ]
        for token, allocation in self._pool.place(waiting, time.monotonic()).items():
            self._begin(self._waiting.pop(token)[0], allocation)

    @property
    def _expected_s(self) -> float:
        deadline_s = self._setup.probe.deadline_s
        return deadline_s if self._longest_s is None else min(deadline_s, LONGER_SHARE * self._longest_s)

    def _begin(self, order: ProbeOrder, allocation: HeldAllocation) -> None:
        setup, settings = self._setup, self._setup.dispatch
        nodes = nodes_used(order.recipe, setup.problem)
        write_job(order, probe_job(setup, order.recipe, order.run_folder, self.tokens), setup)
        StepFolder(order.run_folder).prepare(nodes)
        scratch = disk_folder(setup, order.recipe, order.run_folder)
        environment = rank_environment(setup)
        if nodes > 1:
            environment.pop("GLOO_SOCKET_IFNAME", None)  # the loopback connects only this node's ranks
        if (interface := settings.network_interface) is not None:
            environment |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        step = Step(
            token=order.token,
            run_folder=str(order.run_folder.resolve()),
            world_size=order.recipe.devices,
            nodes=nodes,
            ranks_per_node=setup.problem.cluster.devices_per_node,
            engines=setup.engines,
            environment=environment,
            deadline_s=setup.probe.deadline_s + START_TIMEOUT_S,
            lifeline=str(self._lifeline),
            silence_s=settings.lifeline_s or SILENCE_S,
            scratch=None if scratch is None else str(scratch),
        ).write()
        expected_end_s = time.monotonic() + self._expected_s
        placed = self._pool.start(step, allocation, nodes=nodes, expected_end_s=expected_end_s)
        self._running[order.token] = StepWatch(order, setup, placed)

    def _conclude(self, watch: StepWatch) -> Finished:
        if watch.lost is None:
            self._longest_s = max(self._longest_s or 0.0, watch.seconds)
        return super()._conclude(watch)

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for nodes; with the last of them withdraw the requests for more nodes."""
        was_waiting = super().withdraw(token)
        if was_waiting and not self._waiting:
            self._pool.withdraw_requests()
        return was_waiting

    def close(self) -> None:
        """End every step, and give the nodes back."""
        for watch in self._running.values():
            watch.end()
        end_s = time.monotonic() + CLOSE_S
        while time.monotonic() < end_s and not all(w.placed.is_over for w in self._running.values()):
            time.sleep(POLL_S)
        self._heartbeat.stop()
        self._pool.close()
