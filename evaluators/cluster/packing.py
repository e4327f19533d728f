"""Packing of probes on allocations: which of the waiting probes start now, and where.

The rule is EASY backfilling (Lifka 1995, "The ANL/IBM SP scheduling system"; Mu'alem and Feitelson, IEEE TPDS 12(6),
2001) over several allocations:

1. Probes start in the order of their arrival as long as the next one fits somewhere now.
2. The first that fits nowhere now gets a reservation: the allocation and the time at which, by the expected ends of
   what runs, it can start earliest.
3. Later probes may pass it. In another allocation they pass freely. In the reserved one they must be expected to end
   before the reservation begins, or use nodes that the reservation leaves over.

Nothing starves behind a stream of smaller probes: a reserved probe waits only for probes that were started before its
reservation, or that end before it begins, and once it has started the next in line gets the reservation. A probe that
no allocation can hold, for lack of nodes or of time, has no reservation and delays nobody.

All functions are pure. Times are seconds on one clock of the caller's.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

MARGIN_S = 30.0
"""Assumed: what a probe must leave of its allocation's time, to start its ranks and write its outcome."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A probe that waits for nodes.

    `expected_s` is how long it will hold them, its deadline if nothing better is known. The lowest `arrival` is first
    in line, and the token decides between equals.
    """

    token: str
    nodes: int
    expected_s: float
    arrival: int


@dataclass(frozen=True, kw_only=True)
class Occupied:
    """Nodes of an allocation that a running probe holds, and when it is expected to release them."""

    nodes: int
    expected_end_s: float


_EXPECTED_END = attrgetter("expected_end_s")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Working nodes that are held until `end_s`, or without an end if that is None."""

    allocation_id: str
    nodes: int
    end_s: float | None = None
    occupied: tuple[Occupied, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A probe that starts now, and the allocation whose nodes it gets."""

    token: str
    allocation_id: str
    nodes: int


def place(
    waiting: Iterable[Waiting], allocations: Sequence[Allocation], now_s: float, *, margin_s: float = MARGIN_S
) -> tuple[Placement, ...]:
    """Return the probes to start now, in the order in which they are to start; the result is deterministic."""
    rooms = [_Room.of(allocation, now_s, margin_s) for allocation in allocations]
    placements: list[Placement] = []
    reserved = False
    line = sorted(waiting, key=attrgetter("arrival", "token"))
    fewest_nodes = min((probe.nodes for probe in line), default=0)
    for probe in line:
        if all(room.free < fewest_nodes for room in rooms):
            break
        room = min((room for room in rooms if room.takes(probe)), key=_Room.order, default=None)
        if room is not None:
            room.occupy(probe)
            placements.append(
                Placement(token=probe.token, allocation_id=room.allocation.allocation_id, nodes=probe.nodes)
            )
        elif not reserved:
            reserved = _reserve(probe, rooms)
    return tuple(placements)


def that_no_allocation_holds(
    waiting: Iterable[Waiting], allocations: Sequence[Allocation], now_s: float, *, margin_s: float = MARGIN_S
) -> tuple[Waiting, ...]:
    """Return the probes that could not start in any of these allocations even after all that runs in them has ended.

    They wait for another allocation: of more nodes, or with more time left.
    """
    rooms = [_Room.of(allocation, now_s, margin_s) for allocation in allocations]
    return tuple(probe for probe in waiting if all(math.isinf(room.enough_free_s(probe)) for room in rooms))


def _reserve(probe: Waiting, rooms: Sequence[_Room]) -> bool:
    """Reserve the place where the probe can start earliest; return False if there is none."""
    room = min(rooms, key=lambda room: (room.enough_free_s(probe), room.order()), default=None)
    if room is None or math.isinf(room.enough_free_s(probe)):
        return False
    room.reserve(probe)
    return True


@dataclass(kw_only=True)
class _Room:
    """What is left of an allocation while one call of `place` fills it.

    `ends` are the occupied nodes, in the order of their expected ends. `free` is below 0 if occupied nodes went down.
    From `reserved_from_s` on only `left_over` nodes are free for probes that came after the reserved one.
    """

    allocation: Allocation
    now_s: float
    usable_until_s: float
    free: int
    ends: list[Occupied] = field(default_factory=list)
    reserved_from_s: float = math.inf
    left_over: int = 0

    @classmethod
    def of(cls, allocation: Allocation, now_s: float, margin_s: float) -> _Room:
        """Return the allocation as it is before anything is placed."""
        return cls(
            allocation=allocation,
            now_s=now_s,
            usable_until_s=math.inf if allocation.end_s is None else allocation.end_s - margin_s,
            free=allocation.nodes - sum(held.nodes for held in allocation.occupied),
            ends=sorted(allocation.occupied, key=_EXPECTED_END),
        )

    def order(self) -> tuple[float, int, str]:
        """Return the sort key of several that fit: the first to end, then the fullest, to keep large holes whole."""
        return self.usable_until_s, self.free, self.allocation.allocation_id

    def takes(self, probe: Waiting) -> bool:
        """Return whether the probe can start now, end in time, and not delay what is reserved."""
        end_s = self.now_s + probe.expected_s
        if probe.nodes > self.free or end_s > self.usable_until_s:
            return False
        return end_s <= self.reserved_from_s or probe.nodes <= self.left_over

    def occupy(self, probe: Waiting) -> None:
        """Give the probe its nodes; one that outlasts the start of the reservation uses up what that leaves over."""
        end_s = self.now_s + probe.expected_s
        self.free -= probe.nodes
        if end_s > self.reserved_from_s:
            self.left_over -= probe.nodes
        insort(self.ends, Occupied(nodes=probe.nodes, expected_end_s=end_s), key=_EXPECTED_END)

    def enough_free_s(self, probe: Waiting) -> float:
        """Return when enough nodes are expected to be free; infinity if never, or too late for it to end in time.

        It is in the past if that was expected and has not happened. A reservation then stays in the allocation that has
        kept the probe waiting longest, instead of moving back and forth while others overrun.
        """
        enough_s, free = self._first_enough(probe)
        start_s = max(enough_s, self.now_s)
        is_in_time = free >= probe.nodes and start_s + probe.expected_s <= self.usable_until_s
        return enough_s if is_in_time else math.inf

    def reserve(self, probe: Waiting) -> None:
        """Keep nodes for the probe from its earliest start on.

        It waits for the first to end that together give enough, and what is left over is counted from those alone: of
        several probes that overrun their expected end, none may be relied on to release nodes for others.
        """
        enough_s, free_then = self._first_enough(probe)
        self.reserved_from_s = max(self.now_s, enough_s)
        self.left_over = free_then - probe.nodes

    def _first_enough(self, probe: Waiting) -> tuple[float, int]:
        """Return the expected end of the last that the probe must wait for, and the nodes that are free by then."""
        enough_s, free = self.now_s, self.free
        for held in self.ends:
            if free >= probe.nodes:
                break
            enough_s, free = held.expected_end_s, free + held.nodes
        return enough_s, free
