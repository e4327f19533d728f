"""The explorer's columns: as the recipes themselves, up to date after each outcome, filtered and
ordered.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.fronts import front
from frontrunner.results.arrays import (
    CUSTOM,
    DATA_PARALLEL,
    NUMBER,
    OUTCOME,
    RANK,
    Attempts,
    LastAttempts,
    Trials,
    Wanted,
)
from frontrunner.results.explore import explored
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.pruning import delete_campaign
from frontrunner.results.ranking import best
from frontrunner.results.rows import finished_attempts
from frontrunner.results.schema import AttemptRow
from frontrunner.results.snapshot import MOST_KEPT, Snapshot, attempts_of
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import NotFound
from frontrunner.spaces.pareto import OBJECTIVES
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.spaces.validation import dump_json
from frontrunner.store import LocalStore
from support.rankings import measurement

GIB = 2**30
OWN = {"algorithm": {"values": ["Ring", "Tree"], "env": "NCCL_ALGO", "default": "Ring"}}
TABLE: dict[str, Any] = {
    "model": {"layers": 16, "hidden": 256, "heads": 8, "vocabulary": 65_536},
    "cluster": {
        "device": "test",
        "backend": "cpu",
        "nodes": 2,
        "devices_per_node": 8,
        "memory_gib_per_device": 8.0,
        "price_per_node_hour": 2.0,
    },
    "problem": {"sequence_length": 128, "global_batch": 64, "precision": "bf16"},
    "space": {
        "tensor_parallel": [1, 2, 4],
        "pipeline_parallel": [1, 2, 4],
        "devices": [8, 16],
        "micro_batch_seqs": [1, 2],
        "schedule": ["1f1b", "interleaved-1f1b"],
        "virtual_stages": [1, 2],
        "sharding": ["none", "zero-1", "hybrid-2", "3-level-1/2"],
        "sequence_parallel": [True, False],
        "layer_split": ["even", "balanced"],
        "custom": OWN,
    },
}


class Driven:
    """A campaign that the test drives."""

    def __init__(self, store: Store, spec: CampaignSpec) -> None:
        campaign = store.create_campaign(
            name="seen",
            spec_json=dump_json(spec),
            legal_recipes=9,
            problem_summary=problem_summary(spec),
        )
        self.store, self.spec, self.campaign = store, spec, campaign
        self.recipes = list(spec.survey().recipes)
        random.Random(7).shuffle(self.recipes)
        self.writer: CampaignWriter = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        self.writer.set_state(CampaignState.RUNNING, reason="")

    def fresh(self) -> Attempts:
        return Snapshot().attempts(self.store, self.campaign)

    def begin(self, number: int) -> tuple[Any, Any]:
        recipe = self.recipes[number]
        trial = self.writer.propose(recipe_id(self.spec.problem, recipe), recipe)
        return trial, self.writer.start_attempt(trial, run_folder="r")

    def go_on(self, *numbers: int) -> None:
        for number in numbers:
            _, attempt = self.begin(number)
            failed = Failure(kind=FailureKind.OUT_OF_MEMORY, message="full", log_tail="")
            step_s, peak = (
                0.1 + number * 37 % 41 / 40,
                0 if number % 11 == 1 else (1 + number % 5) * GIB,
            )
            outcome = failed if number % 4 == 3 else measurement((step_s, 1.1 * step_s), peak)
            self.writer.finish_attempt(attempt, outcome, retry=False)

    def columns(self) -> Trials:
        return attempts_of(self.store, self.campaign).trials


@pytest.fixture
def driven(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driven]:
    table = TABLE | getattr(request, "param", {})
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        yield Driven(store, parse_campaign(table, default_name="seen", base=Path()).spec)


def value(columns: Trials, name: str, row: int) -> Any:
    axis = columns.axes[name]
    return axis.values[axis.places[row]]


def test_columns_hold_what_the_recipes_say(driven: Driven) -> None:
    driven.go_on(*range(120))
    columns = driven.columns()
    assert len(columns) == 120
    for row, recipe in enumerate(driven.recipes[:120]):
        for name, dimension in DIMENSIONS.items():
            assert value(columns, name, row) == dimension.of(recipe), name
        assert value(columns, DATA_PARALLEL, row) == recipe.data_parallel
        assert value(columns, f"{CUSTOM}algorithm", row) == (
            recipe.custom[0].value if recipe.custom else "Ring"
        )
    assert set(columns.varied) == {
        *TABLE["space"],
        "accumulation",
        DATA_PARALLEL,
        f"{CUSTOM}algorithm",
    } - {"custom"}
    assert columns.axes["tensor_parallel"].values == (1, 2, 4)
    assert columns.axes["schedule"].values == ("none", "1f1b", "interleaved-1f1b")


def same(left: Trials, right: Trials) -> bool:
    assert [(name, axis.values) for name, axis in left.axes.items()] == [
        (name, axis.values) for name, axis in right.axes.items()
    ]
    return (
        left.recipe_ids.tolist() == right.recipe_ids.tolist()
        and left.ranks.tolist() == right.ranks.tolist()
        and [value(left, OUTCOME, row) for row in range(len(left))]
        == [value(right, OUTCOME, row) for row in range(len(right))]
        and all(
            np.array_equal(left.figures[name], right.figures[name], equal_nan=True)
            for name in left.figures
        )
    )


def test_columns_follow_outcomes_repeats_and_retries(driven: Driven) -> None:
    assert len(driven.columns()) == 0
    for place in range(8):
        driven.go_on(place)
        assert same(driven.columns(), driven.fresh().trials)
    trial, attempt = driven.begin(8)
    assert value(driven.columns(), OUTCOME, 8) == "running"
    driven.writer.finish_attempt(
        attempt, Failure(kind=FailureKind.LOST, message="gone", log_tail=""), retry=True
    )
    assert value(driven.columns(), OUTCOME, 8) == "queued"
    driven.writer.finish_attempt(
        driven.writer.start_attempt(trial, run_folder="r"), measurement((0.5,), GIB), retry=False
    )
    assert value(driven.columns(), OUTCOME, 8) == "measured"
    before = driven.columns().figures["tokens_per_s"][0]
    again = driven.writer.repeat(driven.store.trials(driven.campaign.id)[0])
    attempt = driven.writer.start_attempt(again, run_folder="r")
    driven.columns()
    driven.writer.finish_attempt(attempt, measurement((9.0,), GIB), retry=False)
    assert driven.columns().figures["tokens_per_s"][0] < before, "a repeat changes what was known"
    again = driven.writer.repeat(driven.store.trials(driven.campaign.id)[1])
    attempt = driven.writer.start_attempt(again, run_folder="r")
    driven.writer.finish_attempt(
        attempt, Failure(kind=FailureKind.OUT_OF_MEMORY, message="full", log_tail=""), retry=False
    )
    assert value(driven.columns(), OUTCOME, 1) == "out-of-memory"
    assert math.isnan(driven.columns().figures["tokens_per_s"][1])
    assert same(driven.columns(), driven.fresh().trials)


def plainly(driven: Driven) -> list[tuple[Any, ...]]:
    """Every finished attempt as the store's own rows have it, in the order in which they ended."""
    with driven.store.database.read() as connection:
        found = finished_attempts(connection, AttemptRow.campaign_id == driven.campaign.id)
    return [
        (
            one.trial.recipe_id,
            one.trial.recipe,
            getattr(one.outcome, "kind", None),
            getattr(one.outcome, "tokens_per_s", None),
            one.outcome.node_seconds,
        )
        for one in found
    ]


def listed(attempts: Attempts) -> list[tuple[Any, ...]]:
    rates = [None if math.isnan(rate) else rate for rate in attempts.tokens_per_s.tolist()]
    columns = zip(attempts, rates, attempts.node_seconds.tolist(), strict=True)
    return [(one.recipe_id, one.recipe, one.kind, rate, spent_s) for one, rate, spent_s in columns]


def test_attempts_follow_in_the_order_in_which_they_end(driven: Driven) -> None:
    def now() -> Attempts:
        return attempts_of(driven.store, driven.campaign)

    assert list(now()) == []
    driven.go_on(*range(6))
    (slow, first), (_, second) = driven.begin(6), driven.begin(8)
    assert listed(now()) == plainly(driven)
    driven.writer.finish_attempt(
        second, measurement((0.5,), GIB), retry=False
    )  # before the one begun earlier
    assert [one.recipe_id for one in now()][-1] != slow.recipe_id
    driven.writer.finish_attempt(
        first, Failure(kind=FailureKind.LOST, message="", log_tail=""), retry=True
    )
    again = driven.writer.start_attempt(slow, run_folder="r")
    assert listed(now()) == plainly(driven)
    driven.writer.finish_attempt(again, measurement((0.4,), GIB), retry=False)
    assert listed(now()) == plainly(driven) == listed(driven.fresh())
    last = LastAttempts(now())
    assert (last[slow.recipe_id].kind, last[slow.recipe_id].state) == (None, TrialState.MEASURED)
    assert set(last) == {one.recipe_id for one in now()}
    assert {one.recipe_id for one in now().final_failures} == {
        trial.recipe_id
        for trial in driven.store.trials(driven.campaign.id)
        if trial.state is TrialState.FAILED
    }


def test_what_was_read_is_found_again_after_a_renaming_and_not_after_a_deletion(
    driven: Driven,
) -> None:
    driven.go_on(0, 1)
    before = attempts_of(driven.store, "seen")
    assert attempts_of(driven.store, "seen") is before, "nothing was written: nothing is read"
    driven.writer.release(CampaignState.FINISHED, reason="")
    driven.store.rename("seen", "another")
    assert listed(attempts_of(driven.store, "another")) == listed(before)
    delete_campaign(driven.store, "another")
    with pytest.raises(NotFound):
        attempts_of(driven.store, driven.campaign)
    new = Driven(driven.store, driven.spec)
    assert len(attempts_of(driven.store, "seen")) == 0
    new.go_on(2)
    assert listed(attempts_of(driven.store, "seen")) == plainly(new)


def test_arrays_of_a_few_campaigns_are_kept(driven: Driven) -> None:
    first = attempts_of(driven.store, driven.campaign)
    for number in range(MOST_KEPT):
        driven.store.create_campaign(
            name=f"c{number}", spec_json="{}", legal_recipes=1, problem_summary={}
        )
        attempts_of(driven.store, f"c{number}")
    assert len(driven.store.kept) == MOST_KEPT
    assert attempts_of(driven.store, driven.campaign) is not first


@pytest.mark.parametrize(
    "objectives", [("tokens", "memory"), ("tokens", "nodes"), ("memory", "nodes"), OBJECTIVES]
)
def test_fronts_are_those_of_all_ranked_recipes(
    driven: Driven, objectives: tuple[str, ...]
) -> None:
    driven.go_on(*range(200))
    ranking = best(driven.store, "seen", top=None, by="tokens")
    found = LocalStore(is_open=driven.store).front("seen", objectives=objectives)
    assert list(found) == list(front(ranking, driven.spec.problem, objectives))
    assert found


@pytest.mark.parametrize(
    "driven", [{}, {"search": {"objectives": ["tokens_per_device"]}},
        {"search": {"objectives": ["tokens_per_cost"]}}],
    indirect=True,
)  # fmt: skip
def test_ranks_are_those_of_the_ranking(driven: Driven) -> None:
    driven.go_on(*range(40))
    columns = driven.columns()
    ranked = best(driven.store, "seen", top=None)
    rows = columns.ordered(columns.both([]), RANK)
    shown = explored(driven.store, columns, rows.tolist())
    assert [row.recipe_id for row in ranked] == [row.recipe_id for row in shown[: len(ranked)]]
    assert all(row.ranked is None for row in shown[len(ranked) :])
    for expected, row in zip(ranked, shown, strict=False):
        assert row.ranked is not None
        assert (row.ranked.rank, row.ranked.standing) == (expected.rank, expected.standing)
        assert row.ranked.gap_percent == pytest.approx(expected.gap_percent)


def test_filters_ranges_and_orders(driven: Driven) -> None:
    driven.go_on(*range(60))
    columns = driven.columns()
    wanted = Wanted(
        values={"tensor_parallel": frozenset({2, 4}), OUTCOME: frozenset({"measured"})},
        ranges={"peak_memory_bytes_max_rank": (2.0 * GIB, 4.0 * GIB)},
    )
    masks = columns.masks(wanted)
    met = columns.both(masks.values())
    expected = [
        number
        for number, recipe in enumerate(driven.recipes[:60])
        if recipe.tensor_parallel in (2, 4)
        and number % 4 != 3
        and number % 11 != 1
        and 2 <= 1 + number % 5 <= 4
    ]
    assert columns.ordered(met, NUMBER).tolist() == expected
    assert columns.ordered(met, NUMBER, descending=True).tolist() == expected[::-1]
    speeds = columns.figures["tokens_per_s"][columns.ordered(met, "tokens_per_s", descending=True)]
    assert speeds.tolist() == sorted(speeds, reverse=True)
    counts = dict(
        zip(
            columns.axes["tensor_parallel"].values,
            columns.counts(masks)["tensor_parallel"],
            strict=True,
        )
    )
    others = columns.both(mask for name, mask in masks.items() if name != "tensor_parallel")
    assert sum(counts.values()) == others.sum(), "a choice counts what the other filters leave"
    assert sum(columns.counts(masks)["schedule"]) == len(expected)
    by_peak = columns.figures["peak_memory_bytes_max_rank"][
        columns.ordered(columns.both([]), "peak_memory_bytes_max_rank")
    ]
    known = np.isfinite(by_peak)
    assert not known[known.sum() :].any(), "what is unknown comes last"


def test_a_sample_has_the_best_and_an_even_part_of_the_rest(driven: Driven) -> None:
    driven.go_on(*range(100))
    columns = driven.columns()
    rows = np.arange(100)
    drawn = columns.sample(rows, 20)
    assert len(drawn) <= 20
    assert set(columns.ordered(columns.both([]), RANK)[:4]) <= set(drawn)
    assert {0, 99} <= set(drawn)
    assert columns.sample(rows, 100).tolist() == rows.tolist()
