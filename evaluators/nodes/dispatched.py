"""Nodes of a batch system or of Ray: when orders start on them, as steps of allocations, and what
the nodes report of these.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.agent import (
    Heartbeat,
    NodeReport,
    OrphanedSteps,
    Step,
    StepFolder,
)
from frontrunner.evaluators.nodes.allocations import Pool, Waiting
from frontrunner.evaluators.nodes.backends import HeldAllocation, Placed, backend_of
from frontrunner.evaluators.nodes.base import Left, Nodes, Processes, Start
from frontrunner.evaluators.nodes.fork_server import ProcessKind, ServerSettings
from frontrunner.evaluators.nodes.settings import NodeSource
from frontrunner.evaluators.protocol import NodeCheck, ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.files import tail, write_json
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.trainer.foreign_load import DRIVER
from frontrunner.spaces.errors import bad_value

POLL_S = 0.25
CLOSE_S = 10.0
"""How long steps that are cancelled at the end have to leave their nodes before these are given
back.
"""
START_TIMEOUT_S = 300.0
"""Until every node has started its part: a launcher and an import of torch from a busy file system
take a minute.
"""
LAST_FILES_S = 6.0
"""How long a network file system may take to show what a node wrote last."""
VERDICT_S = 12.0
"""How long the batch system may take to report why it has ended a step."""
CHECK_S = 240.0
"""How long the check of a node may take: it imports torch from a busy file system, and its ranks do
so again.
"""
DOCTOR_AGENT = "frontrunner.evaluators.diagnostics.doctor.node"
SILENCE_S = 60.0
"""By default: how long a probe's nodes go on without a heartbeat of the driver."""
LONGER_SHARE = 1.5
"""Assumed: a probe takes at most this many times the longest before it."""
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def expected_s(deadline_s: float, longest_s: float | None) -> float:
    """Return how long the next probe is expected to take, where the longest one took `longest_s`,
    or none has run.
    """
    return deadline_s if longest_s is None else min(deadline_s, LONGER_SHARE * longest_s)


class SourceNodes(Nodes):
    """The nodes of a source, on which orders start as steps once enough of them are free. The fork
    servers on them have the settings `server`.
    """

    poll_s = POLL_S

    def __init__(self, setup: ProbeSetup, source: NodeSource, server: ServerSettings) -> None:
        self.are_local = source.held is not None
        self.takes_others = source.held is None
        self._setup, self._server = setup, server
        self._backend = backend_of(source.backend)
        folder = (
            setup.work_folder.resolve()
            / "dispatch"
            / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        )
        if self._backend.has_plain_paths and not _PLAIN_PATH.fullmatch(str(folder)):
            expected = (
                "a path of letters, digits and _@%+=:,./-, which"
                f" {self._backend.title} hands to a shell as it is"
            )
            raise bad_value("store.run_folder", str(folder), expected)
        self._lifeline = folder / "lifeline"
        self._heartbeat = Heartbeat(self._lifeline)
        self._pool = Pool(source, folder)
        self._longest_s: float | None = None
        self._due: set[str] = set()
        self._placed: dict[str, tuple[HeldAllocation, tuple[str, ...]]] = {}
        self._checks: dict[str, CheckRun] = {}
        self._checked: list[NodeCheck] = []
        self._count = 0

    def poll(self, timeout_s: float) -> None:
        """Wait, and check the nodes that are due."""
        time.sleep(timeout_s)
        self._check_nodes()

    def place(self, orders: Iterable[ProbeOrder]) -> set[str]:
        """Return the tokens of the orders that an allocation has room for now; raise
        `NodesUnavailable`.
        """
        problem, expected_s = self._setup.problem, self._expected_s
        waiting = [
            Waiting(order.token, nodes_used(order.recipe, problem), expected_s, order.avoids)
            for order in orders
        ]
        self._placed = self._pool.place(waiting, time.monotonic())
        return set(self._placed)

    @property
    def _expected_s(self) -> float:
        return expected_s(self._setup.probe.deadline_s, self._longest_s)

    def start(self, order: ProbeOrder, start: Start) -> Processes:
        """Start the step of an order on the nodes that `place` found."""
        setup, settings = self._setup, self._setup.dispatch
        allocation, hosts = self._placed.pop(order.token)
        variables = {**self._server.environment, DRIVER: f"{os.uname().nodename}:{os.getpid()}"}
        if len(hosts) > 1:  # the loopback connects only one node's processes
            variables.pop("GLOO_SOCKET_IFNAME", None)
        if (interface := settings.network_interface) is not None:
            variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        step = self._step(
            order.run_folder,
            hosts,
            token=order.token,
            world_size=order.recipe.devices,
            engines=self._server.engines,
            environment=variables,
            deadline_s=setup.probe.deadline_s + START_TIMEOUT_S,
            scratch=None if start.scratch is None else str(start.scratch),
            kind=start.kind,
        )
        expected_end_s = time.monotonic() + self._expected_s
        placed = self._pool.start(step, allocation, hosts=hosts, expected_end_s=expected_end_s)
        count = order.recipe.devices if start.kind is ProcessKind.RANKS else len(hosts)
        return StepProcesses(order.run_folder, placed, count)

    def _step(self, folder: Path, hosts: tuple[str, ...], **fields: Any) -> Path:
        """Write a step for these nodes to its run folder, with the files that are waited for;
        return its path.
        """
        StepFolder(folder).prepare(len(hosts))
        return Step(
            run_folder=str(folder.resolve()),
            nodes=len(hosts),
            hosts=hosts,
            ranks_per_node=self._setup.problem.cluster.devices_per_node,
            lifeline=str(self._lifeline),
            silence_s=self._setup.dispatch.lifeline_s or SILENCE_S,
            ends_with_driver=self._backend.ends_with_driver,
            **fields,
        ).write()

    def avoid(self, aside: Mapping[str, str], *, due: Collection[str]) -> None:
        """See `Evaluator.avoid_nodes`."""
        self._due = set(due)
        self._pool.avoid(aside, due=due)

    def _check_nodes(self) -> None:
        """Check the nodes that are due as they get free."""
        for node, run in list(self._checks.items()):
            found = run.found()
            if found is not None or run.was_cut:
                del self._checks[node]
            if found is not None and not run.was_cut:
                self._due.discard(node)
                self._checked.append(NodeCheck(node=node, found=found))
        for node in sorted(self._due - self._checks.keys()):
            if (allocation := self._pool.free_allocation(node)) is not None:
                self._checks[node] = self._check(node, allocation)

    def checked(self) -> list[NodeCheck]:
        """See `Evaluator.checked_nodes`."""
        checked, self._checked = self._checked, []
        return checked

    def _check(self, node: str, allocation: HeldAllocation) -> CheckRun:
        cluster, self._count = self._setup.problem.cluster, self._count + 1
        folder = self._lifeline.parent / f"check-{self._count}-{node}"
        folder.mkdir()
        write_json(folder / "job.json", {"run_folder": str(folder), "backend": cluster.backend})
        step = self._step(
            folder,
            (node,),
            token=folder.name,
            world_size=cluster.devices_per_node,
            engines=(),
            environment={},
            deadline_s=CHECK_S,
            agent=DOCTOR_AGENT,
        )
        end_s = time.monotonic() + CHECK_S
        return CheckRun(
            folder, self._pool.start(step, allocation, hosts=(node,), expected_end_s=end_s)
        )

    def note(self, seconds: float) -> None:
        """Note how long a step has taken that was not lost."""
        self._longest_s = max(self._longest_s or 0.0, seconds)
        self._pool.note_success()

    @property
    def waits_for(self) -> str:
        """What the requests for nodes lack, if their engine says so."""
        return self._pool.waits_for

    def give_back(self, processes: Processes) -> None:
        """Give the allocation of processes that have ended back."""
        if isinstance(processes, StepProcesses):
            self._pool.give_back(processes.placed.allocation)

    def withdraw_requests(self) -> None:
        """Withdraw the requests for more nodes, which nothing waits for any more."""
        self._pool.withdraw_requests()

    def left_by(self, folders: Iterable[Path]) -> Left:
        """Cancel the steps of drivers that are gone."""
        return OrphanedSteps(folders)

    def close(self, running: Collection[Processes]) -> None:
        """Wait for steps that were cancelled, and give the nodes back."""
        for run in self._checks.values():
            run.cancel()
        end_s = time.monotonic() + CLOSE_S
        steps = [one.placed for one in running if isinstance(one, StepProcesses)]
        while time.monotonic() < end_s and not all(placed.is_over for placed in steps):
            time.sleep(POLL_S)
        self._heartbeat.stop()
        self._pool.close()


class CheckRun:
    """A check of one node, from outside."""

    def __init__(self, folder: Path, placed: Placed) -> None:
        self._nodes = StepProcesses(folder, placed, 1)
        self._began_s = time.monotonic()

    def cancel(self) -> None:
        """Have the check end."""
        self._nodes.end()

    @property
    def was_cut(self) -> bool:
        """Whether the node was taken away meanwhile, so that it has to be checked again."""
        return self._nodes.were_taken_away

    def found(self) -> str | None:
        """Return what is not fine on the node, empty where all is; None while the check runs."""
        self._nodes.read()
        report = self._nodes.reports.get(0)
        if report is not None and report.ended:
            return report.trouble or ""
        if time.monotonic() - self._began_s > CHECK_S:
            self.cancel()
            return f"its check did not end within {CHECK_S:g} s"
        return self._nodes.why_lost(have_begun=report is not None, have_ended=False)


class StepProcesses(Processes):
    """The processes of a placed step, by the reports of its nodes."""

    def __init__(self, run_folder: Path, placed: Placed, count: int) -> None:
        super().__init__(count)
        self.placed = placed
        self.reports: dict[int, NodeReport] = {}
        self.interrupted: NodeReport | None = None
        self._files = StepFolder(run_folder)
        self._placed_s = time.monotonic()
        self._first_report_s: float | None = None
        self._over_s: float | None = None
        self.log = self._files.launcher_log

    @property
    def end_s(self) -> float | None:  # type: ignore[override]
        """Return when the time of its allocation is up."""
        return self.placed.allocation.end_s

    @property
    def seconds(self) -> float:
        """Return the time since the step began on its first node; 0 before."""
        return 0.0 if self._first_report_s is None else time.monotonic() - self._first_report_s

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernels of its nodes killed for memory meanwhile."""
        return sum(report.oom_kills for report in self.reports.values())

    @property
    def have_begun(self) -> bool:
        """Return whether each node has started its part."""
        reports = self.reports.values()
        return len(reports) == self.placed.nodes and all(report.running for report in reports)

    @property
    def have_ended(self) -> bool:
        """Return whether each node has reported the end of its part."""
        reports = self.reports.values()
        return len(reports) == self.placed.nodes and all(report.ended for report in reports)

    @property
    def is_interrupted(self) -> bool:
        """Return whether a signal has ended a node's agent."""
        return self.interrupted is not None

    @property
    def were_taken_away(self) -> bool:
        """Return whether its nodes were, of a step that was lost."""
        placed = self.placed
        return (
            self.interrupted is not None
            or placed.allocation.ended_s is not None
            or placed.node_lost is not None
        )

    @property
    def blames_nodes(self) -> bool:
        """Return whether its allocation goes on."""
        return self.placed.allocation.ended_s is None

    @property
    def trouble(self) -> str | None:
        """Return what kept a node's agent from its work, or None."""
        reports = self.reports.values()
        return next((f"node {one.host}: {one.trouble}" for one in reports if one.trouble), None)

    def read(self) -> None:
        """Read what the nodes report."""
        for node in range(self.placed.nodes):
            report = self._files.report(node)
            if report is None:
                continue
            self.reports[node] = report
            self.statuses |= report.statuses
            self.killed.update(report.killed)
            self._first_report_s = self._first_report_s or time.monotonic()
            if report.interrupted is not None:
                self.interrupted = self.interrupted or report

    def end(self) -> None:
        """Have every node end its part."""
        super().end()
        # Where its run folder was removed its agents cannot report, and end by themselves.
        with contextlib.suppress(FileNotFoundError):
            self._files.cancel()

    def why_lost(self, *, have_begun: bool, have_ended: bool) -> str | None:
        """Return why the step was lost, once that is known, or None; cancel one that some nodes did
        not begin.
        """
        placed, now = self.placed, time.monotonic()
        if self.interrupted is None and (have_ended or not placed.is_over):
            if have_begun or now - self._placed_s <= START_TIMEOUT_S:
                return None
            self.end()
            return f"its {placed.nodes} nodes had not all begun within {START_TIMEOUT_S:g} s"
        self._over_s = self._over_s or now
        is_explained = self.interrupted is not None and placed.allocation.ended_s is not None
        is_explained = is_explained or placed.node_lost is not None
        wait_s = LAST_FILES_S if self.interrupted is None else VERDICT_S
        return self._why_over() if is_explained or now - self._over_s > wait_s else None

    def _why_over(self) -> str:
        if self.placed.allocation.ended_s is not None:
            return self.placed.allocation.why
        if self.placed.node_lost is not None:
            return self.placed.node_lost
        if self.interrupted is not None:
            return f"node {self.interrupted.host} was told to end ({self.interrupted.interrupted})"
        if self.trouble is not None:
            return self.trouble
        task, output = self.placed.task, tail(self._files.launcher_log, 1)
        if task is None or task.exception() is not None:
            return f"the step was lost: {task and task.exception()}"
        return f"the launcher ended with status {task.result()}" + (f": {output}" if output else "")
