"""What every store must do, whatever database holds it."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from frontrunner.results.explain import explain
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.provenance import Provenance
from frontrunner.results.ranking import best
from frontrunner.results.records import Campaign, Lease, Trial
from frontrunner.results.states import (
    CAMPAIGN_TRANSITIONS,
    AttemptState,
    CampaignState,
    IllegalTransition,
    TrialState,
)
from frontrunner.results.status import status
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven, InvalidInput, NotFound
from frontrunner.spaces.recipe import Recipe, Sharding

RECIPE = Recipe(
    devices=8,
    tensor_parallel=2,
    pipeline_parallel=2,
    schedule="1f1b",
    micro_batch_seqs=2,
    accumulation=4,
    sharding=Sharding(optimizer=2),
)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
FOREIGN_HOST = "another-host.example"

MAKERS: dict[str, Callable[[Path], str]] = {"sqlite": lambda folder: f"sqlite:///{folder / 'store.db'}"}
"""How to name a fresh, empty store of each kind of database."""


class SettableClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> datetime:
        return self.moment

    def move(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@pytest.fixture(params=list(MAKERS))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return MAKERS[request.param](tmp_path)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def store(url: str, clock: SettableClock) -> Iterator[Store]:
    with open_store(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def campaign(store: Store) -> Campaign:
    return create(store, "first")


@pytest.fixture
def writer(store: Store, campaign: Campaign) -> CampaignWriter:
    return store.drive(lease_elsewhere(store, campaign))


def create(store: Store, name: str) -> Campaign:
    return store.create_campaign(
        name=name,
        spec_json=json.dumps({"search": {"strategy": "random"}}),
        legal_recipes=12,
        problem_summary={"model": "tiny", "devices": 8},
    )


def lease_elsewhere(store: Store, campaign: Campaign, *, take_over: bool = False, pid: int = 1) -> Lease:
    return store.acquire_lease(campaign.id, host=FOREIGN_HOST, pid=pid, duration_s=30, take_over=take_over)


def measurement(step_time_s: float = 0.5, *, losses: tuple[float, ...] = (5.0, 4.5)) -> Measurement:
    return Measurement(
        step_times_s=(step_time_s, step_time_s * 1.02, step_time_s * 0.99),
        tokens_per_step=4096,
        tokens_per_s=4096 / step_time_s,
        model_tflops_per_device=10 / step_time_s,
        hardware_tflops_per_device=12 / step_time_s,
        mfu=0.1,
        peak_memory_bytes=(10**9, 2 * 10**9),
        losses=losses,
        node_seconds=3.0,
        build_time_s=1.0,
        first_step_time_s=0.75,
    )


def failure(kind: FailureKind = FailureKind.CRASHED) -> Failure:
    return Failure(
        kind=kind, message="rank 1 ended", log_tail="Traceback", log_path="/runs/1/rank1.log", node_seconds=2.0
    )


def begin(writer: CampaignWriter, recipe_id: str = "aaaa00000000") -> Trial:
    return writer.propose(recipe_id, RECIPE)


def everything(store: Store, campaign: Campaign) -> tuple[object, ...]:
    """All that a campaign holds, to see that nothing changed."""
    return (
        store.campaign(campaign.name),
        store.trials(campaign.id),
        store.open_attempts(campaign.id),
        store.told(campaign.id),
        store.events(campaign.id),
    )


class TestCampaigns:
    def test_a_created_campaign_reads_back_from_another_opening(self, store: Store, url: str) -> None:
        made = create(store, "gpt-22b.first_try")
        with open_store(url, create=False) as other:
            read = other.campaign("gpt-22b.first_try")
        assert read == made
        assert (read.state, read.strategy, read.legal_recipes) == (CampaignState.CREATED, "random", 12)
        assert read.problem_summary == {"model": "tiny", "devices": 8}
        assert read.driver is None
        assert datetime.fromisoformat(read.created_at) == START

    def test_a_taken_name_is_refused_with_both_ways_on(self, store: Store, campaign: Campaign) -> None:
        with pytest.raises(InvalidInput, match="exists already") as refused:
            create(store, campaign.name)
        assert refused.value.hint is not None
        assert "frontrunner resume first" in refused.value.hint
        assert "another name" in refused.value.hint

    @pytest.mark.parametrize(
        "name",
        ["", "../../etc", "Upper", ".hidden", "a b", "a\n", "a" * 65, '"; rm -rf ~"', "a\u202eb", "\u00e9t\u00e9"],
    )
    def test_a_name_that_could_mean_something_else_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(InvalidInput, match=r"campaign\.name"):
            create(store, name)
        assert store.campaigns() == []

    def test_no_name_means_the_newest(self, store: Store) -> None:
        create(store, "older")
        create(store, "newer")
        assert store.campaign(None).name == "newer"
        assert [summary.name for summary in store.campaigns()] == ["newer", "older"]

    def test_an_unknown_name_brings_the_nearest(self, store: Store, campaign: Campaign) -> None:
        with pytest.raises(NotFound) as missing:
            store.campaign("frist")
        assert missing.value.hint == "did you mean 'first'?"

    def test_an_empty_store_says_how_to_fill_it(self, store: Store) -> None:
        with pytest.raises(NotFound, match="no campaign") as missing:
            store.campaign(None)
        assert missing.value.hint is not None
        assert "frontrunner launch" in missing.value.hint

    def test_the_summary_counts_trials_and_names_the_best_rate(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        for recipe_id, outcome in (("aaaa", measurement(0.5)), ("bbbb", measurement(0.25)), ("cccc", failure())):
            attempt = writer.start_attempt(begin(writer, recipe_id), run_folder="r")
            writer.finish_attempt(attempt, outcome, retry=False)
        begin(writer, "dddd")
        (summary,) = store.campaigns()
        assert dict(summary.probes) == {
            TrialState.QUEUED: 1,
            TrialState.RUNNING: 0,
            TrialState.MEASURED: 2,
            TrialState.FAILED: 1,
        }
        assert summary.best_tokens_per_s == 4096 / 0.25
        assert summary.node_seconds_spent == 3.0 + 3.0 + 2.0


class TestCampaignStates:
    @pytest.mark.parametrize("after", CampaignState)
    @pytest.mark.parametrize("before", CampaignState)
    def test_only_listed_changes_are_made(
        self, store: Store, campaign: Campaign, before: CampaignState, after: CampaignState
    ) -> None:
        writer = store.drive(lease_elsewhere(store, campaign))
        if before is not CampaignState.CREATED:
            writer.set_state(CampaignState.RUNNING, reason="start")
            writer.set_state(before, reason="set up")
        if after is before or after in CAMPAIGN_TRANSITIONS[before]:
            writer.set_state(after, reason="because")
            assert (store.campaign(None).state, store.campaign(None).state_reason) == (after, "because")
        else:
            with pytest.raises(IllegalTransition):
                writer.set_state(after, reason="because")
            assert store.campaign(None).state is before

    def test_release_ends_in_a_state_that_is_not_running(self, store: Store, writer: CampaignWriter) -> None:
        writer.set_state(CampaignState.RUNNING, reason="start")
        with pytest.raises(IllegalTransition):
            writer.release(CampaignState.RUNNING, reason="oops")
        writer.release(CampaignState.PAUSED, reason="interrupted")
        read = store.campaign(None)
        assert (read.state, read.state_reason, read.driver) == (CampaignState.PAUSED, "interrupted", None)


class TestTrials:
    def test_a_recipe_is_one_trial_of_its_campaign(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        first = begin(writer)
        again = begin(writer)
        other = begin(writer, "bbbb00000000")
        assert again == first
        assert (first.number, other.number) == (1, 2)
        assert store.trials(campaign.id) == [first, other]
        assert store.trials(campaign.id)[0].recipe == RECIPE

    def test_an_attempt_runs_and_is_measured(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, clock: SettableClock
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="/runs/1-1")
        assert store.open_attempts(campaign.id) == [attempt]
        assert (attempt.state, attempt.number, attempt.run_folder) == (AttemptState.RUNNING, 1, "/runs/1-1")
        clock.move(60)
        outcome = measurement()
        writer.finish_attempt(attempt, outcome, retry=False)
        assert store.open_attempts(campaign.id) == []
        assert store.trials(campaign.id)[0].state is TrialState.MEASURED
        assert store.told(campaign.id) == [(RECIPE, outcome)]

    def test_finishing_twice_changes_nothing(self, store: Store, writer: CampaignWriter, campaign: Campaign) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="r")
        writer.finish_attempt(attempt, measurement(0.5), retry=False)
        before = everything(store, campaign)
        writer.finish_attempt(attempt, measurement(0.1), retry=False)
        writer.finish_attempt(attempt, failure(), retry=True)
        assert everything(store, campaign) == before
        assert store.campaign(None).node_seconds_spent == 3.0

    def test_a_lost_attempt_is_tried_again_and_teaches_nothing(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        trial = begin(writer)
        writer.finish_attempt(writer.start_attempt(trial, run_folder="1"), failure(FailureKind.LOST), retry=True)
        assert store.trials(campaign.id)[0].state is TrialState.QUEUED
        assert store.told(campaign.id) == []
        second = writer.start_attempt(trial, run_folder="2")
        assert second.number == 2
        writer.finish_attempt(second, failure(FailureKind.OUT_OF_MEMORY), retry=False)
        assert store.told(campaign.id) == [(RECIPE, failure(FailureKind.OUT_OF_MEMORY))]
        states = [tried.attempt.state for tried in explain(store, trial.recipe_id).appearances[0].attempts]
        assert states == [AttemptState.LOST, AttemptState.FAILED]
        assert store.campaign(None).node_seconds_spent == 4.0

    def test_a_trial_that_was_only_ever_lost_is_failed_but_not_told(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        writer.finish_attempt(attempt, failure(FailureKind.LOST), retry=False)
        assert store.trials(campaign.id)[0].state is TrialState.FAILED
        assert store.told(campaign.id) == []

    def test_a_repeat_that_is_lost_leaves_the_measurement(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        trial = begin(writer)
        writer.finish_attempt(writer.start_attempt(trial, run_folder="1"), measurement(), retry=True)
        writer.finish_attempt(writer.start_attempt(trial, run_folder="2"), failure(FailureKind.LOST), retry=False)
        assert store.trials(campaign.id)[0].state is TrialState.MEASURED
        assert store.told(campaign.id) == [(RECIPE, measurement())]
        assert len(best(store, None)) == 1

    def test_a_repeat_that_runs_out_of_memory_takes_the_recipe_out_of_the_ranking(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        trial = begin(writer)
        writer.finish_attempt(writer.start_attempt(trial, run_folder="1"), measurement(), retry=True)
        second = writer.start_attempt(trial, run_folder="2")
        writer.finish_attempt(second, failure(FailureKind.OUT_OF_MEMORY), retry=False)
        assert best(store, None) == []
        assert store.told(campaign.id) == [(RECIPE, failure(FailureKind.OUT_OF_MEMORY))]

    def test_outcomes_are_told_in_the_order_of_recording(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        attempts = [writer.start_attempt(begin(writer, f"{n:04x}"), run_folder=str(n)) for n in range(4)]
        order = [2, 0, 3, 1]
        for place in order:
            writer.finish_attempt(attempts[place], measurement(1.0 + place), retry=False)
        told = [outcome for _, outcome in store.told(campaign.id)]
        assert told == [measurement(1.0 + place) for place in order]

    def test_a_trial_has_one_running_attempt_and_none_after_its_end(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        trial = begin(writer)
        attempt = writer.start_attempt(trial, run_folder="1")
        with pytest.raises(IllegalTransition):
            writer.start_attempt(trial, run_folder="2")
        writer.finish_attempt(attempt, measurement(), retry=False)
        before = everything(store, campaign)
        with pytest.raises(IllegalTransition):
            writer.start_attempt(trial, run_folder="3")
        assert everything(store, campaign) == before


class TestNumbersThatAreNot:
    def test_losses_that_are_not_finite_come_back_as_nan(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        writer.finish_attempt(attempt, measurement(losses=(5.0, math.nan, math.inf)), retry=False)
        ((_, outcome),) = store.told(campaign.id)
        assert isinstance(outcome, Measurement)
        assert outcome.losses[0] == 5.0
        assert all(math.isnan(loss) for loss in outcome.losses[1:])

    @pytest.mark.parametrize("step_time_s", [math.nan, math.inf, 0.0, -1.0])
    def test_step_times_that_cannot_rank_are_refused(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, step_time_s: float
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        broken = Measurement(**{**vars(measurement()), "step_times_s": (0.5, step_time_s)})
        with pytest.raises(ValueError, match="step"):
            writer.finish_attempt(attempt, broken, retry=False)
        assert store.open_attempts(campaign.id) == [attempt]

    def test_an_event_keeps_no_nan(self, store: Store, writer: CampaignWriter, campaign: Campaign) -> None:
        writer.event("probe_finished", tokens_per_s=math.nan, recipe="aaaa", repeats=2, note=None)
        (event,) = store.events(campaign.id)
        assert (event.kind, event.data) == (
            "probe_finished",
            {"tokens_per_s": None, "recipe": "aaaa", "repeats": 2, "note": None},
        )


class TestEvents:
    def test_events_page_by_the_last_one_seen(self, store: Store, writer: CampaignWriter, campaign: Campaign) -> None:
        for number in range(5):
            writer.event("tick", number=number)
        first = store.events(campaign.id, limit=2)
        rest = store.events(campaign.id, after=first[-1].id)
        assert [event.data["number"] for event in first + rest] == [0, 1, 2, 3, 4]

    def test_events_of_another_campaign_stay_out(self, store: Store, writer: CampaignWriter) -> None:
        writer.event("tick")
        assert store.events(create(store, "second").id) == []


class TestTogether:
    def test_calls_are_written_all_or_none(self, store: Store, writer: CampaignWriter, campaign: Campaign) -> None:
        before = everything(store, campaign)
        with pytest.raises(ZeroDivisionError), writer.together():  # noqa: PT012 - the transaction is what is tested
            writer.start_attempt(begin(writer), run_folder="1")
            writer.event("started", number=1 // 0)
        assert everything(store, campaign) == before
        with writer.together():
            writer.start_attempt(begin(writer), run_folder="1")
            writer.event("started")
        assert len(store.open_attempts(campaign.id)) == len(store.events(campaign.id)) == 1

    def test_a_reader_sees_the_state_before_until_the_end(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, url: str
    ) -> None:
        with open_store(url, read_only=True) as viewer:
            with writer.together():
                begin(writer)
                assert viewer.trials(campaign.id) == []
            assert len(viewer.trials(campaign.id)) == 1


class TestLeases:
    def test_a_second_driver_is_refused_by_name(self, store: Store, campaign: Campaign, writer: CampaignWriter) -> None:
        with pytest.raises(AlreadyDriven, match=rf"first is driven by {FOREIGN_HOST}:1 since 2026-03-01") as refused:
            lease_elsewhere(store, campaign, pid=2)
        assert "--take-over" in str(refused.value.hint)
        writer.event("still writing")

    def test_a_lease_ends_with_its_time_and_each_renewal_moves_the_end(
        self, store: Store, campaign: Campaign, clock: SettableClock
    ) -> None:
        writer = store.drive(lease_elsewhere(store, campaign))
        clock.move(25)
        writer.renew()
        clock.move(25)
        assert status(store, None).driver_is_live
        with pytest.raises(AlreadyDriven):
            lease_elsewhere(store, campaign, pid=2)
        clock.move(6)
        assert not status(store, None).driver_is_live
        assert lease_elsewhere(store, campaign, pid=2).epoch == 2

    def test_a_clock_set_back_keeps_the_lease_and_its_writes(
        self, store: Store, campaign: Campaign, writer: CampaignWriter, clock: SettableClock
    ) -> None:
        clock.move(-3600)
        with pytest.raises(AlreadyDriven):
            lease_elsewhere(store, campaign, pid=2)
        writer.renew()
        writer.event("written")

    def test_a_clock_set_forward_is_made_good_by_the_next_renewal(
        self, store: Store, campaign: Campaign, writer: CampaignWriter, clock: SettableClock
    ) -> None:
        clock.move(3600)
        writer.renew()
        with pytest.raises(AlreadyDriven):
            lease_elsewhere(store, campaign, pid=2)

    def test_a_released_lease_is_free_at_once(self, store: Store, campaign: Campaign, writer: CampaignWriter) -> None:
        writer.set_state(CampaignState.RUNNING, reason="start")
        writer.release(CampaignState.STOPPED, reason="asked to")
        lease_elsewhere(store, campaign, pid=2)

    def test_a_holder_that_died_on_this_host_is_followed_at_once(self, store: Store, campaign: Campaign) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        here = socket.gethostname()
        store.acquire_lease(campaign.id, host=here, pid=child.pid, duration_s=3600)
        with pytest.raises(AlreadyDriven):
            store.acquire_lease(campaign.id, host=here, pid=os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but still in the process table
        assert store.acquire_lease(campaign.id, host=here, pid=os.getpid()).epoch == 2
        child.communicate()

    def test_campaigns_are_leased_one_by_one(self, store: Store, writer: CampaignWriter) -> None:
        lease_elsewhere(store, create(store, "second"), pid=2)
        writer.event("undisturbed")

    def test_there_is_no_lease_without_a_campaign(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.acquire_lease(99, host="h", pid=1)


WRITES: dict[str, Callable[[CampaignWriter, Store, Campaign], None]] = {
    "renew": lambda writer, *_: writer.renew(),
    "release": lambda writer, *_: writer.release(CampaignState.PAUSED, reason="x"),
    "set_state": lambda writer, *_: writer.set_state(CampaignState.PAUSED, reason="x"),
    "propose": lambda writer, *_: str(writer.propose("bbbb", RECIPE)) and None,
    "start_attempt": lambda writer, store, c: str(writer.start_attempt(store.trials(c.id)[1], run_folder="x")) and None,
    "finish_attempt": lambda writer, store, c: writer.finish_attempt(
        store.open_attempts(c.id)[0], measurement(), retry=False
    ),
    "event": lambda writer, *_: writer.event("x"),
    "add_driver_seconds": lambda writer, *_: writer.add_driver_seconds(1.0),
    "record_provenance": lambda writer, *_: writer.record_provenance(PROVENANCE),
}
PROVENANCE = Provenance(
    versions={"python": "3.11.7"},
    host="h",
    platform="Linux",
    device="cpu",
    git_revision="0" * 40,
    git_dirty=False,
    command_line=("frontrunner", "launch"),
)


class TestFencing:
    def test_every_write_of_the_writer_is_listed(self) -> None:
        public = {name for name in vars(CampaignWriter) if not name.startswith("_")}
        assert public - {"together"} == set(WRITES)

    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("how", ["taken over", "released"])
    def test_a_driver_without_its_lease_writes_nothing(
        self, store: Store, campaign: Campaign, write: str, how: str
    ) -> None:
        stale = store.drive(lease_elsewhere(store, campaign))
        stale.set_state(CampaignState.RUNNING, reason="start")
        stale.start_attempt(begin(stale), run_folder="1")
        begin(stale, "cccc")
        if how == "released":
            stale.release(CampaignState.PAUSED, reason="x")
        else:
            lease_elsewhere(store, campaign, take_over=True, pid=2)
        before = everything(store, campaign)
        with pytest.raises(AlreadyDriven, match="first"):
            WRITES[write](stale, store, campaign)
        assert everything(store, campaign) == before

    def test_the_successor_finishes_what_the_first_began_and_it_counts_once(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        successor = store.drive(lease_elsewhere(store, campaign, take_over=True, pid=2))
        (left,) = store.open_attempts(campaign.id)
        successor.finish_attempt(left, measurement(), retry=False)
        with pytest.raises(AlreadyDriven, match=f"taken over by {FOREIGN_HOST}:2"):
            writer.finish_attempt(attempt, measurement(), retry=False)
        assert len(store.told(campaign.id)) == 1
        assert store.campaign(None).node_seconds_spent == 3.0

    def test_a_writer_cannot_finish_an_attempt_of_another_campaign(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        other = store.drive(lease_elsewhere(store, create(store, "second")))
        other.finish_attempt(attempt, measurement(), retry=False)
        assert store.open_attempts(campaign.id) == [attempt]


def test_driver_seconds_add_up_over_sessions(store: Store, campaign: Campaign, writer: CampaignWriter) -> None:
    writer.add_driver_seconds(1.5)
    store.drive(lease_elsewhere(store, campaign, take_over=True)).add_driver_seconds(2.0)
    assert store.campaign(None).driver_seconds == 3.5


def test_attempts_refer_to_the_session_that_started_them(
    store: Store, campaign: Campaign, writer: CampaignWriter
) -> None:
    trial = begin(writer)
    writer.finish_attempt(writer.start_attempt(trial, run_folder="1"), failure(FailureKind.LOST), retry=True)
    writer.record_provenance(PROVENANCE)
    writer.start_attempt(trial, run_folder="2")
    first, second = explain(store, trial.recipe_id).appearances[0].attempts
    assert (first.provenance, second.provenance) == (None, PROVENANCE)
