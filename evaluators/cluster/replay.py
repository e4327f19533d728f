"""Replay by our own trainer on the nodes of a source."""

from __future__ import annotations

import time
from dataclasses import replace

from frontrunner.evaluators.cluster.allocations import HeldAllocation, Placed
from frontrunner.evaluators.cluster.probe import StepWatch, environment_on_nodes
from frontrunner.evaluators.cluster.settings import NodeSource
from frontrunner.evaluators.cluster.starts import LONGEST_RUN_S, Cause, Ending, Starts
from frontrunner.evaluators.probe.files import read_json, write_text
from frontrunner.evaluators.probe.job import COLLECTIVE_TIMEOUT_S, disk_folder
from frontrunner.evaluators.probe.replay import Follower, ReplayPlan
from frontrunner.evaluators.probe.run_folder import RunFolder, StepCounter
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.trainer.job import complete_steps
from frontrunner.results.outcome import FailureKind

SETTLED = {"trained": Ending.DONE, "not-finite": Ending.DONE, "stopped": Ending.STOPPED}
"""How a start has ended, by the status that its ranks have written."""


class ReplayWatch(StepWatch):
    """Follows the ranks of one start; they write to the replay's folder, but their logs to the
    start's.
    """

    def __init__(self, order: ProbeOrder, chosen: ReplayPlan, placed: Placed) -> None:
        super().__init__(order, chosen.setup, placed)
        self.written_to = RunFolder(chosen.folder)
        self._steps = StepCounter(chosen.folder)
        self._steps.advance()  # over those of earlier starts

    def find_overdue(
        self, steps_done: int, missing: str = "progress"
    ) -> tuple[FailureKind, str] | None:
        """Return that the ranks do not go on, or None."""
        if time.monotonic() - self.progressed_s < COLLECTIVE_TIMEOUT_S:
            return None
        return (
            FailureKind.HUNG,
            f"no {missing} within {COLLECTIVE_TIMEOUT_S:g} s, after {steps_done} steps",
        )


class RankStarts(Starts[ReplayWatch]):
    """Starts of our own trainer's ranks on nodes, until `result.json` is final."""

    no_progress = "without a new checkpoint"
    goes_on = "the same command continues from the newest checkpoint, if any"

    def __init__(self, chosen: ReplayPlan, source: NodeSource, follower: Follower) -> None:
        self._chosen = chosen
        probe = replace(chosen.setup.probe, deadline_s=LONGEST_RUN_S)
        setup = replace(
            chosen.setup, work_folder=chosen.folder, probe=probe, engines=(chosen.recipe.engine,)
        )
        super().__init__(chosen.recipe, setup, source, follower, restarts=chosen.restarts)

    def begin(
        self, order: ProbeOrder, number: int, allocation: HeldAllocation | None
    ) -> ReplayWatch:
        """Start the ranks on nodes of the allocation."""
        assert self._dispatcher is not None and allocation is not None  # noqa: PT018, S101 - there is a source
        chosen, setup = self._chosen, self._setup
        write_text(order.run_folder / "job.json", chosen.job.to_json())
        self._follower.note("start", number=number, from_checkpoint=self.reached())
        step = self._dispatcher.start(
            order,
            allocation,
            environment=environment_on_nodes(setup, chosen.recipe),
            scratch=disk_folder(setup, chosen.recipe, chosen.folder),
        )
        return ReplayWatch(order, chosen, step)

    def ending(self, watch: ReplayWatch) -> Ending:
        """Return the status that the ranks have written, if all of them ended well."""
        result = (
            (read_json(self._chosen.folder / "result.json") or {}) if watch.have_succeeded else {}
        )
        return SETTLED.get(str(result.get("status")), Ending.FAILED)

    def cause(self, watch: ReplayWatch) -> Cause:
        """Return why the ranks ended."""
        found, log = watch.verdict()
        return Cause(found.kind, found.message, log)

    def reached(self) -> int:
        """Return the newest complete checkpoint's step."""
        return max(complete_steps(self._chosen.folder / "checkpoints"), default=0)
