"""Replay on the nodes of a source: its ranks are started, stopped before the nodes are taken away, and started again.

Each start is a step in a folder of its own, `starts/N`. What the ranks write (checkpoints, metrics, progress) is in the
replay's folder, on a file system that all nodes and the driver share.
"""

from __future__ import annotations

import time
from dataclasses import replace

from frontrunner.evaluators.cluster.agent import OrphanedSteps
from frontrunner.evaluators.cluster.allocations import Placed
from frontrunner.evaluators.cluster.probe import StepWatch, environment_on_nodes
from frontrunner.evaluators.cluster.settings import NodeSource
from frontrunner.evaluators.cluster.steps import LONGER_SHARE, POLL_S, Dispatcher
from frontrunner.evaluators.probe.classify import Evidence, Verdict, classify
from frontrunner.evaluators.probe.files import read_json, tail, why_disk_full, write_json
from frontrunner.evaluators.probe.job import disk_folder
from frontrunner.evaluators.probe.replay import COLLECTIVE_TIMEOUT_S, Follower, ReplayPlan, ReplayStopped
from frontrunner.evaluators.probe.run_folder import RunFolder, StepCounter
from frontrunner.evaluators.protocol import NodesUnavailable, ProbeOrder
from frontrunner.evaluators.trainer.job import complete_steps
from frontrunner.results.outcome import POLICIES, FailureKind
from frontrunner.spaces.errors import FrontrunnerError

LEAST_RUN_S = 60.0
"""Assumed: nodes that are left for less are not worth a start."""
LONGEST_RUN_S = 365 * 86_400.0
"""No deadline: the walltime of an allocation is one."""
SETTLED = ("trained", "not-finite")
"""A run's status after which no other start changes it."""


class ReplayWatch(StepWatch):
    """Follows the ranks of one start; they write to the replay's folder, but their logs to the start's."""

    def __init__(self, order: ProbeOrder, chosen: ReplayPlan, placed: Placed) -> None:
        super().__init__(order, chosen.setup, placed)
        self._written = RunFolder(chosen.folder)
        self._steps = StepCounter(chosen.folder)
        self._steps.advance()  # over those of earlier starts

    def find_overdue(self, steps_done: int, missing: str = "progress") -> tuple[FailureKind, str] | None:
        """Return that the ranks do not go on, or None."""
        if time.monotonic() - self.progressed_s < COLLECTIVE_TIMEOUT_S:
            return None
        return FailureKind.HUNG, f"no {missing} within {COLLECTIVE_TIMEOUT_S:g} s, after {steps_done} steps"

    @property
    def have_succeeded(self) -> bool:
        """Return whether every rank ended well."""
        return self.have_all_ended and not any(self.statuses.values())

    def verdict(self) -> Verdict:
        """Return why the ranks ended."""
        ranks = range(self.order.recipe.devices)
        evidence = Evidence(
            statuses=self.statuses,
            errors=self._written.errors(len(ranks)),
            log_tails={rank: tail(self.folder.log(rank)) for rank in ranks},
            overdue=self.overdue,
            killed_by_us=frozenset(self.killed),
            kernel_oom_kills=self.kernel_oom_kills,
            lost=self.lost,
            disk_full=why_disk_full(self._written.path),
        )
        return classify(evidence)


def train_on_nodes(chosen: ReplayPlan, source: NodeSource, follower: Follower) -> int:
    """Train until `result.json` is final; return 0, or raise `FrontrunnerError` with why it was given up.

    Where the nodes are those of the driver's own job it returns 0 with the status `stopped` before that ends, and
    anywhere after a signal.
    """
    return _NodeReplay(chosen, source, follower).train()


class _NodeReplay:
    """One driver's starts. Their steps count as long ones: ranks that outlive a driver are waited for."""

    def __init__(self, chosen: ReplayPlan, source: NodeSource, follower: Follower) -> None:
        self._chosen, self._source, self._follower = chosen, source, follower
        probe = replace(chosen.setup.probe, deadline_s=LONGEST_RUN_S)
        self._setup = replace(chosen.setup, work_folder=chosen.folder, probe=probe, engines=(chosen.recipe.engine,))
        self._starts = chosen.folder / "starts"
        self._starts.mkdir(exist_ok=True)
        self._dispatcher = Dispatcher(self._setup, source)
        self._dispatcher.note(LEAST_RUN_S / LONGER_SHARE)  # what nodes have to be left for
        self._watch: ReplayWatch | None = None

    def train(self) -> int:
        """See `train_on_nodes`."""
        failures = 0
        try:
            while True:
                reached = self._checkpoint()
                try:
                    self._watch = watch = self._start()
                except NodesUnavailable:
                    if self._source.held is not None and self._status() == "stopped":
                        return 0
                    raise
                self._follow(watch)
                status = self._status() if watch.have_succeeded else None
                if status in SETTLED or (status == "stopped" and self._follower.signals):
                    return 0
                failures = 0 if self._checkpoint() > reached else failures + 1
                if status == "stopped":
                    self._follower.note("stopped", why="the nodes were about to be taken away")
                else:
                    self._restart_or_raise(watch, failures)
        finally:
            placed = [] if self._watch is None else [self._watch.nodes.placed]
            if self._watch is not None and not self._watch.has_ended:
                self._watch.end()
            self._dispatcher.close(placed)

    def _start(self) -> ReplayWatch:
        chosen, setup = self._chosen, self._setup
        self._stop_on_signal()
        number = self._wait_for_earlier() + 1
        folder = self._starts / f"{number:04d}"
        order = ProbeOrder(token=f"start-{number}", recipe=chosen.recipe, run_folder=folder)
        while order.token not in (placed := self._dispatcher.place([order])):
            time.sleep(POLL_S)
            self._stop_on_signal()
        folder.mkdir()
        write_json(folder / "job.json", dict(chosen.job))
        self._follower.begin()
        self._follower.note("start", number=number, from_checkpoint=self._checkpoint())
        step = self._dispatcher.start(
            order,
            placed[order.token],
            environment=environment_on_nodes(setup, chosen.recipe),
            scratch=disk_folder(setup, chosen.recipe, chosen.folder),
        )
        return ReplayWatch(order, chosen, step)

    def _wait_for_earlier(self) -> int:
        """Wait until the ranks of the newest start have ended, be it another driver's; return its number."""
        newest = max((int(path.name) for path in self._starts.iterdir()), default=0)
        left = OrphanedSteps([self._starts / f"{newest:04d}"] if newest else [])
        while not left.have_ended():
            time.sleep(POLL_S)
            self._stop_on_signal()
        return newest

    def _stop_on_signal(self) -> None:
        """Raise `ReplayStopped` if a signal came while no ranks are running."""
        if self._follower.signals:
            reached = f"at the checkpoint of step {self._checkpoint()}, {self._follower.why_stopped}"
            raise ReplayStopped(f"stopped {reached}", hint="the same command continues")

    def _follow(self, watch: ReplayWatch) -> None:
        while not watch.look():
            time.sleep(POLL_S)
            self._follower.read()
            self._follower.stop_before(watch.nodes.placed.allocation.end_s)
        self._follower.read()

    def _restart_or_raise(self, watch: ReplayWatch, failures: int) -> None:
        verdict, most = watch.verdict(), self._chosen.restarts
        self._follower.note("failed", kind=verdict.kind.value, why=verdict.message)
        if POLICIES[verdict.kind].max_attempts > 1 and failures <= most:
            return
        why = f"the replay failed, {verdict.kind}: {verdict.message}"
        if POLICIES[verdict.kind].max_attempts > 1:
            why += f"; {failures} starts in a row without a new checkpoint"
        log = (watch.lost and watch.lost_log) or watch.folder.log(verdict.rank)
        hint = f"the whole log: {log}; the same command continues from the newest checkpoint, if any"
        raise FrontrunnerError(f"{why}\n{tail(log)}".rstrip(), hint=hint)

    def _status(self) -> str | None:
        result = read_json(self._chosen.folder / "result.json") or {}
        return str(result["status"]) if "status" in result else None

    def _checkpoint(self) -> int:
        return max(complete_steps(self._chosen.folder / "checkpoints"), default=0)
