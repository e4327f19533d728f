"""Rankings against references computed the slow, obvious way."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from frontrunner.results.outcome import Failure, FailureKind, Measurement, ProbeEnding, pool
from frontrunner.results.pages import (
    history_page,
    rank_of,
    ranked_at,
    recipe_page,
    trial_page,
)
from frontrunner.results.ranking import best, pareto
from frontrunner.results.states import CampaignState
from frontrunner.results.status import explain, failures, status
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import InvalidInput, NotFound
from support.rankings import TOKENS_PER_STEP, measurement, record, start


@pytest.fixture
def writer(store: Store) -> CampaignWriter:
    return start(store, "ranked")


@pytest.fixture
def measured(writer: CampaignWriter) -> dict[str, list[Measurement]]:
    """40 recipes measured one to four times, with coarse figures so that ties occur, and some
    failures between.
    """
    dice = random.Random(7)
    by_recipe: dict[str, list[Measurement]] = {}
    with writer.together():
        for number in range(40):
            recipe_id = f"{dice.randrange(16**12):012x}"
            pace = dice.choice(
                (0.5, 0.6, 0.7, 0.8)
            )  # the faster, the more memory, so that there is a trade to make
            by_recipe[recipe_id] = [
                measurement(
                    tuple(pace * dice.choice((1, 1.1)) for _ in range(3)),
                    dice.randrange(2, 6) * int(1e9 / pace),
                )
                for _ in range(dice.randrange(1, 5))
            ]
            record(writer, recipe_id, *by_recipe[recipe_id], number=number)
            if number % 5 == 0:
                record(
                    writer,
                    f"f{number:011x}",
                    Failure(kind=FailureKind.CRASHED, message="x"),
                    number=100 + number,
                )
    return by_recipe


REFERENCE: dict[str, Callable[[list[Measurement]], float]] = {
    "tokens": lambda repeats: -float(np.median([m.tokens_per_s for m in repeats])),
    "tflops": lambda repeats: -float(np.median([m.model_tflops_per_device for m in repeats])),
    "memory": lambda repeats: max(max(m.peak_memory_bytes) for m in repeats),
    "step-time": lambda repeats: float(np.median([np.median(m.step_times_s) for m in repeats])),
}


class TestBest:
    @pytest.mark.parametrize("by", REFERENCE)
    def test_the_order_is_that_of_the_pooled_figures_then_of_the_ids(
        self, store: Store, measured: dict[str, list[Measurement]], by: str
    ) -> None:
        key = REFERENCE[by]
        expected = sorted(measured, key=lambda recipe_id: (key(measured[recipe_id]), recipe_id))
        ranked = best(store, "ranked", by=by, top=None)
        assert [row.recipe_id for row in ranked] == expected
        assert [row.rank for row in ranked] == list(range(1, 41))
        assert [row.recipe_id for row in best(store, None, by=by, top=7)] == expected[:7]

    def test_gaps_are_percent_of_the_first(self, store: Store, writer: CampaignWriter) -> None:
        record(writer, "aaaa", measurement((0.5,), 10**9))
        record(writer, "bbbb", measurement((1.0,), 2 * 10**9))
        assert [row.gap_percent for row in best(store, None)] == [0.0, pytest.approx(50.0)]
        assert [row.gap_percent for row in best(store, None, by="step-time")] == [
            0.0,
            pytest.approx(100.0),
        ]
        assert [row.gap_percent for row in best(store, None, by="memory")] == [
            0.0,
            pytest.approx(100.0),
        ]

    def test_a_memory_limit_is_in_1e9_bytes_and_holds_for_every_rank_and_repeat(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        record(writer, "aaaa", measurement((0.5,), 4 * 10**9))
        record(writer, "bbbb", measurement((0.4,), 4 * 10**9), measurement((0.4,), 4 * 10**9 + 1))
        assert [row.recipe_id for row in best(store, None, max_memory_gb=4)] == ["aaaa"]
        assert [row.recipe_id for row in best(store, None, max_memory_gb=4.1)] == ["bbbb", "aaaa"]
        assert best(store, None, max_memory_gb=3.9) == []

    def test_other_campaigns_stay_out(self, store: Store, writer: CampaignWriter) -> None:
        record(writer, "aaaa", measurement((0.5,), 1))
        record(start(store, "later"), "bbbb", measurement((0.1,), 1))
        assert [row.recipe_id for row in best(store, "ranked")] == ["aaaa"]
        assert [row.recipe_id for row in best(store, None)] == ["bbbb"]

    @pytest.mark.parametrize(
        "wrong",
        [{"by": "speed"}, {"top": 0}, {"max_memory_gb": 0.0}, {"max_memory_gb": float("nan")}],
    )
    def test_questions_that_make_no_sense_are_refused(
        self, store: Store, wrong: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidInput):
            best(store, None, **wrong)  # type: ignore[arg-type]


class TestPool:
    def test_the_spread_goes_over_all_steps_of_all_repeats(self) -> None:
        repeats = [
            measurement((1.0, 1.1, 1.2), 5),
            measurement((2.0, 2.1, 2.2), 9),
            measurement((1.5, 1.5, 1.6), 7),
        ]
        standing = pool(repeats)
        steps = [time for repeat in repeats for time in repeat.step_times_s]
        assert standing.step_time_s_median == pytest.approx(1.5)
        assert standing.step_time_spread == pytest.approx(np.std(steps, ddof=1) / 1.5)
        assert standing.tokens_per_s == pytest.approx(TOKENS_PER_STEP / 1.5)
        assert standing.peak_memory_bytes_max_rank == 9
        assert standing.repeats == 3
        assert standing.is_noisy

    def test_steady_repeats_that_differ_from_each_other_are_noisy(self) -> None:
        assert not pool([measurement((1.0, 1.0), 1)]).is_noisy
        assert pool([measurement((1.0, 1.0), 1), measurement((1.3, 1.3), 1)]).is_noisy

    def test_one_step_has_no_spread(self) -> None:
        assert pool([measurement((1.0,), 1)]).step_time_spread == 0.0


class TestPareto:
    def test_the_front_is_what_nothing_beats_in_both(
        self, store: Store, measured: dict[str, list[Measurement]]
    ) -> None:
        points = {
            name: (-REFERENCE["tokens"](repeats), REFERENCE["memory"](repeats))
            for name, repeats in measured.items()
        }

        def is_beaten(name: str) -> bool:
            speed, memory = points[name]
            return any(
                (s >= speed and m <= memory and (s, m) != (speed, memory))
                or ((s, m) == (speed, memory) and other < name)
                for other, (s, m) in points.items()
            )

        expected = sorted(
            (name for name in points if not is_beaten(name)), key=lambda name: -points[name][0]
        )
        front = pareto(store, "ranked")
        assert [row.recipe_id for row in front] == expected
        assert len(front) >= 3, "the sample is meant to have a front worth the name"
        memories = [row.standing.peak_memory_bytes_max_rank for row in front]
        assert memories == sorted(memories, reverse=True)
        for least in {speed for speed, _ in points.values()}:
            part = [row for row in front if row.standing.tokens_per_s >= least]
            assert pareto(store, "ranked", least_tokens_per_s=least) == part

    def test_no_measurements_no_front(self, store: Store, writer: CampaignWriter) -> None:
        assert pareto(store, None) == []


class TestExplain:
    def test_every_rank_and_neighbour_agrees_with_the_ranking(
        self, store: Store, measured: dict[str, list[Measurement]]
    ) -> None:
        ranked = best(store, None, top=None)
        for place, row in enumerate(ranked):
            (seen,) = explain(store, row.recipe_id).appearances
            assert (seen.rank, seen.ranked_recipes) == (row.rank, len(measured))
            above = ranked[place - 1].recipe_id if place else None
            below = ranked[place + 1].recipe_id if place + 1 < len(ranked) else None
            assert (seen.above and seen.above.recipe_id, seen.below and seen.below.recipe_id) == (
                above,
                below,
            )
            assert [tried.outcome for tried in seen.attempts] == measured[row.recipe_id]

    def test_a_gap_below_the_spread_is_called_so(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        record(writer, "aaaa0000", measurement((1.00, 1.00), 1))
        record(writer, "bbbb0000", measurement((0.99, 1.05), 1))  # 2 % slower, spread 4 %
        record(writer, "cccc0000", measurement((1.50, 1.50), 1))
        (seen,) = explain(store, "bbbb").appearances
        assert seen.above is not None
        assert seen.below is not None
        assert seen.above.gap_percent == pytest.approx(100 * (1 - 1 / 1.02))
        assert seen.above.within_spread
        assert seen.below.gap_percent == pytest.approx(100 * (1 - 1.02 / 1.5))
        assert not seen.below.within_spread

    def test_a_named_campaign_comes_first_else_the_newest_that_measured(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        record(writer, "aaaa0000", measurement((1.0,), 1))
        later = start(store, "later")
        record(later, "bbbb0000", measurement((0.5,), 1))
        record(later, "aaaa0000", Failure(kind=FailureKind.OUT_OF_MEMORY, message="too big"))
        oldest, newest = explain(store, "aaaa0000").appearances
        assert explain(store, "aaaa", "later").appearances == (newest, oldest)
        assert explain(store, "aaaa", "ranked").appearances == (oldest, newest)
        with pytest.raises(
            NotFound, match="campaign ranked did not try recipe bbbb0000"
        ) as elsewhere:
            explain(store, "bbbb", "ranked")
        assert elsewhere.value.hint == "it was tried in: later"
        assert (newest.campaign.name, newest.rank, newest.ranked_recipes, newest.standing) == (
            "later",
            None,
            1,
            None,
        )
        assert (oldest.campaign.name, oldest.rank, oldest.ranked_recipes) == ("ranked", 1, 1)
        assert oldest.campaign.problem_summary == {"model": "ranked"}

    def test_a_prefix_stands_for_one_recipe_only(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        record(writer, "abcd11110000", measurement((1.0,), 1))
        record(writer, "abcd22220000", measurement((1.0,), 1))
        assert explain(store, " ABCD1 ").recipe_id == "abcd11110000"
        with pytest.raises(NotFound, match="more than one") as several:
            explain(store, "abcd")
        assert several.value.hint == "one of: abcd11110000, abcd22220000"
        with pytest.raises(NotFound) as mistyped:
            explain(store, "abdc11110000")
        assert "abcd11110000" in str(mistyped.value.hint)
        with pytest.raises(InvalidInput, match="at least the first 4"):
            explain(store, "abc")

    @pytest.mark.parametrize("wild", ["%%%%", "____", "abc%", "zzzzzzzz"])
    def test_a_pattern_is_not_a_prefix(
        self, store: Store, writer: CampaignWriter, wild: str
    ) -> None:
        record(writer, "abcd11110000", measurement((1.0,), 1))
        with pytest.raises(NotFound):
            explain(store, wild)


class TestFailuresAndStatus:
    def test_failures_show_the_last_word_of_each_failed_trial(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        crash = Failure(
            kind=FailureKind.CRASHED,
            message="exit 1",
            log_tail="boom",
            log_path="/l",
            node_seconds=1,
        )
        memory = Failure(kind=FailureKind.OUT_OF_MEMORY, message="9 of 8 GB")
        record(writer, "cccc", crash, crash)
        record(writer, "aaaa", crash, measurement((1.0,), 1))
        record(writer, "bbbb", memory)
        first, second = failures(store, None)
        assert (first.trial.recipe_id, first.failure, first.attempts) == ("cccc", crash, 2)
        assert first.run_folder == "/runs/cccc-2"
        assert (second.trial.recipe_id, second.failure, second.attempts) == ("bbbb", memory, 1)

    def test_status_counts_trials_and_failed_attempts(
        self, store: Store, writer: CampaignWriter
    ) -> None:
        writer.set_state(CampaignState.RUNNING, reason="start")
        crash = Failure(kind=FailureKind.CRASHED, message="exit 1", node_seconds=2.5)
        record(writer, "cccc", crash, crash)
        record(writer, "aaaa", crash, measurement((1.0,), 1))
        for number in range(12):
            writer.event("tick", number=number)
        seen = status(store, None)
        assert {state.value: count for state, count in seen.trials.items()} == {
            "queued": 0,
            "running": 0,
            "measured": 1,
            "failed": 1,
        }
        assert dict(seen.failures) == {FailureKind.CRASHED: 3}
        assert seen.best is not None
        assert seen.best.recipe_id == "aaaa"
        assert [event.data["number"] for event in seen.last_events] == list(range(2, 12))
        assert seen.campaign.node_seconds_spent == 3 * 2.5 + 10.0
        assert seen.driver_is_live


def test_some_recipes_are_ranked_as_among_all(
    store: Store, measured: dict[str, list[Measurement]]
) -> None:
    whole = best(store, "ranked", top=None)
    some = {whole[place].recipe_id: place + 1 for place in (0, 3, 4, len(whole) - 1)}
    assert ranked_at(store, store.campaign("ranked"), some) == [
        whole[place - 1] for place in some.values()
    ]


def test_the_rank_of_a_recipe_is_its_place_in_the_ranking(
    store: Store, measured: dict[str, list[Measurement]]
) -> None:
    """By hand: one more than the recipes with a higher median rate, whose ties are told apart."""
    campaign = store.campaign("ranked")
    pace = {
        recipe_id: float(np.median([one.tokens_per_s for one in found]))
        for recipe_id, found in measured.items()
    }
    ranks = {recipe_id: rank_of(store, campaign, recipe_id) for recipe_id in measured}
    assert sorted(rank or 0 for rank in ranks.values()) == list(range(1, len(measured) + 1))
    first = min(ranks, key=lambda recipe_id: ranks[recipe_id] or 0)
    last = max(ranks, key=lambda recipe_id: ranks[recipe_id] or 0)
    assert pace[first] == max(pace.values())
    assert pace[last] == min(pace.values())
    assert rank_of(store, campaign, f"f{0:011x}") is None
    assert rank_of(store, campaign, "0" * 12) is None


@pytest.mark.parametrize("page", [{"page": 0}, {"page": -1}, {"page_size": 0}])
@pytest.mark.parametrize("read", [recipe_page, trial_page, history_page])
def test_a_page_before_the_first_or_without_rows_is_refused(
    store: Store, writer: CampaignWriter, read: Callable[..., object], page: dict[str, int]
) -> None:
    del writer
    with pytest.raises(InvalidInput, match=r"page, page_size = .*: expected numbers of at least 1"):
        read(store, "ranked", **page)


def test_questions_other_than_the_table_do_not_import_pandas() -> None:
    script = """
import sys
import frontrunner.results.outcome
assert "sqlalchemy" not in sys.modules
import frontrunner.results.store, frontrunner.results.ranking, frontrunner.results.pages
import frontrunner.results.status, frontrunner.results.frames
print(sorted({"pandas", "numpy", "torch", "optuna", "deephyper"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_status_names_a_recipe_that_left_the_ranking_when_a_repeat_failed(
    store: Store, writer: CampaignWriter
) -> None:
    fast, slow = measurement((0.5,), 1), measurement((1.0,), 1)
    failed = Failure(kind=FailureKind.IMPLAUSIBLE, message="too fast")
    record(writer, "a" * 12, fast, failed, number=1)
    record(writer, "b" * 12, slow, number=2)
    record(writer, "c" * 12, Failure(kind=FailureKind.CRASHED, message="x"), number=3)
    found = status(store, "ranked")
    assert found.best is not None
    assert found.best.recipe_id == "b" * 12
    (left,) = found.left_ranking
    assert found.left_ranking_count == 1
    assert left.measured == pool([fast])
    assert left.left_the_ranking == (
        f"{'a' * 12} left the ranking: it was measured at {TOKENS_PER_STEP / 0.5:,.0f} tokens/s,"
        " and then a repeat failed, implausible: too fast"
    )


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (
            [ProbeEnding.SLOWER],
            f"The place of {'a' * 12} is not confirmed: its probe ended early, as it was clearly"
            " slower than the best recipe at that time",
        ),
        ([ProbeEnding.SLOWER, ProbeEnding.NOISY], None),
        ([None], None),
    ],
)
def test_best_says_why_a_recipe_s_place_is_not_confirmed(
    store: Store, writer: CampaignWriter, ended: list[ProbeEnding | None], why: str | None
) -> None:
    measured = [replace(measurement((1.0, 1.1), 1), ended=one) for one in ended]
    record(writer, "a" * 12, *measured, number=1)
    assert [row.why_unconfirmed for row in best(store, "ranked")] == [why]
