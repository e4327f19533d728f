"""A hard budget of minutes, whatever drivers are started within it, and however they are held
up.
"""

from collections.abc import Callable
from typing import Any

import pytest

from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeSetup, Progress
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.search.attempts import AHEAD_S, OVERTIME, CampaignSession
from frontrunner.search.driver import Driver
from frontrunner.search.listener import Listener, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces.recipe import Recipe
from support.doubles import Clock, register
from support.drivers import Campaigns, Scripted

ALLOWED_S = 60.0
CUT_S = 5.0
"""Probes are ended so long before the limit."""
TOO_LITTLE = "the hard budget leaves too little for a probe"
ROUNDING_S = 1e-9
"""Sums of seconds are those of floating-point numbers."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of budgets, on which each reading takes a hundredth of a second."""
    clock = Clock(step_s=0.01)
    monkeypatch.setattr("frontrunner.search.budget.time", clock)
    monkeypatch.setattr("frontrunner.search.budget.CUT_S", CUT_S)
    return clock


@pytest.fixture
def near_its_end(
    campaigns: Campaigns, scripted: Any
) -> Callable[[float], tuple[Campaign, CampaignSpec]]:
    """Makes a campaign of probes that do not end, with so many seconds of its minutes left."""

    def made(left_s: float) -> tuple[Campaign, CampaignSpec]:
        scripted(lambda recipe, attempt: None, seconds=600)
        record, spec = campaigns.create(
            "scripted", budget={"minutes": ALLOWED_S / 60, "hard": True}
        )
        writer = campaigns.store.drive(
            campaigns.store.acquire_lease(record.id, host=this_host(), pid=2**22 + 1)
        )
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.add_driver_seconds(ALLOWED_S - left_s)
        writer.release(CampaignState.STOPPED, reason="")
        return record, spec

    return made


class Watch(Listener):
    """Counts the probes that are begun, and ends its driver at a tick."""

    def __init__(self, last_tick: int | None = None) -> None:
        self.driver: Driver | None = None
        self.probes = self._ticks = 0
        self._last_tick = last_tick

    def probe_began(self, view: View, number: int, recipe: Recipe) -> None:
        self.probes += 1

    def ticked(self, view: View) -> None:
        self._ticks += 1
        if self.driver is not None and self._ticks == self._last_tick:
            self.driver.kill()


def driven_s(campaigns: Campaigns, record: Campaign) -> float:
    return campaigns.store.campaign(record.name).driver_seconds


def overtimes_s(campaigns: Campaigns, record: Campaign) -> list[float]:
    told = [event.data for event in campaigns.store.events(record.id) if event.kind == OVERTIME]
    return [float(str(data["seconds"])) for data in told]


def test_drivers_that_are_started_again_and_again_do_not_pass_it(
    campaigns: Campaigns, near_its_end: Any
) -> None:
    """At first each has time for a probe and is ended in it; then none has, and none is charged."""
    record, spec = near_its_end(CUT_S + 0.5)
    with_time = without = 0
    while without < 10:
        before_s, watch = driven_s(campaigns, record), Watch(last_tick=30)
        watch.driver = campaigns.driver(record, spec, watch)
        ended = watch.driver.run()
        if before_s + CUT_S < ALLOWED_S:
            with_time += 1
            assert before_s < driven_s(campaigns, record)
        else:
            without += 1
            assert (driven_s(campaigns, record), watch.probes) == (before_s, 0)
            assert (ended.state, ended.reason) == (
                CampaignState.FINISHED,
                f"{TOO_LITTLE}: {ended.limits[0]}",
            )
    assert with_time > 0
    assert driven_s(campaigns, record) < ALLOWED_S
    assert overtimes_s(campaigns, record) == []


def test_drivers_that_are_killed_at_once_use_the_minutes_up(
    campaigns: Campaigns, near_its_end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is killed in its first second: nothing of it charges anything any more."""
    record, spec = near_its_end(CUT_S + 4 * AHEAD_S)
    drivers = 0
    with monkeypatch.context() as killed:
        killed.setattr(CampaignSession, "close", lambda *_: None)
        while driven_s(campaigns, record) + CUT_S < ALLOWED_S:
            watch = Watch(last_tick=2)
            watch.driver = campaigns.driver(record, spec, watch)
            watch.driver.run(take_over=True)
            drivers += 1
            assert drivers <= 5
    assert driven_s(campaigns, record) <= ALLOWED_S


def test_a_driver_that_is_held_up_is_charged_what_there_was_and_tells_of_the_rest(
    campaigns: Campaigns, near_its_end: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HeldUp(Listener):
        def began(self, view: View) -> None:
            clock.now_s += 20.0

    monkeypatch.setattr("frontrunner.search.budget.CUT_S", 0.1)
    record, spec = near_its_end(0.3)
    ended = campaigns.driver(record, spec, HeldUp()).run()
    assert ended.reason == "the budget is used up: 1 of 1 minutes"
    assert driven_s(campaigns, record) == pytest.approx(ALLOWED_S, abs=ROUNDING_S)
    (beyond_s,) = overtimes_s(campaigns, record)
    assert beyond_s == pytest.approx(20.0 - 0.3, abs=1.0)
    campaigns.driver(record, spec).run()
    assert driven_s(campaigns, record) == pytest.approx(ALLOWED_S, abs=ROUNDING_S)
    assert len(overtimes_s(campaigns, record)) == 1, (
        "it could not have begun anything, so nothing held it up"
    )


WAIT_S, PROBE_S = 20.0, 7.0
LOOKS = 10
"""How often a driver looks in vain for nodes that it has requested."""


class LateNodes(Scripted):
    """Has no nodes at first, and then each probe takes `PROBE_S` on the clock of the budget."""

    clock: Clock

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__(setup)
        self._looks_left = LOOKS

    def finished(self, timeout_s: float) -> list[Finished]:
        self._looks_left -= 1
        self.clock.now_s += WAIT_S if self._waits else PROBE_S
        return [] if self._waits else super().finished(timeout_s)

    @property
    def _waits(self) -> bool:
        return self._looks_left > 0

    def progress(self, token: str) -> Progress | None:
        phase = QUEUED if self._waits else "steps"
        return Progress(phase=phase, steps_done=0, steps_total=1)


@pytest.mark.parametrize("hard", [False, True])
def test_waiting_for_requested_nodes_is_no_driving(
    campaigns: Campaigns, scripted: Any, clock: Clock, *, hard: bool
) -> None:
    scripted(lambda recipe, attempt: None, base=LateNodes, clock=clock)
    budget = {"minutes": (ALLOWED_S + WAIT_S) / 60, "hard": hard, "probes": 3}
    record, spec = campaigns.create("scripted", budget=budget)
    ended = campaigns.driver(record, spec).run()
    assert ended.reason == "the budget is used up: 3 of 3 probes"
    # A driver learns after a look that its probe waits, or does not wait any more.
    assert driven_s(campaigns, record) == pytest.approx(WAIT_S + 2 * PROBE_S, abs=5.0)
    assert overtimes_s(campaigns, record) == []


def test_waiting_for_nodes_that_the_driver_has_is_driving(
    campaigns: Campaigns, scripted: Any, clock: Clock
) -> None:
    scripted(lambda recipe, attempt: None, base=LateNodes, clock=clock, measures_here=True)
    record, spec = campaigns.create("scripted", budget={"minutes": ALLOWED_S / 60})
    ended = campaigns.driver(record, spec).run()
    assert ended.reason.endswith(f"{ended.limits[0]}")
    assert ended.limits[0].used > LOOKS * WAIT_S / 2 / 60


def test_what_a_strategy_proposes_too_late_is_not_begun(
    campaigns: Campaigns, near_its_end: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        def __init__(self, survey: Any, seed: int) -> None:
            self._recipes = list(survey.recipes)

        def ask(self, count: int) -> list[Recipe]:
            clock.now_s += 0.5
            return self._recipes[:count]

    register(monkeypatch, STRATEGIES, "random", Slow)
    record, spec = near_its_end(CUT_S + 0.4)
    watch = Watch()
    ended = campaigns.driver(record, spec, watch).run()
    assert (ended.state, watch.probes) == (CampaignState.FINISHED, 0)
    assert campaigns.states(record) == {}
    assert ALLOWED_S - CUT_S <= driven_s(campaigns, record) < ALLOWED_S
