"""Training probe on many nodes: the same ranks and verdicts as on one machine, as steps of allocations."""

from __future__ import annotations

import itertools
import os
import re
import time
from dataclasses import replace

from frontrunner.evaluators.cluster.allocations import HeldAllocation, Placed, Pool
from frontrunner.evaluators.cluster.packing import Waiting
from frontrunner.evaluators.cluster.settings import NodeSource
from frontrunner.evaluators.cluster.step import Heartbeat, NodeReport, Step, StepFolder
from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.job import corpus, disk_folder, probe_job
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.probe.training_probe import rank_environment
from frontrunner.evaluators.probe.watch import Watch, conclude, harvest, write_job
from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Outcome
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
LONGER_SHARE = 1.5
"""Assumed: a probe takes at most this many times the longest before it."""
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


class StepWatch(Watch):
    """A watch whose ranks are on other nodes: it reads their reports from files, and a file ends them."""

    def __init__(self, order: ProbeOrder, settings: ProbeSettings, placed: Placed, nodes: int) -> None:
        super().__init__(order, settings)
        self.placed = placed
        self._folder = StepFolder(order.run_folder)
        self._reports: dict[int, NodeReport] = {}
        self._nodes = nodes
        self._placed_s = time.monotonic()
        self._first_report_s: float | None = None
        self._interrupted_s: float | None = None
        self._over_s: float | None = None

    @property
    def seconds(self) -> float:
        """Return the time since the step began on its nodes; 0 before."""
        return 0.0 if self._first_report_s is None else time.monotonic() - self._first_report_s

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernels of the step's nodes killed for memory meanwhile."""
        return sum(report.oom_kills for report in self._reports.values())

    @property
    def is_cut(self) -> bool:
        """Return whether the machine was taken away during the probe."""
        return self.lost is not None and (self._interrupted_s is not None or self.placed.allocation.ended_s is not None)

    @property
    def has_ended(self) -> bool:
        """Return whether every rank has, or those that are left cannot be; not before it is known who ended them."""
        if self._interrupted_s is not None and not self._all_succeeded:
            return self.lost is not None
        return super().has_ended

    @property
    def _all_succeeded(self) -> bool:
        """Return whether every rank has ended well: whatever happens later does not matter."""
        return len(self.statuses) == self.order.recipe.devices and not any(self.statuses.values())

    def follow(self) -> None:
        """Read the nodes' reports, end what is overdue, and find out what happened to a silent step."""
        self._read_reports()
        if list(self.look()):
            self.cancel()
        if not self._all_succeeded:
            self._judge(time.monotonic())

    def cancel(self) -> None:
        """Have every node end its ranks."""
        self._folder.raise_flag(self._folder.cancel)

    def _read_reports(self) -> None:
        for node in range(self._nodes):
            report = self._folder.report(node)
            if report is None or report == self._reports.get(node):
                continue
            self._reports[node] = report
            for rank, status in report.statuses.items():
                if rank not in self.statuses:
                    self.rank_ended(rank, status)
            self.killed.update(report.killed)
            if report.interrupted is not None and self._interrupted_s is None:
                self._interrupted_s = time.monotonic()
        if self._reports and self._first_report_s is None:
            self._first_report_s = time.monotonic()
        if len(self._reports) == self._nodes and not self._pids and all(r.running for r in self._reports.values()):
            self.began(tuple(range(self.order.recipe.devices)))  # only the agents know the process ids

    def _judge(self, now_s: float) -> None:
        """Set `lost` if the ranks can no longer report what happened to them."""
        allocation = self.placed.allocation
        is_complete = len(self.statuses) == self.order.recipe.devices
        if self._interrupted_s is not None:
            if allocation.ended_s is not None:
                self.lost = allocation.why
            elif now_s - self._interrupted_s > VERDICT_S:
                report = next(report for report in self._reports.values() if report.interrupted is not None)
                self.lost = f"node {report.host} was told to end ({report.interrupted})"
        elif self.placed.future.done() and not is_complete:
            self._over_s = self._over_s or now_s
            if now_s - self._over_s > LAST_FILES_S:
                self.lost = self._why_over()
        elif not self._pids and now_s - self._placed_s > START_TIMEOUT_S:
            self.lost = f"its {self._nodes} nodes had not all begun within {START_TIMEOUT_S:g} s"
            self.cancel()

    def _why_over(self) -> str:
        if self.placed.allocation.ended_s is not None:
            return self.placed.allocation.why
        troubled = next((report for report in self._reports.values() if report.trouble is not None), None)
        if troubled is not None:
            return f"node {troubled.host}: {troubled.trouble}"
        error = self.placed.future.exception()
        if error is not None:
            return f"the step was lost: {error}"
        output = tail(self._folder.launcher_log, 1)
        return f"the launcher ended with status {self.placed.future.result()}" + (f": {output}" if output else "")


class DispatchedProbe:
    """The `Evaluator` that trains on the nodes of a source; orders wait in it until nodes are free."""

    def __init__(self, setup: ProbeSetup, source: NodeSource) -> None:
        """Create the token file if it does not exist yet; nodes are requested when there is an order.

        Raises `InvalidInput` for a run folder whose name Parsl could not pass on to a batch system.
        """
        self._setup = setup
        self.measures_here = source.held is not None  # the driver may be on one of its own job's nodes
        setup.work_folder.mkdir(parents=True, exist_ok=True)
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)
        folder = setup.work_folder.resolve() / "dispatch" / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        if not _PLAIN_PATH.fullmatch(str(folder)):  # Parsl submits scripts through a shell, by unquoted paths
            expected = "a path of letters, digits and _@%+=:,./-, which Parsl hands to a shell as it is"
            raise bad_value("store.run_folder", str(folder), expected)
        self._lifeline = folder / "lifeline"
        self._heartbeat = Heartbeat(self._lifeline)
        self._pool = Pool(source, folder)
        self._arrivals = itertools.count()
        self._queued: dict[str, tuple[ProbeOrder, int]] = {}  # order and arrival, by token
        self._running: dict[str, StepWatch] = {}
        self._longest_s: float | None = None

    def start(self, order: ProbeOrder) -> None:
        """Accept an order; it begins when nodes are free."""
        self._queued[order.token] = order, next(self._arrivals)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Place and watch probes for up to `timeout_s`, or until one of them has ended.

        Raises `NodesUnavailable` if allocations are refused, or are queued for longer than the campaign allows.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            self._place()
            for watch in self._running.values():
                watch.follow()
            ended = [token for token, watch in self._running.items() if watch.has_ended]
            left_s = end_s - time.monotonic()
            if ended or left_s <= 0:
                return [self._conclude(self._running.pop(token)) for token in ended]
            time.sleep(min(POLL_S, left_s))

    def _place(self) -> None:
        waiting = [
            Waiting(token=token, nodes=self._nodes(order), expected_s=self._expected_s, arrival=arrival)
            for token, (order, arrival) in self._queued.items()
        ]
        for token, allocation in self._pool.place(waiting, time.monotonic()).items():
            self._begin(self._queued.pop(token)[0], allocation)

    def _nodes(self, order: ProbeOrder) -> int:
        return nodes_used(order.recipe, self._setup.problem)

    @property
    def _expected_s(self) -> float:
        """Return how long a probe is expected to hold its nodes: at most its deadline, less by those before it."""
        deadline_s = self._setup.probe.deadline_s
        return deadline_s if self._longest_s is None else min(deadline_s, LONGER_SHARE * self._longest_s)

    def _begin(self, order: ProbeOrder, allocation: HeldAllocation) -> None:
        nodes = self._nodes(order)
        write_job(order, probe_job(self._setup, order.recipe, order.run_folder, self.tokens), self._setup)
        StepFolder(order.run_folder).prepare(nodes)
        step = self._step(order, nodes)
        step.write()
        expected_end_s = time.monotonic() + self._expected_s
        placed = self._pool.start(step.path, allocation, nodes=nodes, expected_end_s=expected_end_s)
        self._running[order.token] = StepWatch(order, self._setup.probe, placed, nodes)

    def _step(self, order: ProbeOrder, nodes: int) -> Step:
        setup, settings = self._setup, self._setup.dispatch
        scratch = disk_folder(setup, order.recipe, order.run_folder)
        environment = rank_environment(setup)
        if nodes > 1:
            environment.pop("GLOO_SOCKET_IFNAME", None)  # the loopback connects only this node's ranks
        if settings.network_interface is not None:
            names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            environment |= dict.fromkeys(names, settings.network_interface)
        return Step(
            token=order.token,
            run_folder=str(order.run_folder.resolve()),
            world_size=order.recipe.devices,
            nodes=nodes,
            ranks_per_node=setup.problem.cluster.devices_per_node,
            engines=setup.engines,
            environment=environment,
            deadline_s=setup.probe.deadline_s + START_TIMEOUT_S,
            lifeline=str(self._lifeline),
            silence_s=settings.silence_s,
            scratch=None if scratch is None else str(scratch),
        )

    def _conclude(self, watch: StepWatch) -> Finished:
        if watch.lost is None:
            self._longest_s = max(self._longest_s or 0.0, watch.seconds)
        log = StepFolder(watch.order.run_folder).launcher_log if watch.lost else None
        return replace(conclude(watch, self._setup, log=log), is_cut=watch.is_cut)

    def progress(self, token: str) -> Progress | None:
        """Return phase and steps of a probe under way, and what it has spent; one that waits has spent nothing."""
        watch = self._running.get(token)
        if watch is not None:
            return replace(watch.progress, node_seconds=self._nodes(watch.order) * watch.seconds)
        if token in self._queued:
            total = self._setup.probe.most_steps
            return Progress(phase=QUEUED, steps_done=0, steps_total=total, node_seconds=0.0)
        return None

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for nodes; with the last of them withdraw the requests for more nodes."""
        if self._queued.pop(token, None) is None:
            return False
        if not self._queued:
            self._pool.withdraw_requests()
        return True

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or what its ranks had finished measuring when their driver died."""
        return harvest(order, self._setup)

    def close(self) -> None:
        """End every step, and give the nodes back."""
        for watch in self._running.values():
            watch.cancel()
        end_s = time.monotonic() + CLOSE_S
        while time.monotonic() < end_s and not all(w.placed.future.done() for w in self._running.values()):
            time.sleep(POLL_S)
        self._heartbeat.stop()
        self._pool.close()
