"""What every store must do with campaigns, trials, attempts and events, whatever database holds
it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import text

from frontrunner.results.check import check
from frontrunner.results.courses import Course, Courses
from frontrunner.results.nodes import CHECKED, AttemptNodes, NodeLedger, node_ledger
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    ProbeEnding,
    Telemetry,
)
from frontrunner.results.prior_results import REUSED
from frontrunner.results.process_identity import acting_for, acting_user
from frontrunner.results.provenance import Provenance
from frontrunner.results.pruning import delete_campaign
from frontrunner.results.ranking import best
from frontrunner.results.records import Campaign, Labels
from frontrunner.results.schema import LATER_TABLES
from frontrunner.results.states import (
    AttemptState,
    CampaignState,
    IllegalTransition,
    TrialState,
)
from frontrunner.results.status import explain, status
from frontrunner.results.store import LABELED, Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven, InvalidInput, NotFound
from support.store_contract import (
    RECIPE,
    START,
    SettableClock,
    StoreContract,
    begin,
    create,
    everything,
    failure,
    lease_elsewhere,
    measurement,
    repeated,
)

BUSY = Telemetry(foreign_limit=0.1, foreign_share=(0.01,), foreign_processes=("make 7",))
PROVENANCE = Provenance(
    versions={"python": "3.11.7"},
    host="h",
    platform="Linux",
    device="cpu",
    git_revision="0" * 40,
    git_dirty=False,
    command_line=("frontrunner", "launch"),
)


class TestCampaigns(StoreContract):
    def test_a_created_campaign_reads_back_from_another_opening(
        self, store: Store, url: str
    ) -> None:
        made = create(store, "gpt-22b.first_try")
        with open_store(url, create=False) as other:
            read = other.campaign("gpt-22b.first_try")
        assert read == made
        assert (read.state, read.strategy, read.legal_recipes) == (
            CampaignState.CREATED,
            "random",
            12,
        )
        assert read.problem_summary == {"model": "tiny", "devices": 8}
        assert read.driver is None
        assert datetime.fromisoformat(read.created_at) == START

    def test_a_taken_name_is_refused_with_both_ways_on(
        self, store: Store, campaign: Campaign
    ) -> None:
        with pytest.raises(InvalidInput, match="exists already") as refused:
            create(store, campaign.name)
        assert refused.value.hint is not None
        assert "frontrunner resume first" in refused.value.hint
        assert "another name" in refused.value.hint

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "../../etc",
            "Upper",
            ".hidden",
            "a b",
            "a\n",
            "a" * 65,
            '"; rm -rf ~"',
            "a\u202eb",
            "\u00e9t\u00e9",
        ],
    )
    def test_a_name_that_could_mean_something_else_is_refused(
        self, store: Store, name: str
    ) -> None:
        with pytest.raises(InvalidInput, match=r"campaign\.name"):
            create(store, name)
        assert store.campaigns() == []

    def test_no_name_means_the_newest(self, store: Store) -> None:
        create(store, "older")
        create(store, "newer")
        assert store.campaign(None).name == "newer"
        assert [summary.name for summary in store.campaigns()] == ["newer", "older"]

    def test_a_campaign_left_without_an_outcome_is_not_the_newest(self, store: Store) -> None:
        create(store, "measured")
        one = store.drive(lease_elsewhere(store, create(store, "waiting")))
        assert store.campaign(None).name == "waiting"
        one.set_state(CampaignState.RUNNING, reason="")
        one.release(CampaignState.PAUSED, reason="no nodes")
        assert [summary.is_idle for summary in store.campaigns()] == [True, False]

    def test_a_campaign_that_is_driven_is_neither_renamed_nor_deleted(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        create(store, "other")
        changes = (lambda: store.rename("first", "second"), lambda: delete_campaign(store, "first"))
        for change in changes:
            with pytest.raises(AlreadyDriven, match="campaign first is driven by"):
                change()
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.release(CampaignState.STOPPED, reason="")
        with pytest.raises(InvalidInput, match="'other' exists already"):
            store.rename("first", "other")
        delete_campaign(store, "other")
        with pytest.raises(NotFound) as unknown:
            store.campaign("other")
        assert str(unknown.value.hint).startswith(f"{acting_user()} deleted it on 20")
        with acting_for("ada"):
            store.rename("first", "second")
        assert store.campaign("second").id == campaign.id
        assert [(event.kind, event.data) for event in store.events(campaign.id)] == [
            ("renamed", {"earlier": "first", "name": "second", "user": "ada"})
        ]
        delete_campaign(store, "second")
        with pytest.raises(AlreadyDriven, match="campaign first was deleted"):
            writer.renew()

    def test_labels_are_replaced_one_by_one_while_a_driver_writes(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        assert store.labels("first") == Labels()
        store.label("first", tags=("a", "b"), note="why: ü\x00")
        writer.set_state(CampaignState.RUNNING, reason="")
        store.label("first", hidden=True)
        expected = Labels(tags=("a", "b"), note="why: ü\ufffd", hidden=True)
        assert store.labels("first") == store.campaigns()[0].labels == expected
        store.label("first", hidden=False, tags=())
        assert store.labels("first") == Labels(note="why: ü\ufffd")
        for tag in ("", " a", "a,b", "a\n", "x" * 41):
            with pytest.raises(InvalidInput, match="tag = "):
                store.label("first", tags=("fine", tag))
        assert store.labels("first").tags == ()
        noted = [event.data for event in store.events(campaign.id, kind=LABELED)]
        assert noted[1:] == [
            {"hidden": "yes", "user": acting_user()},
            {"hidden": "no", "tags": "", "user": acting_user()},
        ]

    def test_courses_follow_the_best_rate_and_what_was_reused(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        courses = Courses()

        def course() -> Course:
            summaries = store.campaigns()
            return courses.of(store, summaries)[campaign.id]

        def end(recipe_id: str, outcome: Outcome) -> None:
            attempt = writer.start_attempt(begin(writer, recipe_id), run_folder="r")
            writer.finish_attempt(attempt, outcome, retry=False)

        assert course().best == []
        for recipe_id, outcome in (
            ("bbbb", measurement(0.5)),
            ("aaaa", failure()),
            ("cccc", measurement(0.6)),
        ):
            end(recipe_id, outcome)
        slow, fast = measurement(0.5).tokens_per_s, measurement(0.2).tokens_per_s
        assert [place for place, _ in course().best] == [1]
        writer.event(REUSED, trial=1)
        create(store, "second")
        end("dddd", measurement(0.2))
        end("eeee", measurement(0.4))
        kept = course()
        assert [place for place, _ in kept.best] == [1, 4]
        assert [rate for _, rate in kept.best] == pytest.approx([slow, fast], rel=0.02)
        assert kept.reused == course().reused == 1
        fastest = store.trials(campaign.id)[3]
        attempt = writer.start_attempt(writer.repeat(fastest), run_folder="r")
        writer.finish_attempt(attempt, failure(FailureKind.OUT_OF_MEMORY), retry=False)
        assert [place for place, _ in course().best] == [1, 5], "what led has failed since"

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
        for recipe_id, outcome in (
            ("aaaa", measurement(0.5)),
            ("bbbb", measurement(0.25)),
            ("cccc", failure()),
        ):
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


class TestCampaignStates(StoreContract):
    @pytest.mark.parametrize("after", CampaignState)
    @pytest.mark.parametrize("before", CampaignState)
    def test_only_listed_changes_are_made(
        self, store: Store, campaign: Campaign, before: CampaignState, after: CampaignState
    ) -> None:
        writer = store.drive(lease_elsewhere(store, campaign))
        if before is not CampaignState.CREATED:
            writer.set_state(CampaignState.RUNNING, reason="start")
            writer.set_state(before, reason="set up")
        is_running = before is CampaignState.RUNNING
        follow = (
            set(CampaignState) - {CampaignState.CREATED} if is_running else {CampaignState.RUNNING}
        )
        if after in {before, *follow}:
            writer.set_state(after, reason="because")
            assert (store.campaign(None).state, store.campaign(None).state_reason) == (
                after,
                "because",
            )
        else:
            with pytest.raises(IllegalTransition):
                writer.set_state(after, reason="because")
            assert store.campaign(None).state is before

    def test_release_ends_in_a_state_that_is_not_running(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        writer.set_state(CampaignState.RUNNING, reason="start")
        with pytest.raises(IllegalTransition):
            writer.release(CampaignState.RUNNING, reason="oops")
        writer.release(CampaignState.PAUSED, reason="interrupted")
        read = store.campaign(None)
        assert (read.state, read.state_reason, read.driver) == (
            CampaignState.PAUSED,
            "interrupted",
            None,
        )


class TestTrials(StoreContract):
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
        assert (attempt.state, attempt.number, attempt.run_folder) == (
            AttemptState.RUNNING,
            1,
            "/runs/1-1",
        )
        clock.move(60)
        outcome = measurement()
        writer.finish_attempt(attempt, outcome, retry=False)
        assert store.open_attempts(campaign.id) == []
        assert store.trials(campaign.id)[0].state is TrialState.MEASURED
        assert store.final_outcomes(campaign.id) == [(RECIPE, outcome)]

    def test_finishing_twice_changes_nothing(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
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
        writer.finish_attempt(
            writer.start_attempt(trial, run_folder="1"), failure(FailureKind.LOST), retry=True
        )
        assert store.trials(campaign.id)[0].state is TrialState.QUEUED
        assert store.final_outcomes(campaign.id) == []
        second = writer.start_attempt(trial, run_folder="2")
        assert second.number == 2
        writer.finish_attempt(second, failure(FailureKind.OUT_OF_MEMORY), retry=False)
        assert store.final_outcomes(campaign.id) == [(RECIPE, failure(FailureKind.OUT_OF_MEMORY))]
        states = [
            tried.attempt.state for tried in explain(store, trial.recipe_id).appearances[0].attempts
        ]
        assert states == [AttemptState.LOST, AttemptState.FAILED]
        assert store.campaign(None).node_seconds_spent == 4.0

    def test_a_trial_that_was_only_ever_lost_is_failed_but_not_told(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        writer.finish_attempt(attempt, failure(FailureKind.LOST), retry=False)
        assert store.trials(campaign.id)[0].state is TrialState.FAILED
        assert store.final_outcomes(campaign.id) == []

    def test_a_repeat_that_is_lost_leaves_the_measurement(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        trial = begin(writer)
        writer.finish_attempt(
            writer.start_attempt(trial, run_folder="1"), measurement(), retry=False
        )
        second = writer.start_attempt(repeated(writer, store, campaign), run_folder="2")
        assert len(best(store, None)) == 1, "it ranks while it is measured again"
        assert store.final_outcomes(campaign.id) == [(RECIPE, measurement())]
        writer.finish_attempt(second, failure(FailureKind.LOST), retry=False)
        assert store.trials(campaign.id)[0].state is TrialState.MEASURED
        assert store.final_outcomes(campaign.id) == [(RECIPE, measurement())]
        assert len(best(store, None)) == 1

    def test_a_repeat_that_runs_out_of_memory_takes_the_recipe_out_of_the_ranking(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        trial = begin(writer)
        writer.finish_attempt(
            writer.start_attempt(trial, run_folder="1"), measurement(), retry=False
        )
        second = writer.start_attempt(repeated(writer, store, campaign), run_folder="2")
        writer.finish_attempt(second, failure(FailureKind.CRASHED), retry=True)
        third = writer.start_attempt(store.trials(campaign.id)[0], run_folder="3")
        writer.finish_attempt(third, failure(FailureKind.OUT_OF_MEMORY), retry=False)
        assert best(store, None) == []
        assert store.final_outcomes(campaign.id) == [
            (RECIPE, measurement()),
            (RECIPE, failure(FailureKind.OUT_OF_MEMORY)),
        ]

    def test_repeats_are_pooled_and_told_one_by_one(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, clock: SettableClock
    ) -> None:
        """One is measured twice with another in between, and is on its third when the store is
        read.
        """
        writer.finish_attempt(
            writer.start_attempt(begin(writer), run_folder="1"), measurement(0.5), retry=False
        )
        clock.move(1)
        other = writer.start_attempt(begin(writer, "bbbb00000000"), run_folder="2")
        writer.finish_attempt(other, failure(FailureKind.OUT_OF_MEMORY), retry=False)
        clock.move(1)
        second = writer.start_attempt(repeated(writer, store, campaign), run_folder="3")
        writer.finish_attempt(second, failure(FailureKind.CRASHED), retry=True)
        third = writer.start_attempt(store.trials(campaign.id)[0], run_folder="4")
        writer.finish_attempt(third, measurement(0.7), retry=False)
        clock.move(1)
        writer.start_attempt(repeated(writer, store, campaign), run_folder="5")
        told = [outcome for _, outcome in store.final_outcomes(campaign.id)]
        assert told == [measurement(0.5), failure(FailureKind.OUT_OF_MEMORY), measurement(0.7)]
        trial = store.trials(campaign.id)[0]
        for found in (
            store.trial_measurements(campaign.id, number=1),
            store.trial_measurements(campaign.id, recipe_id=trial.recipe_id),
        ):
            assert found == (trial, [measurement(0.5), measurement(0.7)])
        (row,) = best(store, None)
        assert (row.standing.repeats, row.standing.step_time_s_median) == (2, pytest.approx(0.6))
        assert store.campaign(None).outcomes == 3

    def test_disturbed_measurements_are_told_until_their_recipe_has_an_undisturbed_one(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, clock: SettableClock
    ) -> None:
        load = Telemetry(foreign_share=(0.5,), foreign_processes=("make (7)",), foreign_limit=0.1)

        def told_after(name: str, outcome: Measurement, *, retry: bool) -> list[Outcome]:
            writer.finish_attempt(
                writer.start_attempt(begin(writer, name), run_folder="r"), outcome, retry=retry
            )
            clock.move(1)
            return [outcome for _, outcome in store.final_outcomes(campaign.id)]

        slow = [replace(measurement(seconds), telemetry=load) for seconds in (0.7, 0.8)]
        assert told_after("aaaa00000000", slow[0], retry=True) == [slow[0]], "as in the ranking"
        assert told_after("aaaa00000000", measurement(0.5), retry=False) == [measurement(0.5)]
        assert told_after("bbbb00000000", slow[0], retry=True) == [measurement(0.5), slow[0]]
        assert told_after("bbbb00000000", slow[1], retry=False) == [measurement(0.5), *slow]

    def test_a_store_of_before_keeps_how_probes_end_once_it_is_written_to(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        """The first stores of this schema had no table for it, nor any other that came later, and
        no revision.
        """
        writer.finish_attempt(
            writer.start_attempt(begin(writer), run_folder="1"), measurement(), retry=False
        )
        with store.database.write() as connection:
            for table in (*LATER_TABLES, "alembic_version"):
                connection.exec_driver_sql(f"DROP TABLE {table}")
        with open_store(store.url) as opened:
            assert opened.final_outcomes(campaign.id) == [(RECIPE, measurement())], (
                "a store that may only be read"
            )
            again = opened.drive(
                opened.acquire_lease(
                    campaign.id, host="another-host.example", pid=2, duration_s=30.0, take_over=True
                )
            )
            second = again.start_attempt(repeated(again, opened, campaign), run_folder="2")
            again.finish_attempt(
                second, replace(measurement(), ended=ProbeEnding.SLOWER), retry=False
            )
            ends = [
                outcome.ended
                for _, outcome in opened.final_outcomes(campaign.id)
                if isinstance(outcome, Measurement)
            ]
        assert ends == [None, ProbeEnding.SLOWER]

    def test_what_ranks_record_is_kept_and_ranked_by_what_is_above_an_idle_rank(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        about = {"allocator_retries": (2, 1), "versions": ("torch 2.13.0", "nccl 2.28.9")}
        recorded = Telemetry(idle_memory_bytes=(400, 900), **about)
        summarized = replace(recorded, memory_above_idle_bytes_max_rank=600)
        # The second is as earlier versions stored it: with one peak per rank.
        for number, (peaks, telemetry) in enumerate(
            (((1200,), summarized), ((1000, 1200), recorded), ((1200,), None)), start=1
        ):
            outcome = replace(measurement(), peak_memory_bytes=peaks, telemetry=telemetry)
            attempt = writer.start_attempt(begin(writer, f"{number:012}"), run_folder=str(number))
            writer.finish_attempt(attempt, outcome, retry=False)
            assert store.final_outcomes(campaign.id)[-1][1] == outcome
        doubts = [row.doubts for row in best(store, campaign)]
        ran_short = ("memory ran short while steps were measured (allocator retries: 3)",)
        assert doubts == [ran_short, ran_short, ()]
        held = {row.standing.peak_memory_bytes_max_rank for row in best(store, campaign)}
        assert held == {1200}
        needs = [row.memory_above_idle_bytes_max_rank for row in best(store, campaign)]
        assert needs == [600, 600, None], (
            "of the rank that needs most, and unknown where the ranks recorded nothing"
        )

    def test_nodes_of_attempts_are_kept_and_those_that_are_set_aside_follow_from_them(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, clock: SettableClock
    ) -> None:
        told = NodeLedger()
        lost = failure(FailureKind.LOST)
        for number, (nodes, outcome) in enumerate(
            [
                (AttemptNodes(names=("a",)), measurement()),
                (AttemptNodes(names=("b",), troubles={"b": "its agent vanished"}), lost),
                (AttemptNodes(names=("b",), troubles={"b": "its agent did not begin"}), lost),
            ],
            start=1,
        ):
            clock.move(60)
            attempt = writer.start_attempt(begin(writer, f"{number:012}"), run_folder=str(number))
            ended_at = writer.finish_attempt(attempt, outcome, retry=False, nodes=nodes)
            kind = outcome.kind if isinstance(outcome, Failure) else None
            told.note(nodes, trial=number, at=ended_at, kind=kind)
        (aside,) = status(store, campaign).nodes_aside
        assert (aside.node, [one.trial for one in aside.troubles]) == ("b", [2, 3])
        assert told.aside == {"b": aside}, "as its driver knew"
        with store.read(campaign) as (connection, found):
            assert node_ledger(connection, found).lost_on(3) == told.lost_on(3) == {"b"}
        (appearance,) = explain(store, f"{3:012}").appearances
        assert appearance.attempts[0].nodes == AttemptNodes(
            names=("b",), troubles={"b": "its agent did not begin"}
        )
        for state in (CampaignState.RUNNING, CampaignState.FINISHED):
            writer.set_state(state, reason="")
        (aside,) = status(store, campaign).nodes_aside
        assert str(aside).startswith("node b was set aside from "), "no check will come"
        clock.move(60)
        writer.event(CHECKED, node="b", found="")
        assert status(store, campaign).nodes_aside == ()

    def test_only_a_measured_trial_is_repeated(self, store: Store, writer: CampaignWriter) -> None:
        trial = begin(writer)
        with pytest.raises(IllegalTransition):
            writer.repeat(trial)
        writer.finish_attempt(writer.start_attempt(trial, run_folder="1"), failure(), retry=False)
        with pytest.raises(IllegalTransition):
            writer.repeat(trial)

    def test_outcomes_are_returned_in_the_order_of_recording(
        self, store: Store, writer: CampaignWriter, campaign: Campaign, clock: SettableClock
    ) -> None:
        attempts = [
            writer.start_attempt(begin(writer, f"{n:04x}"), run_folder=str(n)) for n in range(4)
        ]
        order = [2, 0, 3, 1]
        for place in order:
            clock.move(1)
            writer.finish_attempt(attempts[place], measurement(1.0 + place), retry=False)
        told = [outcome for _, outcome in store.final_outcomes(campaign.id)]
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


class TestNumbersThatAreNot(StoreContract):
    def test_losses_that_are_not_finite_come_back_as_nan(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        writer.finish_attempt(attempt, measurement(losses=(5.0, math.nan, math.inf)), retry=False)
        ((_, outcome),) = store.final_outcomes(campaign.id)
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

    def test_text_that_a_database_cannot_hold_loses_only_what_it_cannot(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        attempt = writer.start_attempt(begin(writer), run_folder="1")
        said = replace(failure(), message="a\x00b", log_tail="\x00 gr\u00f6\u00dfe \udcff\n")
        writer.finish_attempt(attempt, said, retry=False)
        ((_, outcome),) = store.final_outcomes(campaign.id)
        assert outcome == replace(said, message="a\ufffdb", log_tail="\ufffd gr\u00f6\u00dfe ?\n")
        writer.set_state(CampaignState.RUNNING, reason="\x00")
        assert store.campaign(None).state_reason == "\ufffd"

    def test_an_event_keeps_no_nan(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        writer.event("probe_finished", tokens_per_s=math.nan, recipe="aaaa", repeats=2, note=None)
        (event,) = store.events(campaign.id)
        assert (event.kind, event.data) == (
            "probe_finished",
            {"tokens_per_s": None, "recipe": "aaaa", "repeats": 2, "note": None},
        )


class TestEvents(StoreContract):
    def test_events_page_by_the_last_one_seen(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
        for number in range(5):
            writer.event("tick", number=number)
        first = store.events(campaign.id, limit=2)
        rest = store.events(campaign.id, after=first[-1].id)
        assert [event.data["number"] for event in first + rest] == [0, 1, 2, 3, 4]

    def test_events_of_another_campaign_stay_out(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        writer.event("tick")
        assert store.events(create(store, "second").id) == []


class TestTogether(StoreContract):
    def test_calls_are_written_all_or_none(
        self, store: Store, writer: CampaignWriter, campaign: Campaign
    ) -> None:
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


class TestSessions(StoreContract):
    def test_driver_seconds_add_up_over_sessions(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        writer.add_driver_seconds(1.5)
        store.drive(lease_elsewhere(store, campaign, take_over=True)).add_driver_seconds(2.0)
        assert store.campaign(None).driver_seconds == 3.5

    def test_attempts_refer_to_the_session_that_started_them(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        trial = begin(writer)
        writer.finish_attempt(
            writer.start_attempt(trial, run_folder="1"), failure(FailureKind.LOST), retry=True
        )
        writer.record_provenance(PROVENANCE)
        writer.start_attempt(trial, run_folder="2")
        first, second = explain(store, trial.recipe_id).appearances[0].attempts
        assert (first.provenance, second.provenance) == (None, PROVENANCE)


class TestCheck(StoreContract):
    def test_check_is_silent_over_measurements_and_names_a_figure_that_a_standing_lost(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        """With a record of the machine and without it."""
        outcomes = (replace(measurement(), telemetry=None), replace(measurement(), telemetry=BUSY))
        for name, outcome in zip(("aaaa", "bbbb"), outcomes, strict=True):
            trial = begin(writer, name)
            attempt = writer.start_attempt(trial, run_folder=name)
            writer.finish_attempt(attempt, outcome, retry=False)

        assert self.findings(store) == {}
        with store.database.write() as connection:
            connection.execute(text("UPDATE standings SET mfu = NULL"))

        assert self.findings(store) == {"standings pool": 2}

    def findings(self, store: Store) -> dict[str, int]:
        with store.database.read() as connection:
            found = check(connection, store=store.url).findings
        return {finding.rule: finding.count for finding in found}
