"""Packing probes on allocations: never too many, never too late, in a fair order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from frontrunner.evaluators.nodes.allocations import MARGIN_S, Occupied, Room, Waiting, place


def free_nodes(room: Room) -> int:
    return max(0, room.nodes - sum(held.nodes for held in room.occupied))


def probe(token: str, nodes: int, expected_s: float = 10.0) -> Waiting:
    return Waiting(token, nodes, expected_s)


def started(waiting: Sequence[Waiting], *rooms: Room, now_s: float = 0.0) -> dict[str, str]:
    return place(waiting, rooms, now_s)


def held(nodes: int, expected_end_s: float) -> Occupied:
    return Occupied(expected_end_s, nodes)


def test_probes_of_different_sizes_share_an_allocation() -> None:
    four = Room(name="a", nodes=4)
    assert started([probe("x", 1), probe("y", 2), probe("z", 1)], four) == dict.fromkeys("xyz", "a")


def test_the_line_is_served_in_the_order_of_arrival() -> None:
    one = Room(name="a", nodes=1)
    assert started([probe("early", 1), probe("late", 1)], one) == {"early": "a"}


def test_an_allocation_near_its_end_gets_only_what_ends_before_the_margin() -> None:
    ending = Room(name="a", nodes=2, end_s=15.0 + MARGIN_S)
    assert started([probe("long", 1, 15.1), probe("short", 1, 15.0)], ending) == {"short": "a"}


def test_the_allocation_that_ends_first_is_used_up_first() -> None:
    ending, lasting = Room(name="z", nodes=2, end_s=60.0), Room(name="a", nodes=2)
    assert started([probe("x", 1)], lasting, ending) == {"x": "z"}


def test_small_probes_leave_large_holes_whole() -> None:
    full, empty = (
        Room(name="z", nodes=4, occupied=[held(3, 9.0)]),
        Room(name="a", nodes=4),
    )
    assert started([probe("x", 1)], empty, full) == {"x": "z"}


def test_a_large_probe_is_passed_only_by_what_does_not_delay_it() -> None:
    busy = Room(name="a", nodes=8, occupied=[held(4, 30.0)])
    line = [
        probe("large", 7),
        probe("too-long", 2, 31.0),
        probe("short", 3, 30.0),
        probe("left-over", 1, 500.0),
        probe("one-too-many", 1, 500.0),
    ]
    assert started(line, busy) == {"short": "a", "left-over": "a"}


def test_other_allocations_are_not_reserved() -> None:
    reserved = Room(name="a", nodes=8, occupied=[held(7, 30.0)])
    small = Room(name="b", nodes=1)
    assert started([probe("large", 8), probe("small", 1, 500.0)], reserved, small) == {"small": "b"}


def test_probes_of_one_look_get_the_nodes_that_they_do_not_avoid() -> None:
    again = Waiting("again", 1, 10.0, frozenset(("n1",)))
    idle = Room(name="a", nodes=2, idle=("n1", "n2"))
    assert started([probe("x", 1), again], idle) == {"x": "a", "again": "a"}


def test_nodes_that_a_probe_avoids_are_not_reserved_for_it() -> None:
    busy = [Occupied(10.0, 1, ("n1",)), Occupied(30.0, 1, ("n2",))]
    room = Room(name="a", nodes=3, occupied=busy, idle=("n3",))
    again = Waiting("again", 1, 10.0, frozenset(("n1", "n3")))
    assert started([again, probe("long", 1, 30.0)], room) == {"long": "a"}
    assert started([again, probe("too-long", 1, 31.0)], room) == {}


def test_nodes_are_reserved_for_a_probe_that_avoids_the_idle_ones() -> None:
    names = ("n1", "n2", "n3")
    room = Room(name="a", nodes=4, occupied=[Occupied(30.0, 1, ("n4",))], idle=names)
    again = Waiting("again", 2, 10.0, frozenset(("n1", "n2")))
    assert started([again, probe("short", 1, 30.0), probe("long", 1, 31.0)], room) == {"short": "a"}
    enough = Room(name="a", nodes=4, occupied=[Occupied(30.0, 1, ("n2",))], idle=("n1", "n3", "n4"))
    assert started([again, probe("long", 1, 31.0)], enough) == {"again": "a", "long": "a"}


def test_a_probe_that_no_allocation_holds_keeps_nobody_waiting() -> None:
    four = Room(name="a", nodes=4, end_s=100.0)
    too_wide, too_long, fine = probe("wide", 5), probe("long", 1, 99.0), probe("fine", 4)
    assert started([too_wide, too_long, fine], four) == {"fine": "a"}
    assert [four.holds(one, 0.0) for one in (too_wide, too_long, fine)] == [False, False, True]


def test_nodes_that_went_down_are_not_counted_on() -> None:
    shrunk = Room(name="a", nodes=3, occupied=[held(4, 10.0)])
    assert started([probe("x", 1)], shrunk) == {}
    assert not shrunk.holds(probe("y", 4), 0.0)


def test_an_overrun_does_not_hand_the_reservation_to_another_allocation() -> None:
    """Both overrun; the one that was due first keeps the large probe, and only the other takes
    small ones.
    """
    first = Room(name="b", nodes=4, occupied=[held(2, 10.0)])
    second = Room(name="a", nodes=4, occupied=[held(3, 20.0)])
    line = [probe("large", 4), *(probe(f"small-{n}", 1) for n in range(4))]
    assert started(line, first, second, now_s=30.0) == {"small-0": "a"}


sizes = st.integers(1, 6)
lengths = st.floats(0.5, 100.0)
lines = st.lists(st.tuples(sizes, lengths), max_size=25).map(
    lambda found: [probe(str(n), nodes, seconds) for n, (nodes, seconds) in enumerate(found)]
)
occupations = st.lists(st.builds(held, st.integers(1, 3), st.floats(-20.0, 80.0)), max_size=3)
rooms = st.lists(
    st.tuples(st.integers(1, 8), st.none() | st.floats(-10.0, 150.0), occupations),
    min_size=1,
    max_size=4,
).map(
    lambda found: [
        Room(name=str(n), nodes=nodes, end_s=end_s, occupied=occupied)
        for n, (nodes, end_s, occupied) in enumerate(found)
    ]
)


@settings(max_examples=60)
@given(lines, rooms)
def test_never_more_nodes_than_are_free_and_never_past_the_end(
    line: list[Waiting], rooms: list[Room]
) -> None:
    placed = place(line, rooms, 0.0)
    for room in rooms:
        here = [waiting for waiting in line if placed.get(waiting.token) == room.name]
        assert sum(waiting.nodes for waiting in here) <= free_nodes(room)
        assert room.end_s is None or all(
            waiting.expected_s + MARGIN_S <= room.end_s for waiting in here
        )


@settings(max_examples=60)
@given(lines, rooms)
def test_the_first_that_some_allocation_holds_starts_if_it_can(
    line: list[Waiting], rooms: list[Room]
) -> None:
    placed = place(line, rooms, 0.0)
    first = next(
        (waiting for waiting in line if any(room.holds(waiting, 0.0) for room in rooms)), None
    )
    if first is None:
        assert not placed
        return
    fits_now = any(
        first.nodes <= free_nodes(room)
        and (room.end_s is None or first.expected_s + MARGIN_S <= room.end_s)
        for room in rooms
    )
    assert (first.token in placed) == fits_now


class Machine:
    """Allocations without an end that run what is placed, for times other than those expected."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.running: list[tuple[float, str, int, float, str]] = []
        self.now_s = 0.0

    def allocations(self) -> list[Room]:
        return [
            Room(
                name=str(number),
                nodes=size,
                occupied=[
                    held(nodes, expected_s)
                    for _, where, nodes, expected_s, _ in self.running
                    if where == str(number)
                ],
            )
            for number, size in enumerate(self.sizes)
        ]

    def start(self, probe: Waiting, where: str, actual_s: float) -> None:
        entry = (
            self.now_s + actual_s,
            where,
            probe.nodes,
            self.now_s + probe.expected_s,
            probe.token,
        )
        heapq.heappush(self.running, entry)

    def step(self) -> None:
        self.now_s = heapq.heappop(self.running)[0]


@settings(max_examples=25)
@given(
    st.lists(st.integers(3, 6), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(1, 2), st.floats(5.0, 40.0), st.floats(0.3, 4.0)),
        min_size=4,
        max_size=12,
    ),
)
@example(sizes=[4], small=[(1, 10.0, 1.0), (1, 10.0, 1.0), (1, 20.0, 4.0), (2, 10.0, 1.0)])
def test_a_large_probe_starts_although_small_ones_never_stop_coming(
    sizes: list[int], small: list[tuple[int, float, float]]
) -> None:
    """Small probes overrun or end early, and a new one arrives whenever one starts; the large one
    needs every node.

    Those before it in the line may follow one another, each waiting for the end of another that
    overruns.
    """
    machine, count = Machine(sizes), len(small)
    longest_s = max(expected_s * max(1.0, factor) for _, expected_s, factor in small)
    line = {str(n): probe(str(n), *small[n % count][:2]) for n in range(count)}
    for step in itertools.count():
        assert machine.now_s <= 3 * count * 2 * longest_s, (
            f"the large probe still waits at {machine.now_s:.0f} s"
        )
        for token, where in place(line.values(), machine.allocations(), machine.now_s).items():
            if token == "large":
                return
            nth = int(token)
            machine.start(line.pop(token), where, small[nth % count][1] * small[nth % count][2])
            line[f"{nth + count}"] = probe(f"{nth + count}", *small[nth % count][:2])
        if step == 3:
            line["large"] = probe("large", max(sizes), 50.0)
        machine.step()
