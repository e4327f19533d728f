"""A step under way, as its supervisor sees it: by the files of its nodes, and by what its allocation has come to."""

from __future__ import annotations

import time

from frontrunner.evaluators.cluster.pool import Placed
from frontrunner.evaluators.cluster.step import NodeReport, StepFolder
from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.probe.watch import Watch
from frontrunner.evaluators.protocol import ProbeOrder

START_TIMEOUT_S = 300.0
"""Until every node has forked its ranks: a launcher and an import of torch from a busy file system take a minute."""
LAST_WORDS_S = 6.0
"""How long a network file system may take to show what a node wrote last."""
VERDICT_S = 12.0
"""How long the batch system may take to say why it has ended a step."""


class StepWatch(Watch):
    """A watch whose ranks are on other nodes: what they tell is read from files, and a file ends them."""

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
        """Since the step began on its nodes; 0 before."""
        return 0.0 if self._first_report_s is None else time.monotonic() - self._first_report_s

    @property
    def kernel_oom_kills(self) -> int:
        """Processes that the kernels of the step's nodes killed for memory meanwhile."""
        return sum(report.oom_kills for report in self._reports.values())

    @property
    def is_cut(self) -> bool:
        """Whether the machine was taken away under the probe."""
        return self.lost is not None and (self._interrupted_s is not None or self.placed.allocation.ended_s is not None)

    @property
    def has_ended(self) -> bool:
        """Whether every rank has, or those that are left cannot be ended; not before it is known who ended them."""
        if self._interrupted_s is not None and not self._all_are_done:
            return self.lost is not None
        return super().has_ended

    @property
    def _all_are_done(self) -> bool:
        """Whether every rank has come to its proper end: whatever happens now comes too late to matter."""
        return len(self.statuses) == self.order.recipe.devices and not any(self.statuses.values())

    def follow(self) -> None:
        """Read what the nodes have told, end what is overdue, and find out what became of a step that fell silent."""
        self._read_reports()
        if list(self.look()):
            self.cancel()
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
            self.began(tuple(range(self.order.recipe.devices)))  # process ids are the agents' business

    def _judge(self, now_s: float) -> None:
        """Set `lost` where the ranks will not tell any more what became of them."""
        if self._all_are_done:
            return
        allocation = self.placed.allocation
        is_complete = len(self.statuses) == self.order.recipe.devices
        if self._interrupted_s is not None:
            if allocation.ended_s is not None:
                self.lost = allocation.why
            elif now_s - self._interrupted_s > VERDICT_S:
                self.lost = self._interruption()
        elif self.placed.future.done() and not is_complete:
            self._over_s = self._over_s or now_s
            if now_s - self._over_s > LAST_WORDS_S:
                self.lost = self._last_words()
        elif not self._pids and now_s - self._placed_s > START_TIMEOUT_S:
            self.lost = f"its {self._nodes} nodes had not all begun within {START_TIMEOUT_S:g} s"
            self.cancel()

    def _interruption(self) -> str:
        told = next(report for report in self._reports.values() if report.interrupted is not None)
        return f"node {told.host} was told to end ({told.interrupted})"

    def _last_words(self) -> str:
        if self.placed.allocation.ended_s is not None:
            return self.placed.allocation.why
        troubled = next((report for report in self._reports.values() if report.trouble is not None), None)
        if troubled is not None:
            return f"node {troubled.host}: {troubled.trouble}"
        error = self.placed.future.exception()
        if error is not None:
            return f"the step was lost: {error}"
        said = tail(self._folder.launcher_log, 1)
        return f"the launcher ended with status {self.placed.future.result()}" + (f": {said}" if said else "")
