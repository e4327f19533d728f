"""Packing probes on allocations: never too many, never too late, in a fair order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from frontrunner.evaluators.cluster.packing import (
    Allocation,
    Occupied,
    Placement,
    Waiting,
    place,
    that_no_allocation_holds,
)

MARGIN_S = 5.0


def free_nodes(room: Allocation) -> int:
    return max(0, room.nodes - sum(held.nodes for held in room.occupied))


def probe(token: str, nodes: int, expected_s: float = 10.0, arrival: int = 0) -> Waiting:
    return Waiting(token=token, nodes=nodes, expected_s=expected_s, arrival=arrival)


def started(waiting: Sequence[Waiting], *allocations: Allocation, now_s: float = 0.0) -> dict[str, str]:
    placements = place(waiting, allocations, now_s, margin_s=MARGIN_S)
    return {placement.token: placement.allocation_id for placement in placements}


def held(nodes: int, expected_end_s: float) -> Occupied:
    return Occupied(nodes=nodes, expected_end_s=expected_end_s)


def test_probes_of_different_sizes_share_an_allocation() -> None:
    four = Allocation(allocation_id="a", nodes=4)
    assert started([probe("x", 1), probe("y", 2, arrival=1), probe("z", 1, arrival=2)], four) == dict.fromkeys(
        "xyz", "a"
    )


def test_the_line_is_served_in_the_order_of_arrival() -> None:
    one = Allocation(allocation_id="a", nodes=1)
    assert started([probe("late", 1, arrival=7), probe("early", 1, arrival=3)], one) == {"early": "a"}


def test_an_allocation_near_its_end_gets_only_what_ends_before_the_margin() -> None:
    ending = Allocation(allocation_id="a", nodes=2, end_s=20.0)
    assert started([probe("long", 1, 15.1), probe("short", 1, 15.0, arrival=1)], ending) == {"short": "a"}


def test_the_allocation_that_ends_first_is_used_up_first() -> None:
    ending, lasting = Allocation(allocation_id="z", nodes=2, end_s=60.0), Allocation(allocation_id="a", nodes=2)
    assert started([probe("x", 1)], lasting, ending) == {"x": "z"}


def test_small_probes_leave_large_holes_whole() -> None:
    full, empty = (
        Allocation(allocation_id="z", nodes=4, occupied=(held(3, 9.0),)),
        Allocation(allocation_id="a", nodes=4),
    )
    assert started([probe("x", 1)], empty, full) == {"x": "z"}


def test_a_large_probe_is_passed_only_by_what_does_not_delay_it() -> None:
    busy = Allocation(allocation_id="a", nodes=8, occupied=(held(4, 30.0),))
    line = [
        probe("large", 7, arrival=0),
        probe("too-long", 2, 31.0, arrival=1),
        probe("short", 3, 30.0, arrival=2),
        probe("left-over", 1, 500.0, arrival=3),
        probe("one-too-many", 1, 500.0, arrival=4),
    ]
    assert started(line, busy) == {"short": "a", "left-over": "a"}


def test_other_allocations_are_not_reserved() -> None:
    reserved = Allocation(allocation_id="a", nodes=8, occupied=(held(7, 30.0),))
    small = Allocation(allocation_id="b", nodes=1)
    assert started([probe("large", 8), probe("small", 1, 500.0, arrival=1)], reserved, small) == {"small": "b"}


def test_a_probe_that_no_allocation_holds_keeps_nobody_waiting() -> None:
    four = Allocation(allocation_id="a", nodes=4, end_s=100.0)
    too_wide, too_long, fine = probe("wide", 5), probe("long", 1, 99.0, arrival=1), probe("fine", 4, arrival=2)
    assert started([too_wide, too_long, fine], four) == {"fine": "a"}
    assert that_no_allocation_holds([too_wide, too_long, fine], [four], 0.0, margin_s=MARGIN_S) == (too_wide, too_long)


def test_nodes_that_went_down_are_not_counted_on() -> None:
    shrunk = Allocation(allocation_id="a", nodes=3, occupied=(held(4, 10.0),))
    assert started([probe("x", 1)], shrunk) == {}
    assert that_no_allocation_holds([probe("y", 4)], [shrunk], 0.0) == (probe("y", 4),)


def test_an_overrun_does_not_hand_the_reservation_to_another_allocation() -> None:
    """Both overrun; the one that was due first keeps the large probe, and only the other takes small ones."""
    first = Allocation(allocation_id="b", nodes=4, occupied=(held(2, 10.0),))
    second = Allocation(allocation_id="a", nodes=4, occupied=(held(3, 20.0),))
    line = [probe("large", 4), *(probe(f"small-{n}", 1, arrival=1 + n) for n in range(4))]
    assert started(line, first, second, now_s=30.0) == {"small-0": "a"}


sizes = st.integers(1, 6)
lengths = st.floats(0.5, 100.0)
lines = st.lists(st.tuples(sizes, lengths), max_size=25).map(
    lambda found: [probe(str(n), nodes, seconds, n) for n, (nodes, seconds) in enumerate(found)]
)
occupations = st.lists(st.builds(held, st.integers(1, 3), st.floats(-20.0, 80.0)), max_size=3).map(tuple)
rooms = st.lists(
    st.tuples(st.integers(1, 8), st.none() | st.floats(-10.0, 150.0), occupations), min_size=1, max_size=4
).map(
    lambda found: [
        Allocation(allocation_id=str(n), nodes=nodes, end_s=end_s, occupied=occupied)
        for n, (nodes, end_s, occupied) in enumerate(found)
    ]
)


@settings(max_examples=60)
@given(lines, rooms)
def test_never_more_nodes_than_are_free_and_never_past_the_end(line: list[Waiting], rooms: list[Allocation]) -> None:
    placements = place(line, rooms, 0.0, margin_s=MARGIN_S)
    by_token = {waiting.token: waiting for waiting in line}
    assert len({placement.token for placement in placements}) == len(placements)
    for room in rooms:
        here = [placement for placement in placements if placement.allocation_id == room.allocation_id]
        assert sum(placement.nodes for placement in here) <= free_nodes(room)
        for placement in here:
            assert placement.nodes == by_token[placement.token].nodes
            assert room.end_s is None or by_token[placement.token].expected_s + MARGIN_S <= room.end_s
    assert placements == place(list(reversed(line)), rooms, 0.0, margin_s=MARGIN_S)


@settings(max_examples=60)
@given(lines, rooms)
def test_the_first_that_some_allocation_holds_starts_if_it_can(line: list[Waiting], rooms: list[Allocation]) -> None:
    placements = {placement.token for placement in place(line, rooms, 0.0, margin_s=MARGIN_S)}
    hopeless = that_no_allocation_holds(line, rooms, 0.0, margin_s=MARGIN_S)
    first = next((waiting for waiting in line if waiting not in hopeless), None)
    if first is None:
        assert not placements
        return
    fits_now = any(
        first.nodes <= free_nodes(room) and (room.end_s is None or first.expected_s + MARGIN_S <= room.end_s)
        for room in rooms
    )
    assert (first.token in placements) == fits_now


class Machine:
    """Allocations without an end that run what is placed, for times other than those expected."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.running: list[tuple[float, str, int, float, str]] = []
        self.now_s = 0.0

    def allocations(self) -> list[Allocation]:
        return [
            Allocation(
                allocation_id=str(number),
                nodes=size,
                occupied=tuple(
                    held(nodes, expected_s) for _, where, nodes, expected_s, _ in self.running if where == str(number)
                ),
            )
            for number, size in enumerate(self.sizes)
        ]

    def start(self, placement: Placement, expected_s: float, actual_s: float) -> None:
        now_s = self.now_s
        entry = (now_s + actual_s, placement.allocation_id, placement.nodes, now_s + expected_s, placement.token)
        heapq.heappush(self.running, entry)

    def step(self) -> None:
        self.now_s = heapq.heappop(self.running)[0]


@settings(max_examples=25)
@given(
    st.lists(st.integers(3, 6), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 2), st.floats(5.0, 40.0), st.floats(0.3, 4.0)), min_size=4, max_size=12),
)
@example(sizes=[4], small=[(1, 10.0, 1.0), (1, 10.0, 1.0), (1, 20.0, 4.0), (2, 10.0, 1.0)])
def test_a_large_probe_starts_although_small_ones_never_stop_coming(
    sizes: list[int], small: list[tuple[int, float, float]]
) -> None:
    """Small probes overrun or end early, and a new one arrives whenever one starts; the large one needs every node.

    Those before it in the line may follow one another, each waiting for the end of another that overruns.
    """
    machine, count = Machine(sizes), len(small)
    longest_s = max(expected_s * max(1.0, factor) for _, expected_s, factor in small)
    line = {str(n): probe(str(n), *small[n % count][:2], arrival=n) for n in range(count)}
    for step in itertools.count():
        assert machine.now_s <= 3 * count * 2 * longest_s, f"the large probe still waits at {machine.now_s:.0f} s"
        for placement in place(list(line.values()), machine.allocations(), machine.now_s):
            if placement.token == "large":
                return
            nth = int(placement.token)
            machine.start(placement, small[nth % count][1], small[nth % count][1] * small[nth % count][2])
            del line[placement.token]
            line[f"{nth + count}"] = probe(f"{nth + count}", *small[nth % count][:2], arrival=nth + count)
        if step == 3:
            line["large"] = probe("large", max(sizes), 50.0, arrival=3 * count)
        machine.step()
