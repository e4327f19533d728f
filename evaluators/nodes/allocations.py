"""Allocations of a campaign: `Pool` requests as many as are needed and returns spent ones.

A driver must not wait for batch systems, Parsl or Ray: all communication with them is in one thread
per allocation, and the driver only reads what that thread has noted, and queues requests. Times are
monotonic.

Which of the waiting probes start now, and where, is decided by EASY backfilling (Lifka 1995, "The
ANL/IBM SP scheduling system"; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) over several
allocations:

1. Probes start in the order of their arrival as long as the next one fits somewhere now.
2. The first that fits nowhere now gets a reservation: the allocation and the time at which, by the
   expected ends of what runs, it can start earliest.
3. Later probes may pass it. In another allocation they pass freely. In the reserved one they must
   be expected to end before the reservation begins, or use nodes that the reservation leaves over.

So nothing starves behind a stream of smaller probes. A probe that no allocation can hold, for lack
of nodes or of time, has no reservation and delays nobody.

A probe whose recipe some nodes have lost waits for others, where an allocation has enough of them.
Where none has, it may use the same nodes again.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from frontrunner.evaluators.nodes.backends import LOGGER, HeldAllocation, Placed, backend_of
from frontrunner.evaluators.nodes.settings import NodeSource
from frontrunner.results.nodes import set_aside_in_words
from frontrunner.spaces.errors import NodesUnavailable, TooLittleTime

MARGIN_S = 30.0
"""Assumed: what a probe must leave of its allocation's time, to start its ranks and write its
outcome.
"""
CLOSE_S = 15.0
MAX_FAILED_STARTS = 3
"""Allocations in a row that ended before their workers had reported: something is wrong with all of
them.
"""


class Pool:
    """The allocations of one campaign. Used by one thread, and never waits, except in `close`."""

    def __init__(self, source: NodeSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = logging.FileHandler(folder / "allocations.log")
        self._handler.setFormatter(
            logging.Formatter("%(asctime)s %(threadName)s %(levelname)s %(message)s")
        )
        logger = logging.getLogger("parsl")
        logger.addHandler(self._handler)
        logger.propagate = False  # none of it is for the terminal
        self._allocations: list[HeldAllocation] = []
        self._closing: list[HeldAllocation] = []
        self._steps: list[Placed] = []
        self._aside: Mapping[str, str] = {}
        self._excluded: tuple[str, ...] = ()
        self._count = self._failed_starts = self._short_of_nodes = 0
        self._at_a_time = source.allocations

    def place(
        self, waiting: Sequence[Waiting], now_s: float
    ) -> dict[str, tuple[HeldAllocation, tuple[str, ...]]]:
        """Return an allocation and its nodes for each probe that can start now; request nodes, or
        raise `NodesUnavailable`.
        """
        self._drop_ended(now_s)
        ready = {one.name: one for one in self._allocations if one.ready_s is not None}
        rooms = [self._room(one) for one in ready.values()]
        choosy = [_with_some_nodes(probe, rooms, now_s) for probe in waiting]
        placed = place(choosy, rooms, now_s)
        left = [
            probe._replace(avoids=frozenset()) for probe in waiting if probe.token not in placed
        ]
        if left and not placed:
            self._replace_spent(left, ready.values(), now_s)
            self._request_more(left)
        idle = {room.name: room.idle for room in rooms}
        found = {}
        for probe in choosy:
            if (name := placed.get(probe.token)) is not None:
                hosts = probe.choose(idle[name])
                idle[name] = tuple(host for host in idle[name] if host not in hosts)
                found[probe.token] = ready[name], hosts
        return found

    def avoid(self, aside: Mapping[str, str], *, due: Collection[str]) -> None:
        """Start no probe on these nodes, by name with the reason, from now on; request none of them
        that is not due.
        """
        self._aside, self._excluded = aside, tuple(sorted(aside.keys() - set(due)))

    def free_allocation(self, host: str) -> HeldAllocation | None:
        """Return the allocation in which nothing runs on a node; None where it is in none, or in
        use.
        """
        ready = (
            one for one in self._allocations if one.ready_s is not None and one.ended_s is None
        )
        return next(
            (one for one in ready if host in one.hosts and host not in self._busy(one)), None
        )

    def _busy(self, allocation: HeldAllocation) -> set[str]:
        running = (
            step for step in self._steps if step.allocation is allocation and not step.is_over
        )
        return {host for step in running for host in step.hosts}

    def _free(self, allocation: HeldAllocation) -> tuple[str, ...]:
        taken = self._busy(allocation) | self._aside.keys()
        return tuple(host for host in allocation.hosts if host not in taken)

    def start(
        self,
        step: Path,
        allocation: HeldAllocation,
        *,
        hosts: tuple[str, ...],
        expected_end_s: float,
    ) -> Placed:
        """Start a step on the nodes that `place` returned, or on one to be checked."""
        placed = Placed(
            step=step, allocation=allocation, hosts=hosts, expected_end_s=expected_end_s
        )
        allocation.start(placed)
        self._steps.append(placed)
        return placed

    def note_success(self) -> None:
        """Note that a step was not lost: not all nodes that can be had are bad."""
        self._short_of_nodes = 0

    @property
    def waits_for(self) -> str:
        """What the requests for nodes lack, if their engine says so."""
        return next(
            (one.waits_for for one in self._allocations if one.ready_s is None and one.waits_for),
            "",
        )

    def give_back(self, allocation: HeldAllocation) -> None:
        """Give an allocation back before its end, on which nothing runs any more."""
        if allocation in self._allocations:  # else it has ended
            self._give_back(allocation)

    def withdraw_requests(self) -> None:
        """Withdraw the requests for nodes that are still queued: nothing waits for them any
        more.
        """
        for allocation in [one for one in self._allocations if one.ready_s is None]:
            self._give_back(allocation)

    def close(self) -> None:
        """Give every allocation back."""
        held = [*self._allocations, *self._closing]
        for allocation in held:
            allocation.give_back()
        end_s = time.monotonic() + CLOSE_S
        for allocation in held:
            allocation.wait(max(0.0, end_s - time.monotonic()))
        logging.getLogger("parsl").removeHandler(self._handler)
        self._handler.close()

    def _room(self, allocation: HeldAllocation) -> Room:
        """Return the room on the nodes that are not set aside, whose checks take none of it."""
        occupied = []
        for step in self._steps:
            if step.allocation is allocation and not step.is_over:
                hosts = tuple(host for host in step.hosts if host not in self._aside)
                occupied.append(Occupied(step.expected_end_s, len(hosts), hosts))
        return Room(
            name=allocation.name,
            nodes=len(set(allocation.hosts) - self._aside.keys()),
            end_s=allocation.end_s,
            occupied=occupied,
            idle=self._free(allocation),
        )

    def _drop_ended(self, now_s: float) -> None:
        """Give back allocations that have ended, or waited for too long."""
        self._steps = [step for step in self._steps if not step.is_over]
        limit = self._source.settings.queue_limit_minutes or math.inf
        for allocation in sorted(self._allocations, key=lambda one: one.ended_s is None):
            if allocation.ended_s is not None:
                self._give_back(allocation)
                if allocation.ready_s is None:
                    self._failed_starts += 1
                else:  # the nodes that it leaves may be available now
                    self._failed_starts, self._at_a_time = 0, self._source.allocations
                was_refused = allocation.job_id is None or self._failed_starts >= MAX_FAILED_STARTS
                if was_refused or self._source.held is not None:
                    self._limit_to(
                        [one for one in self._allocations if one.ended_s is None], allocation.why
                    )
            elif allocation.ready_s is None and now_s - allocation.queued_s > 60 * limit:
                self._give_back(allocation)
                setting = f"dispatch.queue_limit_minutes = {limit:g}"
                why = f"allocation {allocation.job_id} has waited for more than {setting}"
                why += f": {allocation.waits_for}" if allocation.waits_for else ""
                self._limit_to([one for one in self._allocations if one.ready_s is not None], why)
        self._closing = [one for one in self._closing if not one.wait(0)]

    def _give_back(self, allocation: HeldAllocation) -> None:
        allocation.give_back()
        self._allocations.remove(allocation)
        self._closing.append(allocation)

    def _limit_to(self, others: Collection[HeldAllocation], why: str) -> None:
        if not others:
            raise NodesUnavailable(
                "; ".join((why, *set_aside_in_words([*self._aside.values()]))),
                hint=f"see {self._folder}",
            )
        self._at_a_time = len(others)
        LOGGER.warning("%s; going on with %d allocations at a time", why, self._at_a_time)

    def _replace_spent(
        self, left: Sequence[Waiting], ready: Collection[HeldAllocation], now_s: float
    ) -> None:
        """Give back idle allocations with too little time left for every probe that waits."""
        for allocation in ready:
            room = self._room(allocation)
            if room.occupied or any(room.holds(probe, now_s) for probe in left):
                continue
            reasons = [self._aside[host] for host in allocation.hosts if host in self._aside]
            if reasons and room.nodes < (least := min(probe.nodes for probe in left)):
                self._short_of_nodes += 1
                if self._source.held is not None or self._short_of_nodes >= MAX_FAILED_STARTS:
                    few = (
                        f"{room.nodes} of the {len(allocation.hosts)} nodes are left for probes of"
                        f" {least} or more"
                    )
                    raise NodesUnavailable(
                        f"{few}: {'; '.join(set_aside_in_words(reasons))}",
                        hint=f"see {self._folder}",
                    )
            elif self._source.held is not None:
                left_s = max(0.0, room.usable_until_s + MARGIN_S - now_s)
                needed_s = min(probe.expected_s for probe in left) + MARGIN_S
                what = (
                    f"its job ends in {left_s:.0f} s, and what waits needs up to {needed_s:.0f} s"
                )
                raise TooLittleTime(
                    f"too little is left of the job's time: {what}", hint="request a longer job"
                )
            self._give_back(allocation)

    def _request_more(self, left: Sequence[Waiting]) -> None:
        queued = sum(one.nodes for one in self._allocations if one.ready_s is None)
        if len(self._allocations) >= self._at_a_time or queued >= sum(
            probe.nodes for probe in left
        ):
            return
        self._count += 1
        name = f"frontrunner-{self._count}"
        source = replace(self._source, excluded=self._excluded)
        backend = backend_of(source.backend)
        self._allocations.append(backend.request(source, name, self._folder / name))


class Waiting(NamedTuple):
    """A probe that waits for nodes, and how long it will hold them: its deadline if nothing better
    is known. It starts on none of the nodes that it `avoids`.
    """

    token: str
    nodes: int
    expected_s: float
    avoids: frozenset[str] = frozenset()

    def choose(self, idle: Iterable[str]) -> tuple[str, ...]:
        """Return its nodes, out of those that are idle."""
        return tuple(host for host in idle if host not in self.avoids)[: self.nodes]


class Occupied(NamedTuple):
    """Nodes of an allocation that a running probe holds, by number and where known by name, and
    when it is expected to release them.
    """

    expected_end_s: float
    nodes: int
    hosts: tuple[str, ...] = ()

    def nodes_for(self, probe: Waiting) -> int:
        """Return how many of them a probe can use once they are released."""
        return self.nodes - sum(host in self.hosts for host in probe.avoids)


@dataclass(kw_only=True)
class Room:
    """Nodes of an allocation until `end_s`; from `reserved_from_s` on `left_over` of them are free
    for later probes. `idle` names those that nothing runs on, where names are known.
    """

    name: str
    nodes: int
    end_s: float | None = None
    occupied: list[Occupied] = field(default_factory=list)
    idle: tuple[str, ...] = ()
    reserved_from_s: float = math.inf
    left_over: int = 0

    free: int = field(init=False)
    """The nodes that nothing runs on; below 0 if occupied nodes went down."""

    def __post_init__(self) -> None:
        self.occupied = sorted(self.occupied)
        self.free = self.nodes - sum(held.nodes for held in self.occupied)

    @property
    def usable_until_s(self) -> float:
        """When the last probe must have ended."""
        return math.inf if self.end_s is None else self.end_s - MARGIN_S

    @property
    def order(self) -> tuple[float, int, str]:
        """Sort key of several that fit: the first to end, then the fullest, to keep large holes
        whole.
        """
        return self.usable_until_s, self.free, self.name

    def free_for(self, probe: Waiting) -> int:
        """Return how many free nodes the probe can use."""
        return self.free - sum(host in self.idle for host in probe.avoids)

    def takes(self, probe: Waiting, now_s: float) -> bool:
        """Return whether the probe can start now, end in time, and not delay what is reserved."""
        end_s = now_s + probe.expected_s
        if probe.nodes > self.free_for(probe) or end_s > self.usable_until_s:
            return False
        return end_s <= self.reserved_from_s or probe.nodes <= self.left_over

    def occupy(self, probe: Waiting, now_s: float) -> None:
        """Give the probe its nodes; one that outlasts the start of the reservation uses up what
        that leaves over.
        """
        end_s = now_s + probe.expected_s
        if end_s > self.reserved_from_s:
            self.left_over -= probe.nodes
        hosts = probe.choose(self.idle)
        self.idle = tuple(host for host in self.idle if host not in hosts)
        insort(self.occupied, Occupied(end_s, probe.nodes, hosts))
        self.free -= probe.nodes

    def first_enough(self, probe: Waiting, now_s: float) -> tuple[float, int]:
        """Return when enough nodes are expected to be free, infinity if never or too late, and how
        many the probe can use then.

        The time is in the past if that has not happened: a reservation then stays in the allocation
        that has kept the probe waiting longest, instead of moving while others overrun.
        """
        enough_s, free = now_s, self.free_for(probe)
        for held in self.occupied:
            if free >= probe.nodes:
                break
            enough_s, free = held.expected_end_s, free + held.nodes_for(probe)
        is_in_time = max(enough_s, now_s) + probe.expected_s <= self.usable_until_s
        return enough_s if free >= probe.nodes and is_in_time else math.inf, free

    def holds(self, probe: Waiting, now_s: float) -> bool:
        """Return whether the probe can start here at the latest when all that runs has ended."""
        return math.isfinite(self.first_enough(probe, now_s)[0])


def _with_some_nodes(probe: Waiting, rooms: Sequence[Room], now_s: float) -> Waiting:
    """Return the probe, which avoids no node where that would leave it too few of them."""
    if not probe.avoids or any(room.holds(probe, now_s) for room in rooms):
        return probe
    return probe._replace(avoids=frozenset())


def place(waiting: Iterable[Waiting], rooms: Sequence[Room], now_s: float) -> dict[str, str]:
    """Return the room for each probe to start now, by token; `waiting` is in the order of
    arrival.
    """
    rooms = [replace(room) for room in rooms]
    placed: dict[str, str] = {}
    reserved, most_free = False, max((room.free for room in rooms), default=0)
    for probe in waiting:
        able = (
            (room for room in rooms if room.takes(probe, now_s)) if probe.nodes <= most_free else ()
        )
        room = min(able, key=lambda room: room.order, default=None)
        if room is not None:
            room.occupy(probe, now_s)
            placed[probe.token] = room.name
            most_free = max(room.free for room in rooms)
            continue
        if reserved:
            continue
        if holding := [room for room in rooms if room.holds(probe, now_s)]:
            room = min(holding, key=lambda room: (room.first_enough(probe, now_s)[0], room.order))
            # What is left over is counted without those that end later: of several probes that
            # overrun their expected end, none may be relied on to release nodes for others.
            enough_s, free = room.first_enough(probe, now_s)
            room.reserved_from_s, room.left_over, reserved = (
                max(now_s, enough_s),
                free - probe.nodes,
                True,
            )
    return placed
