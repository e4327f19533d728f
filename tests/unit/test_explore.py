"""The explorer's columns: as the recipes themselves, up to date after each outcome, filtered and ordered."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.results.explore import CUSTOM, DATA_PARALLEL, NUMBER, OUTCOME, RANK, Columns, TrialTable, Wanted
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.ranking import best
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.spaces.validation import dump_json
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
            name="seen", spec_json=dump_json(spec), legal_recipes=9, problem_summary=problem_summary(spec)
        )
        self.store, self.spec, self.campaign = store, spec, campaign
        self.recipes = list(spec.survey().recipes)
        random.Random(7).shuffle(self.recipes)
        self.writer: CampaignWriter = store.drive(store.acquire_lease(campaign.id, host="h", pid=1))
        self.writer.set_state(CampaignState.RUNNING, reason="")
        self.table = self.fresh()

    def fresh(self) -> TrialTable:
        return TrialTable(self.campaign, {"algorithm": "Ring"})

    def begin(self, number: int) -> tuple[Any, Any]:
        recipe = self.recipes[number]
        trial = self.writer.propose(recipe_id(self.spec.problem, recipe), recipe)
        return trial, self.writer.start_attempt(trial, run_folder="r")

    def go_on(self, *numbers: int) -> None:
        for number in numbers:
            _, attempt = self.begin(number)
            failed = Failure(kind=FailureKind.OUT_OF_MEMORY, message="full", log_tail="")
            step_s, peak = 0.1 + number * 37 % 41 / 40, 0 if number % 11 == 1 else (1 + number % 5) * GIB
            outcome = failed if number % 4 == 3 else measurement((step_s, 1.1 * step_s), peak)
            self.writer.finish_attempt(attempt, outcome, retry=False)

    def columns(self) -> Columns:
        return self.table.columns(self.store)


@pytest.fixture
def driven(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driven]:
    table = TABLE | getattr(request, "param", {})
    with open_store(str(tmp_path / "store.db"), create=True) as store:
        yield Driven(store, parse_campaign(table, default_name="seen", base=Path()).spec)


def value(columns: Columns, name: str, row: int) -> Any:
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
        assert value(columns, f"{CUSTOM}algorithm", row) == (recipe.custom[0].value if recipe.custom else "Ring")
    assert set(columns.varied) == {*TABLE["space"], "accumulation", DATA_PARALLEL, f"{CUSTOM}algorithm"} - {"custom"}
    assert columns.axes["tensor_parallel"].values == (1, 2, 4)
    assert columns.axes["schedule"].values == ("none", "1f1b", "interleaved-1f1b")


def same(left: Columns, right: Columns) -> bool:
    return (
        left.recipe_ids.tolist() == right.recipe_ids.tolist()
        and left.ranks.tolist() == right.ranks.tolist()
        and [value(left, OUTCOME, row) for row in range(len(left))]
        == [value(right, OUTCOME, row) for row in range(len(right))]
        and all(np.array_equal(left.figures[name], right.figures[name], equal_nan=True) for name in left.figures)
    )


def test_columns_follow_outcomes_repeats_and_retries(driven: Driven) -> None:
    assert len(driven.columns()) == 0
    for place in range(8):
        driven.go_on(place)
        assert same(driven.columns(), driven.fresh().columns(driven.store))
    trial, attempt = driven.begin(8)
    assert value(driven.columns(), OUTCOME, 8) == "running"
    driven.writer.finish_attempt(attempt, Failure(kind=FailureKind.LOST, message="gone", log_tail=""), retry=True)
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
    assert same(driven.columns(), driven.fresh().columns(driven.store))


@pytest.mark.parametrize(
    "driven", [{}, {"search": {"objectives": ["tokens_per_device"]}}, {"search": {"objectives": ["tokens_per_cost"]}}],
    indirect=True,
)  # fmt: skip
def test_ranks_are_those_of_the_ranking(driven: Driven) -> None:
    driven.go_on(*range(40))
    columns = driven.columns()
    ranked = best(driven.store, "seen", top=None)
    rows = columns.ordered(columns.both([]), RANK)
    shown = driven.table.rows(driven.store, columns, rows.tolist())
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
        if recipe.tensor_parallel in (2, 4) and number % 4 != 3 and number % 11 != 1 and 2 <= 1 + number % 5 <= 4
    ]
    assert columns.ordered(met, NUMBER).tolist() == expected
    assert columns.ordered(met, NUMBER, descending=True).tolist() == expected[::-1]
    speeds = columns.figures["tokens_per_s"][columns.ordered(met, "tokens_per_s", descending=True)]
    assert speeds.tolist() == sorted(speeds, reverse=True)
    counts = dict(zip(columns.axes["tensor_parallel"].values, columns.counts(masks)["tensor_parallel"], strict=True))
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
