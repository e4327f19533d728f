"""Packing of probes on allocations: which of the waiting probes start now, and where.

The rule is EASY backfilling (Lifka 1995, "The ANL/IBM SP scheduling system"; Mu'alem and Feitelson, IEEE TPDS 12(6),
2001) over several allocations:

1. Probes start in the order of their arrival as long as the next one fits somewhere now.
2. The first that fits nowhere now gets a reservation: the allocation and the time at which, by the expected ends of
   what runs, it can start earliest.
3. Later probes may pass it. In another allocation they pass freely. In the reserved one they must be expected to end
   before the reservation begins, or use nodes that the reservation leaves over.

So nothing starves behind a stream of smaller probes. A probe that no allocation can hold, for lack of nodes or of time,
has no reservation and delays nobody.

Times are seconds on one clock of the caller's.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

MARGIN_S = 30.0
"""Assumed: what a probe must leave of its allocation's time, to start its ranks and write its outcome."""


class Waiting(NamedTuple):
    """A probe that waits for nodes, and how long it will hold them: its deadline if nothing better is known."""

    token: str
    nodes: int
    expected_s: float


class Occupied(NamedTuple):
    """Nodes of an allocation that a running probe holds, and when it is expected to release them."""

    expected_end_s: float
    nodes: int


@dataclass(kw_only=True)
class Room:
    """Nodes of an allocation, held until `end_s` (None: without an end), and what runs on them.

    From `reserved_from_s` on only `left_over` nodes are free for probes that came after the reserved one.
    """

    name: str
    nodes: int
    end_s: float | None = None
    occupied: list[Occupied] = field(default_factory=list)
    reserved_from_s: float = math.inf
    left_over: int = 0

    @property
    def free(self) -> int:
        """The nodes that nothing runs on; below 0 if occupied nodes went down."""
        return self.nodes - sum(held.nodes for held in self.occupied)

    @property
    def usable_until_s(self) -> float:
        """When the last probe must have ended."""
        return math.inf if self.end_s is None else self.end_s - MARGIN_S

    @property
    def order(self) -> tuple[float, int, str]:
        """Sort key of several that fit: the first to end, then the fullest, to keep large holes whole."""
        return self.usable_until_s, self.free, self.name

    def takes(self, probe: Waiting, now_s: float) -> bool:
        """Return whether the probe can start now, end in time, and not delay what is reserved."""
        end_s = now_s + probe.expected_s
        if probe.nodes > self.free or end_s > self.usable_until_s:
            return False
        return end_s <= self.reserved_from_s or probe.nodes <= self.left_over

    def occupy(self, probe: Waiting, now_s: float) -> None:
        """Give the probe its nodes; one that outlasts the start of the reservation uses up what that leaves over."""
        end_s = now_s + probe.expected_s
        if end_s > self.reserved_from_s:
            self.left_over -= probe.nodes
        insort(self.occupied, Occupied(end_s, probe.nodes))

    def first_enough(self, probe: Waiting, now_s: float) -> tuple[float, int]:
        """Return when enough nodes are expected to be free, infinity if never or too late, and how many are free then.

        The time is in the past if that has not happened: a reservation then stays in the allocation that has kept the
        probe waiting longest, instead of moving while others overrun.
        """
        enough_s, free = now_s, self.free
        for held in sorted(self.occupied):
            if free >= probe.nodes:
                break
            enough_s, free = held.expected_end_s, free + held.nodes
        is_in_time = max(enough_s, now_s) + probe.expected_s <= self.usable_until_s
        return enough_s if free >= probe.nodes and is_in_time else math.inf, free

    def holds(self, probe: Waiting, now_s: float) -> bool:
        """Return whether the probe can start here at the latest when all that runs has ended."""
        return math.isfinite(self.first_enough(probe, now_s)[0])


def place(waiting: Iterable[Waiting], rooms: Sequence[Room], now_s: float) -> dict[str, str]:
    """Return the room for each probe to start now, by token; `waiting` is in the order of arrival."""
    rooms = [replace(room, occupied=sorted(room.occupied)) for room in rooms]
    placed: dict[str, str] = {}
    reserved = False
    for probe in waiting:
        room = min((room for room in rooms if room.takes(probe, now_s)), key=lambda room: room.order, default=None)
        if room is not None:
            room.occupy(probe, now_s)
            placed[probe.token] = room.name
            continue
        holding = [room for room in rooms if room.holds(probe, now_s)]
        if holding and not reserved:
            room = min(holding, key=lambda room: (room.first_enough(probe, now_s)[0], room.order))
            # What is left over is counted without those that end later: of several probes that overrun their expected
            # end, none may be relied on to release nodes for others.
            enough_s, free = room.first_enough(probe, now_s)
            room.reserved_from_s, room.left_over, reserved = max(now_s, enough_s), free - probe.nodes, True
    return placed
