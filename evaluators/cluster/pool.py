"""The allocations of a campaign: as many as are needed are asked for, and those near their end are let go.

Which probe goes where is decided by `packing.py`. Times are monotonic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.cluster.allocations import LOGGER, HeldAllocation
from frontrunner.evaluators.cluster.packing import (
    Allocation,
    Occupied,
    Waiting,
    place,
    that_no_allocation_holds,
)
from frontrunner.evaluators.cluster.sources import NodeSource
from frontrunner.evaluators.protocol import NodesUnavailable

GIVING_BACK_S = 15.0
NEVER_READY = 3
"""Allocations in a row that ended before their workers had reported: then something is wrong with all of them."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A step under way: its allocation, its nodes until `future` is done, and when it should be."""

    allocation: HeldAllocation
    nodes: int
    expected_end_s: float
    future: Future[int]


class Pool:
    """Used by one thread. `look` is to be called again and again; nothing here waits, except `close`."""

    def __init__(self, source: NodeSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = logging.FileHandler(folder / "parsl.log")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(levelname)s %(message)s"))
        logger = logging.getLogger("parsl")
        logger.addHandler(self._handler)
        logger.propagate = False  # nothing of it is for the terminal
        self._allocations: list[HeldAllocation] = []
        self._let_go: list[HeldAllocation] = []
        self._steps: list[Placed] = []
        self._count = self._never_ready = 0
        self._at_a_time = source.allocations

    def place(self, waiting: Sequence[Waiting], now_s: float) -> dict[str, HeldAllocation]:
        """The allocation in which each probe that can start now is to start.

        More nodes are asked for where there are too few, up to what the source allows. Raises `NodesUnavailable` where
        they cannot be had.
        """
        self._drop_ended(now_s)
        ready = [one for one in self._allocations if one.ready_s is not None]
        views = [self._view(one) for one in ready]
        by_name = {one.name: one for one in ready}
        placements = place(waiting, views, now_s)
        placed = {placement.token for placement in placements}
        left = [probe for probe in waiting if probe.token not in placed]
        if left and not placements:
            self._replace_the_spent(left, ready, now_s)
            self._ask_for_more(left)
        return {placement.token: by_name[placement.allocation_id] for placement in placements}

    def start(self, step: Path, allocation: HeldAllocation, *, nodes: int, expected_end_s: float) -> Placed:
        """Start a step where `place` said."""
        future = allocation.start(step, nodes)
        placed = Placed(allocation=allocation, nodes=nodes, expected_end_s=expected_end_s, future=future)
        self._steps.append(placed)
        return placed

    def forgo(self) -> None:
        """Take back the requests for nodes that have not been had yet: nothing waits for them any more."""
        for allocation in [one for one in self._allocations if one.ready_s is None]:
            self._part_with(allocation)

    def close(self) -> None:
        """Give every allocation back."""
        kept = [*self._allocations, *self._let_go]
        for allocation in kept:
            allocation.give_back()
        end_s = time.monotonic() + GIVING_BACK_S
        for allocation in kept:
            allocation.wait(max(0.0, end_s - time.monotonic()))
        logging.getLogger("parsl").removeHandler(self._handler)
        self._handler.close()

    def _view(self, allocation: HeldAllocation) -> Allocation:
        """The allocation as packing sees it."""
        occupied = tuple(
            Occupied(nodes=step.nodes, expected_end_s=step.expected_end_s)
            for step in self._steps
            if step.allocation is allocation and not step.future.done()
        )
        return Allocation(
            allocation_id=allocation.name, nodes=allocation.nodes, end_s=allocation.end_s, occupied=occupied
        )

    def _drop_ended(self, now_s: float) -> None:
        """Part with allocations that have ended, or waited for too long.

        Raises `NodesUnavailable` where no other is left to go on with.
        """
        self._steps = [step for step in self._steps if not step.future.done()]
        for allocation in [one for one in self._allocations if one.ended_s is not None]:
            self._part_with(allocation)
            if allocation.ready_s is None:
                self._never_ready += 1
            else:  # what it leaves behind may be had now
                self._never_ready, self._at_a_time = 0, self._source.allocations
            was_refused = allocation.job_id is None or self._never_ready >= NEVER_READY
            if was_refused or self._source.held is not None:
                others = [one for one in self._allocations if one.ended_s is None]
                self._do_with(others, allocation.why)
        for allocation in [one for one in self._allocations if self._is_late(one, now_s)]:
            limit = self._source.settings.queue_limit_minutes
            why = f"allocation {allocation.job_id} has waited for more than dispatch.queue_limit_minutes = {limit:g}"
            self._part_with(allocation)
            self._do_with([one for one in self._allocations if one.ready_s is not None], why)
        self._let_go = [one for one in self._let_go if not one.wait(0)]

    def _is_late(self, allocation: HeldAllocation, now_s: float) -> bool:
        limit = self._source.settings.queue_limit_minutes
        if limit is None or allocation.queued_s is None or allocation.ready_s is not None:
            return False
        return now_s - allocation.queued_s > 60 * limit

    def _part_with(self, allocation: HeldAllocation) -> None:
        allocation.give_back()
        self._allocations.remove(allocation)
        self._let_go.append(allocation)

    def _do_with(self, others: Collection[HeldAllocation], why: str) -> None:
        """Ask for no more than these from now on; raises `NodesUnavailable` where there are none."""
        if not others:
            raise NodesUnavailable(why, hint=f"see {self._folder}")
        self._at_a_time = len(others)
        LOGGER.warning("%s; going on with %d allocations at a time", why, self._at_a_time)

    def _replace_the_spent(self, left: Sequence[Waiting], ready: Collection[HeldAllocation], now_s: float) -> None:
        """Give back what has too little time left for every probe that waits, and runs nothing more."""
        for allocation in ready:
            view = self._view(allocation)
            if view.occupied or len(that_no_allocation_holds(left, [view], now_s)) < len(left):
                continue
            if self._source.held is not None:
                raise NodesUnavailable("too little is left of the job's time for the probes that wait")
            self._part_with(allocation)

    def _ask_for_more(self, left: Sequence[Waiting]) -> None:
        """Ask for another allocation where those that are yet to come do not hold what waits."""
        coming = sum(one.nodes for one in self._allocations if one.ready_s is None)
        if len(self._allocations) >= self._at_a_time or coming >= sum(probe.nodes for probe in left):
            return
        self._count += 1
        name = f"frontrunner-{self._count}"
        self._allocations.append(HeldAllocation(self._source, name, self._folder / name))
