"""The driver with strategies that predict: repeated measurements, and campaigns that end with
little left to gain.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.trainer.foreign_load import throttled_s
from frontrunner.results.check import check
from frontrunner.results.outcome import FailureKind, Measurement, Outcome, ProbeEnding, Telemetry
from frontrunner.results.predictions import OUTLOOK, expected_of
from frontrunner.results.ranking import best
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import status
from frontrunner.search import driver as driving
from frontrunner.search import job_time
from frontrunner.search.attempts import MOST_DISTURBED
from frontrunner.search.campaign_setup import change_budget
from frontrunner.search.driver import Conclusion
from frontrunner.search.listener import Ended, View
from frontrunner.search.proposals import MOST_MEASUREMENTS
from frontrunner.search.strategy import STRATEGIES, Outlook
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.views.live import outcome_line
from frontrunner.views.results import print_status
from support.campaigns import environment, setup_of, spec_of, tiny
from support.doubles import register
from support.drivers import LEGAL, Campaigns, Recorder, failure
from support.forecasters import Forecaster, measured_twice

RECIPES = spec_of(tiny()).space.survey(spec_of(tiny()).problem).recipes
SETUP = setup_of(Path())
DISTURBED = Telemetry(foreign_limit=0.1, foreign_share=(0.4,), foreign_processes=("make 7",))
PROGRAM = Path(__file__).parent.parent / "support" / "killed_in_a_repeat.py"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Forecaster]]:
    """Register a forecaster in place of `exhaustive`; gives the list of those that drivers make."""

    def use(**behaviour: Any) -> list[Forecaster]:
        made: list[Forecaster] = []

        def make(survey: Any, seed: int) -> Forecaster:
            made.append(Forecaster(survey.recipes, **behaviour))
            return made[-1]

        register(monkeypatch, STRATEGIES, "exhaustive", make)
        return made

    return use


EXHAUSTIVE = {"strategy": "exhaustive"}
SLOWER = ProbeEnding.SLOWER


def disturbed(recipe: Recipe) -> Outcome:
    return replace(simulate(recipe, SETUP), telemetry=DISTURBED)


def test_a_disturbed_measurement_is_made_again_and_the_clean_one_ranks(
    campaigns: Campaigns, scripted: Any
) -> None:
    scripted(
        lambda recipe, attempt: (
            disturbed(recipe) if attempt < (3 if recipe == RECIPES[0] else 1) else None
        )
    )
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget={"probes": 3})
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    assert conclusion.reason == "the budget is used up: 3 of 3 probes", (
        "repeats of the machine's are no probes"
    )
    assert [ended.will_retry for ended in heard.endings] == [True, True, False, False, False]
    assert outcome_line(heard.endings[0]).endswith(
        f"; will be measured again: {DISTURBED.doubts[0]}"
    )
    ranking = best(campaigns.store, record)
    assert {(row.standing.repeats, row.doubts) for row in ranking} == {(1, ())}
    with campaigns.store.database.read() as connection:
        assert check(connection, store="it").is_sound


def test_repeats_end_where_a_machine_stays_busy(campaigns: Campaigns, scripted: Any) -> None:
    clean = {RECIPES[4]}
    made = scripted(lambda recipe, attempt: None if recipe in clean else disturbed(recipe))
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE)
    assert campaigns.driver(record, spec).run().measured == LEGAL
    repeated_until_clean = [3, 2, 1, 1, 1, 3, 2, 1, 1]
    winner = best(campaigns.store, record)[0].recipe
    repeated_until_clean[RECIPES.index(winner)] += 1  # at the end, as no measurement of it is full
    assert [made.attempts[recipe] for recipe in RECIPES] == repeated_until_clean
    assert all(
        bool(row.doubts) == (row.recipe not in clean) for row in best(campaigns.store, record)
    )
    with campaigns.store.database.read() as connection:
        assert check(connection, store="it").is_sound


@pytest.mark.parametrize(
    ("budget", "reason"),
    [({"probes": 5}, "the budget is used up"), ({}, "every legal recipe has been tried")],
)
def test_driver_measures_the_leading_recipe_in_full_before_a_campaign_ends(
    campaigns: Campaigns, scripted: Any, budget: dict[str, int], reason: str
) -> None:
    """The fastest recipe was cut short, as it is after the former best recipe's figure fell."""
    to_beat: list[float | None] = []

    def script(recipe: Recipe, attempt: int) -> Outcome:
        if recipe != RECIPES[1]:
            return outcome_at(2.0)
        return outcome_at(1.1) if attempt > 1 else replace(outcome_at(1.0), ended=SLOWER)

    made = scripted(script)
    start = made.start
    made.start = lambda self, order: (to_beat.append(order.best_tokens_per_s), start(self, order))
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget=budget)
    assert campaigns.driver(record, spec).run().reason.startswith(reason)
    assert made.attempts[RECIPES[1]] == 2
    assert made.attempts.total() == (5 if budget else LEGAL + 1)
    assert to_beat[0] is None, "nothing was measured before"
    assert to_beat[-1] is None, "a repeat is never cut short"
    assert None not in to_beat[1:-1]
    first = best(campaigns.store, record)[0]
    assert (first.recipe, first.standing.repeats) == (RECIPES[1], 2)


def test_a_driver_and_its_successor_go_by_the_same_measurements(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    """One recipe's repeat stays disturbed, and faster; another's first measurements are, and its
    repeat is not.
    """
    outcomes = {
        RECIPES[0]: [outcome_at(1.0), *[replace(outcome_at(0.5), telemetry=DISTURBED)] * 2],
        RECIPES[1]: [*[replace(outcome_at(0.6), telemetry=DISTURBED)] * 3, outcome_at(2.0)],
    }
    evaluator = scripted(lambda recipe, attempt: outcomes[recipe][attempt - 1])

    def wish(forecaster: Forecaster) -> Recipe | None:
        tried = [evaluator.attempts[recipe] for recipe in RECIPES[:2]]
        return None if tried[1] < 3 else RECIPES[0] if tried[0] < 3 else RECIPES[1]

    made = use(wish=wish)
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget={"probes": 4})
    seen: list[Ended | None] = []
    heard: Any = Recorder(lambda view, _: seen.append(view.best))
    campaigns.driver(record, spec, heard).run()
    assert [ended.will_retry for ended in heard.endings] == [
        False,
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert [told.outcome for told in made[0].heard] == [
        outcomes[RECIPES[0]][0],
        *outcomes[RECIPES[1]][:3],
    ]
    live = made[-1].heard
    heard.began = lambda view: seen.append(view.best)
    campaigns.driver(record, spec, heard).run()
    assert [told.outcome for told in live] == [outcomes[RECIPES[0]][0], outcomes[RECIPES[1]][-1]]
    assert made[-1].heard == live
    rates = [
        ended.outcome.tokens_per_s
        for ended in seen
        if ended and isinstance(ended.outcome, Measurement)
    ]
    assert rates == [256.0, *[256.0 / 0.6] * 5, 256.0, 256.0]
    assert [row.standing.tokens_per_s for row in best(campaigns.store, record)] == [256.0, 128.0]


@pytest.mark.system
def test_processes_on_a_probe_s_processors_are_noticed_and_it_is_repeated(
    campaigns: Campaigns,
) -> None:
    held_s = throttled_s()
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        probe = {"foreign_load_limit": 0.1, "measured_steps": 50}
        record, spec = campaigns.create("probe", probe=probe, budget={"probes": 1})
        heard = Recorder()
        campaigns.driver(record, spec, heard).run()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    if throttled_s() > held_s:
        pytest.skip(
            "a quota holds the processes here, so that waiting for one another cannot be told"
            " from it"
        )
    assert [ended.will_retry for ended in heard.endings] == [True] * (MOST_DISTURBED - 1) + [False]
    for ended in heard.endings:
        assert isinstance(ended.outcome, Measurement)
        recorded = ended.outcome.telemetry
        assert recorded is not None
        assert recorded.foreign_cores is not None
        assert min(recorded.foreign_cores) > 0.2
    (row,) = best(campaigns.store, record)
    assert row.standing.repeats == MOST_DISTURBED
    assert "of the time for processors that other processes used" in row.doubts[0]


def test_a_repeat_is_one_more_probe_pooled_in_the_ranking_and_told_again(
    campaigns: Campaigns, use: Any
) -> None:
    made = use(wish=measured_twice(RECIPES[1]))
    record, spec = campaigns.create(search=EXHAUSTIVE, budget={"probes": 4})
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    assert conclusion.reason == "the budget is used up: 4 of 4 probes"
    assert [told.recipe for told in made[0].heard] == [
        RECIPES[0],
        RECIPES[1],
        RECIPES[1],
        RECIPES[2],
    ]
    assert (conclusion.measured, heard.notices) == (3, ["repeat"])
    ranked = {row.recipe: row.standing.repeats for row in best(campaigns.store, None)}
    assert ranked == {RECIPES[0]: 1, RECIPES[1]: 2, RECIPES[2]: 1}
    assert [recipe for recipe, _ in campaigns.store.final_outcomes(record.id)] == [
        told.recipe for told in made[0].heard
    ]


def test_what_was_expected_of_each_proposal_is_stored_with_it(campaigns: Campaigns) -> None:
    record, spec = campaigns.create(search={"strategy": "guided"}, budget={"probes": 12})
    campaigns.driver(record, spec).run()
    numbers = [trial.number for trial in campaigns.store.trials(record.id)]
    found = expected_of(campaigns.store, record.id, numbers)
    assert sorted(found) == numbers
    first, *later = (found[number] for number in numbers)
    assert first.expected_improvement is None, "nothing was measured yet"
    assert all(one.expected_improvement is not None and 0 <= one.chance <= 1 for one in later)
    assert expected_of(campaigns.store, record.id, [2]) == {2: found[2]}
    assert expected_of(campaigns.store, record.id, []) == {}
    assert not [
        event for event in status(campaigns.store, None).last_events if event.kind == "proposed"
    ]


def test_a_rebuilt_strategy_hears_what_the_first_one_heard(campaigns: Campaigns, use: Any) -> None:
    made = use(wish=measured_twice(RECIPES[0]))
    record, spec = campaigns.create(search=EXHAUSTIVE, budget={"probes": 5})
    for _ in range(6):
        campaigns.stopped_after_a_probe(record, spec)
    assert len(made) == 6
    for earlier, later in pairwise(made):
        assert later.heard[: len(earlier.heard)] == earlier.heard
    assert [told.recipe for told in made[-1].heard] == [RECIPES[0], RECIPES[0], *RECIPES[1:4]]
    assert campaigns.store.campaign(record.name).outcomes == 5


def test_a_repeat_that_the_machine_lost_leaves_the_measurement(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    lost = failure(FailureKind.LOST)
    evaluator = scripted(
        lambda recipe, attempt: lost if recipe == RECIPES[0] and attempt > 1 else None
    )
    use(wish=lambda forecaster: RECIPES[0] if len(forecaster.heard) == 1 else None)
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget={"probes": 3})
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    assert evaluator.attempts[RECIPES[0]] == 1 + 4
    assert "strategy-replaced" not in heard.notices
    assert campaigns.states(record) == {TrialState.MEASURED: 2}
    assert conclusion.measured == len(best(campaigns.store, None)) == 2


def test_a_wish_for_repeats_that_the_machine_loses_ends(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    lost = failure(FailureKind.LOST)
    evaluator = scripted(
        lambda recipe, attempt: lost if recipe == RECIPES[0] and attempt > 1 else None
    )
    use(wish=lambda forecaster: RECIPES[0] if forecaster.heard else None)
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget={"probes": 4 * LEGAL})
    conclusion = campaigns.driver(record, spec).run()
    assert conclusion.reason == "every legal recipe has been tried"
    assert evaluator.attempts[RECIPES[0]] == 1 + 4
    assert campaigns.states(record) == {TrialState.MEASURED: LEGAL}


@pytest.mark.parametrize("kind", [FailureKind.OUT_OF_MEMORY, FailureKind.CRASHED])
def test_a_recipe_that_fails_when_repeated_is_not_recommended(
    campaigns: Campaigns, use: Any, scripted: Any, kind: FailureKind
) -> None:
    fastest = RECIPES[1]

    def script(recipe: Recipe, attempt: int) -> Outcome | None:
        return (
            failure(kind)
            if recipe == fastest and attempt > 1
            else outcome_at(1.0 if recipe == fastest else 2.0)
        )

    scripted(script)
    use(wish=measured_twice(fastest))
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget={"probes": 4})
    bests: list[Recipe | None] = []
    heard = Recorder(lambda view, _: bests.append(view.best.recipe if view.best else None))
    conclusion = campaigns.driver(record, spec, heard).run()
    assert fastest in bests, "it was the best before"
    assert bests[-1] == RECIPES[0]
    assert conclusion.measured == 2
    assert fastest not in {row.recipe for row in best(campaigns.store, None)}
    assert campaigns.states(record) == {TrialState.MEASURED: 2, TrialState.FAILED: 1}


def outcome_at(step_time_s: float) -> Measurement:
    return Measurement(
        step_times_s=(step_time_s,),
        tokens_per_step=256,
        tokens_per_s=256 / step_time_s,
        model_tflops_per_device=0.1 / step_time_s,
        hardware_tflops_per_device=0.1 / step_time_s,
        mfu=None,
        peak_memory_bytes=(1000, 1000),
        losses=(),
        node_seconds=1.0,
        build_time_s=0.1,
        first_step_time_s=step_time_s,
    )


def test_a_crash_before_the_measurement_is_not_held_against_the_repeat(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    crashing = (1, 3)
    scripted(
        lambda recipe, attempt: (
            failure(FailureKind.CRASHED) if attempt in crashing else outcome_at(1.0)
        )
    )
    use(wish=measured_twice(RECIPES[0]))
    record, spec = campaigns.create("scripted", search=EXHAUSTIVE, budget={"probes": 2})
    campaigns.driver(record, spec).run()
    (row,) = best(campaigns.store, None)
    assert row.standing.repeats == 2


def test_a_strategy_that_always_wants_the_same_is_followed_for_a_while(
    campaigns: Campaigns, use: Any
) -> None:
    use(wish=lambda forecaster: RECIPES[0] if forecaster.heard else None)
    record, spec = campaigns.create(search=EXHAUSTIVE)
    conclusion = campaigns.driver(record, spec).run()
    assert conclusion.reason == "every legal recipe has been tried"
    repeats = sorted(row.standing.repeats for row in best(campaigns.store, None))
    assert repeats == [1] * (LEGAL - 1) + [MOST_MEASUREMENTS]


def test_a_repeat_under_way_is_not_started_twice(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    made = scripted(lambda recipe, attempt: None, seconds=0.03)
    use(wish=measured_twice(RECIPES[0]))
    record, spec = campaigns.create(
        "scripted", search={**EXHAUSTIVE, "parallel_probes": 3}, budget={"probes": 7}
    )
    campaigns.driver(record, spec).run()
    assert (made.most_at_a_time, made.attempts[RECIPES[0]]) == (3, 2)


def test_a_driver_killed_in_a_repeat_loses_no_measurement(
    campaigns: Campaigns, use: Any, tmp_path: Path
) -> None:
    """A child process that SIGKILLs itself once the repeat is under way; then another driver goes
    on.
    """
    record, spec = campaigns.create(search=EXHAUSTIVE, budget={"probes": 3})
    killed = subprocess.run(
        [sys.executable, "-P", PROGRAM, str(tmp_path / "store.db"), record.name],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (row,) = best(campaigns.store, None)
    assert row.standing.repeats == 1, "its measurement still ranks"
    assert campaigns.states(record) == {TrialState.RUNNING: 1}
    made = use(wish=measured_twice(RECIPES[0]))
    heard = Recorder()
    conclusion = campaigns.driver(record, spec, heard).run()
    assert heard.notices == ["lost"], (
        "the repeat that was cut off is made again, as the same repeat"
    )
    assert [told.recipe for told in made[0].heard] == [RECIPES[0], RECIPES[0], RECIPES[1]]
    assert conclusion.measured == 2
    assert {row.recipe: row.standing.repeats for row in best(campaigns.store, None)} == {
        RECIPES[0]: 2,
        RECIPES[1]: 1,
    }


@pytest.mark.parametrize(
    ("search", "told"),
    [
        (EXHAUSTIVE, [None, 128.0, 256.0, 256.0]),
        ({"strategy": "guided", "objectives": ["tokens", "memory"]}, [None, None, None, None]),
    ],
    ids=["speed", "front"],
)
def test_probes_are_told_the_best_so_far_where_speed_alone_is_sought(
    campaigns: Campaigns,
    scripted: Any,
    monkeypatch: pytest.MonkeyPatch,
    search: dict[str, Any],
    told: list[float | None],
) -> None:
    """A slow probe is cut short against the best; it may yet be on a front."""
    steps = iter([2.0, 1.0, 4.0, 3.0])
    made = scripted(lambda recipe, attempt: outcome_at(next(steps)))
    orders: list[ProbeOrder] = []
    start = made.start
    monkeypatch.setattr(
        made, "start", lambda self, order: (orders.append(order), start(self, order))[1]
    )
    record, spec = campaigns.create("scripted", search=search, budget={"probes": 4})
    campaigns.driver(record, spec).run()
    assert [order.best_tokens_per_s for order in orders] == told


def promising(*improvements: float) -> Callable[[Forecaster], Outlook | None]:
    """Expects these gains after so many outcomes, and the last one from then on."""

    def expect(forecaster: Forecaster) -> Outlook | None:
        place = min(len(forecaster.heard), len(improvements)) - 1
        return Outlook(expected_improvement=improvements[place], gap=0.008, gap_at_most=0.031)

    return expect


def test_a_lost_probe_does_not_confirm_that_little_is_left_to_gain(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    use(expect=promising(0.2, 0.2, 0.004, 0.004, 0.2, 0.004))
    scripted(lambda recipe, attempt: failure(FailureKind.LOST) if recipe == RECIPES[3] else None)
    search = {**EXHAUSTIVE, "stop_below_improvement": 0.01}
    record, spec = campaigns.create("scripted", search=search)
    assert campaigns.driver(record, spec).run().measured == 6


def test_a_campaign_ends_when_little_is_left_to_gain_and_says_so(
    campaigns: Campaigns, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    use(expect=promising(0.001, 0.001, 0.2, 0.004, 0.02, 0.004, 0.003))
    record, spec = campaigns.create(
        search={**EXHAUSTIVE, "stop_below_improvement": 0.01}, budget={"probes": 40}
    )
    conclusion = campaigns.driver(record, spec).run()
    assert conclusion.state is CampaignState.FINISHED
    assert (
        conclusion.reason
        == "the next probe is expected to gain 0.3 %, under 1 %; the best is estimated to be 0.79 %"
        " below the best of the whole space (95 %: at most 3 %); 33 of 40 probes unused"
    )
    assert (conclusion.measured, conclusion.outlook) == (
        7,
        Outlook(expected_improvement=0.003, gap=0.008, gap_at_most=0.031),
    )
    found = status(campaigns.store, None)
    assert found.outlook is not None
    assert dict(found.outlook.data) == {
        "expected_improvement": 0.003,
        "gap": 0.008,
        "gap_at_most": 0.031,
        "of_front": False,
        "measured": 7,
    }
    assert OUTLOOK not in {event.kind for event in found.last_events}
    print_status(found)
    assert (
        "outlook   the next probe is expected to gain 0.3 %; the best is" in capsys.readouterr().out
    )
    again = campaigns.driver(record, spec).run()
    assert (again.reason, again.measured) == (conclusion.reason, 7), "resumed, it starts nothing"


def test_an_outcome_after_which_nothing_is_expected_keeps_apart_those_around_it_after_a_resume(
    campaigns: Campaigns, use: Any
) -> None:
    little = Outlook(expected_improvement=0.001, gap=0.0, gap_at_most=0.1)
    much = replace(little, expected_improvement=0.2)
    expected = [much, much, little, None, little, much]
    use(expect=lambda forecaster: expected[min(len(forecaster.heard), 6) - 1])
    record, spec = campaigns.create(search={**EXHAUSTIVE, "stop_below_improvement": 0.01})
    shown = []
    for _ in range(5):
        campaigns.stopped_after_a_probe(record, spec)
        shown.append(status(campaigns.store, None).outlook is not None)
    assert shown == [True, True, True, False, True]
    assert campaigns.driver(record, spec).run().reason == "every legal recipe has been tried"


def test_the_rule_can_be_switched_off(campaigns: Campaigns, use: Any) -> None:
    use(expect=promising(0.0))
    record, spec = campaigns.create(search={**EXHAUSTIVE, "stop_below_improvement": 0.0})
    assert campaigns.driver(record, spec).run().reason == "every legal recipe has been tried"


def test_doubt_about_the_best_is_settled_before_a_campaign_ends(
    campaigns: Campaigns, use: Any
) -> None:
    use(
        expect=promising(0.0), wish=lambda found: RECIPES[0] if len(found.heard) in (3, 4) else None
    )
    record, spec = campaigns.create(search=EXHAUSTIVE)
    conclusion = campaigns.driver(record, spec).run()
    assert campaigns.store.campaign(record.name).outcomes == 5
    assert "is expected to gain 0 %" in conclusion.reason


def test_failures_alone_end_no_campaign_by_forecast(
    campaigns: Campaigns, use: Any, scripted: Any
) -> None:
    scripted(lambda recipe, attempt: failure(FailureKind.OUT_OF_MEMORY))
    use(expect=promising(0.0))
    record, spec = campaigns.create("scripted", search={**EXHAUSTIVE, "identical_failures": 99})
    assert campaigns.driver(record, spec).run().reason == "every legal recipe has been tried"


def test_a_forecaster_that_fails_is_replaced(campaigns: Campaigns, use: Any) -> None:
    def broken(_: Forecaster) -> None:
        raise RuntimeError("no idea")

    for number, behaviour in enumerate(
        ({"wish": broken}, {"expect": broken}, {"wish": lambda _: RECIPES[8]})
    ):
        use(**behaviour)
        record, spec = campaigns.create(name=f"tiny-{number}", search=EXHAUSTIVE)
        heard = Recorder()
        conclusion = campaigns.driver(record, spec, heard).run()
        assert (heard.notices, conclusion.measured) == (["strategy-replaced"], LEGAL)


def test_what_a_person_asks_for_is_measured_beyond_the_budget_and_leaves_the_campaign_as_it_was(
    campaigns: Campaigns,
) -> None:
    record, spec = campaigns.create(
        search=EXHAUSTIVE | {"parallel_probes": 3}, budget={"probes": 3}
    )
    before = campaigns.driver(record, spec).run()
    campaigns.driver(record, spec, asked=[RECIPES[0], RECIPES[0], RECIPES[5]]).run()
    after = campaigns.store.campaign(record.name)
    assert (after.state, after.state_reason) == (before.state, before.reason)
    ranked = {row.recipe: row.standing.repeats for row in best(campaigns.store, None)}
    assert ranked == {RECIPES[0]: 3, RECIPES[1]: 1, RECIPES[2]: 1, RECIPES[5]: 1}
    with campaigns.store.database.read() as connection:
        assert check(connection, store="it").is_sound


def test_what_ends_a_driver_early_is_reported_with_the_measurements_that_it_did_not_make(
    campaigns: Campaigns, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(lambda *_: None)
    record, spec = campaigns.create(evaluator="scripted", search=EXHAUSTIVE, budget={"probes": 3})
    before = campaigns.driver(record, spec).run()

    def asked(on_ended: Callable[[], object], **more: Any) -> Conclusion:
        driver = campaigns.driver(
            record, spec, Recorder(lambda *_: on_ended()), asked=[RECIPES[0], *RECIPES[5:7]]
        )
        more.get("at_first", lambda _: None)(driver)
        found = driver.run()
        now = campaigns.store.campaign(record.name)
        assert (now.state, now.state_reason) == (before.state, before.reason)
        assert found.state is before.state
        return found

    with monkeypatch.context() as patched:
        fill = lambda: patched.setattr(driving, "why_disk_full", lambda _: "the disk is full")  # noqa: E731
        full = asked(fill)
    assert (full.unmade, full.reason, full.last_failure) == (
        2,
        "1 of 3 measured as asked; the disk is full",
        None,
    )
    with monkeypatch.context() as patched:
        left_s, looks = [1000.0], threading.Semaphore(0)

        def end_of_job() -> float:
            looks.release()
            return time.monotonic() + left_s[0]

        def job_will_end_soon() -> None:
            left_s[0] = 40.0
            while looks.acquire(blocking=False):
                pass
            for _ in range(3):  # at the third look the second one's answer is known
                looks.acquire()

        patched.setattr(job_time, "end_of_job", end_of_job)
        patched.setattr(job_time, "LOOK_AT_JOB_S", 0.001)
        late = asked(job_will_end_soon)
    assert (late.unmade, late.job_ends) == (2, True)
    killed = asked(lambda: None, at_first=lambda driver: driver.kill())
    assert (killed.unmade, killed.reason) == (3, "0 of 3 measured as asked; canceled by request")
    done = asked(lambda: None)
    assert (done.unmade, done.reason) == (0, "3 of 3 measured as asked")


def test_a_failed_recipe_that_is_asked_for_ranks_once_it_is_measured(
    campaigns: Campaigns, scripted: Any
) -> None:
    fails_first = lambda _, number: failure(FailureKind.OUT_OF_MEMORY) if number == 1 else None  # noqa: E731
    used = scripted(fails_first)
    record, spec = campaigns.create(evaluator="scripted", search=EXHAUSTIVE, budget={"probes": 1})
    campaigns.driver(record, spec).run()
    tried = dict(used.attempts)
    assert campaigns.states(record) == {TrialState.FAILED: 1}
    scripted(lambda recipe, number: fails_first(recipe, number + tried.get(recipe, 0)))
    again = campaigns.driver(record, spec, asked=[RECIPES[0]]).run()
    assert (again.unmade, campaigns.states(record)) == (0, {TrialState.MEASURED: 1})
    assert [row.recipe for row in best(campaigns.store, None)] == [RECIPES[0]]


def test_what_was_cut_off_waits_until_the_campaign_goes_on(
    campaigns: Campaigns, scripted: Any
) -> None:
    scripted(lambda *_: None, seconds=3600.0)
    record, spec = campaigns.create(evaluator="scripted", search=EXHAUSTIVE)
    heard: Any = Recorder()
    driver = campaigns.driver(record, spec, heard)
    heard.probe_began = lambda *_: driver.kill()
    driver.run()
    assert campaigns.states(record) == {TrialState.QUEUED: 1}
    scripted(lambda *_: None)
    campaigns.driver(record, spec, asked=[RECIPES[3]]).run()
    assert campaigns.states(record) == {TrialState.QUEUED: 1, TrialState.MEASURED: 1}
    assert campaigns.store.campaign(record.name).state is CampaignState.STOPPED


def test_a_budget_that_is_changed_while_a_driver_runs_is_taken_in(
    campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontrunner.search.attempts.RENEW_S", 0.0)
    record, spec = campaigns.create(search=EXHAUSTIVE, budget={"probes": 3})
    add_two = iter([{"probes": 2}])

    def on_ended(view: View, ended: Ended) -> None:
        del view, ended
        for limits in add_two:
            change_budget(campaigns.store, record, limits, add=True)

    conclusion = campaigns.driver(record, spec, Recorder(on_ended)).run()
    assert conclusion.reason == "the budget is used up: 5 of 5 probes"
    with pytest.raises(InvalidInput, match="no limit of minutes"):
        change_budget(campaigns.store, record, {"minutes": 2}, add=True)
