"""Limits, what uses them up, and the time that is left."""

from contextlib import suppress

import pytest

from frontrunner.search.budget import BudgetTracker, Spent
from frontrunner.search.spec import Budget
from frontrunner.spaces.errors import InvalidInput, NodesUnavailable
from support.doubles import Clock


def spent(probes: int = 0, driver_seconds: float = 0.0, node_seconds: float = 0.0) -> Spent:
    return Spent(probes=probes, driver_seconds=driver_seconds, node_seconds=node_seconds)


def test_only_the_limits_that_are_set_count() -> None:
    assert list(spent(10**6, 1e9, 1e9).limits(Budget())) == []
    found = list(spent(3, 600.0, 3600.0).limits(Budget(probes=4, node_hours=2.0)))
    assert [(limit.name, limit.used, limit.allowed) for limit in found] == [
        ("probes", 3, 4),
        ("node-hours", 1.0, 2.0),
    ]


@pytest.mark.parametrize(
    ("budget", "just_below", "reached", "words"),
    [
        (Budget(probes=3), spent(probes=2), spent(probes=3), "3 of 3 probes"),
        (
            Budget(minutes=2),
            spent(driver_seconds=119.9),
            spent(driver_seconds=120.0),
            "2 of 2 minutes",
        ),
        (
            Budget(node_hours=0.5),
            spent(node_seconds=1799),
            spent(node_seconds=1800),
            "0.5 of 0.5 node-hours",
        ),
        (
            Budget(probes=12_345),
            spent(probes=12_344),
            spent(probes=12_345),
            "12,345 of 12,345 probes",
        ),
    ],
)
def test_each_limit_ends_a_campaign(
    budget: Budget, just_below: Spent, reached: Spent, words: str
) -> None:
    assert just_below.exhausted(budget) is None
    assert str(reached.exhausted(budget)) == words


def test_the_share_of_an_overrun_limit_is_whole() -> None:
    (limit,) = spent(driver_seconds=90).limits(Budget(minutes=1))
    assert (limit.share, limit.used) == (1.0, 1.5)


def test_time_left_is_that_of_the_limit_reached_first() -> None:
    assert spent(5, 100.0).seconds_left(Budget()) is None
    assert spent(0, 0.0).seconds_left(Budget(probes=10)) is None
    assert spent(5, 100.0).seconds_left(Budget(probes=10)) == pytest.approx(100.0)
    assert spent(5, 100.0).seconds_left(Budget(probes=10, minutes=2)) == pytest.approx(20.0)
    assert spent(5, 100.0, 1200.0).seconds_left(Budget(node_hours=1)) == pytest.approx(200.0)
    assert spent(5, 100.0).seconds_left(Budget(minutes=1)) == 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("frontrunner.search.budget.time", clock)
    return clock


def test_a_tracker_goes_on_from_what_earlier_drivers_spent(clock: Clock) -> None:
    tracker = BudgetTracker(Budget(), driver_seconds=100.0, node_seconds=50.0)
    tracker.probes += 2
    clock.now_s += 3.0
    now = tracker.spent()
    assert (now.probes, now.node_seconds, now.driver_seconds) == (2, 50.0, 103.0)


def test_no_second_of_driving_is_charged_twice_or_lost(clock: Clock) -> None:
    tracker = BudgetTracker(Budget())
    charged = 0.0
    for _ in range(5):
        clock.now_s += 0.5
        charged += tracker.charge()
    assert charged == 2.5
    clock.now_s += 0.25
    assert (tracker.uncharged_s, tracker.spent().driver_seconds) == (0.25, 2.75)


def test_time_that_is_free_of_charge_is_neither_spent_nor_charged_later(clock: Clock) -> None:
    soft, hard = BudgetTracker(Budget(minutes=1)), BudgetTracker(Budget(minutes=1, hard=True))
    clock.now_s += 2.0
    assert (soft.charge(ahead_s=3.0), hard.charge(ahead_s=3.0)) == (2.0, 5.0)
    with suppress(NodesUnavailable), soft.free_of_charge(), hard.free_of_charge():
        clock.now_s += 100.0
        raise NodesUnavailable("waited in vain")
    for tracker in (soft, hard):
        assert tracker.uncharged_s == 100.0, "its lease has to be renewed all the same"
        assert (tracker.spent().driver_seconds, tracker.overtime_s) == (2.0, 0.0)
    assert (soft.charge(ahead_s=3.0), hard.charge(ahead_s=3.0)) == (0.0, 0.0)
    clock.now_s += 1.0
    assert (soft.charge(), hard.charge()) == (1.0, -2.0)


def test_hard_minutes_are_charged_in_advance_and_what_was_not_driven_is_given_back(
    clock: Clock,
) -> None:
    soft, hard = BudgetTracker(Budget(minutes=1)), BudgetTracker(Budget(minutes=1, hard=True))
    assert (soft.charge(ahead_s=3.0), hard.charge(ahead_s=3.0)) == (0.0, 3.0)
    clock.now_s += 2.0
    assert (soft.charge(ahead_s=3.0), hard.charge(ahead_s=3.0)) == (2.0, 2.0)
    assert hard.spent().driver_seconds == 2.0, "what was driven, not what was charged"
    clock.now_s += 1.0
    assert (soft.charge(), hard.charge()) == (1.0, -2.0)


def test_a_hard_budget_charges_no_more_than_is_left(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr("frontrunner.search.budget.CUT_S", 0.01)
    budget = Budget(minutes=100.02 / 60, hard=True)
    tracker = BudgetTracker(budget, driver_seconds=100.0)
    clock.now_s += 0.03
    assert tracker.charge() == pytest.approx(0.02)
    assert (tracker.charge(), tracker.spent().driver_seconds) == (0.0, pytest.approx(100.02))
    assert tracker.overtime_s == pytest.approx(0.01)
    overdrawn = BudgetTracker(budget, driver_seconds=110.0)
    assert (overdrawn.charge(), overdrawn.spent().driver_seconds, overdrawn.overtime_s) == (
        0.0,
        110.0,
        0.0,
    )


def test_a_limit_that_no_campaign_file_may_have_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"budget\.probes = 2147483648: expected at most 2,147,483,647"
    ):
        Budget(probes=2**31)
