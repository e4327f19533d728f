"""Campaigns around one recipe: which recipes they hold, and what they make of the outcomes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import frontrunner
from frontrunner.cli.main import frontrunner as frontrunner_command
from frontrunner.search.spec import Budget, SearchSettings
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.variants import AROUND
from frontrunner.sweeps import Source, preview, scale_spec, source_of, sweep_spec
from frontrunner.views.around import print_measured_scaling
from frontrunner.views.charts.marks import Chart
from frontrunner.views.report import reported
from support.campaigns import spec_of, tiny, write_toml

TABLE = tiny(
    evaluator="simulated",
    cluster={"nodes": 2, "devices_per_node": 4, "peak_tflops": {"fp32": 0.1}},
    problem={"global_batch": 16},
    space={
        "micro_batch_seqs": [1, 2],
        "recompute": ["none", "full"],
        "sharding": ["none", "zero-1"],
    },
    budget={"probes": 3},
)
SPEC = spec_of(TABLE)
RECIPE = Recipe(
    devices=8,
    tensor_parallel=2,
    micro_batch_seqs=2,
    accumulation=2,
    sharding=Sharding.named("zero-1", 4),
)
SOURCE = Source(recipe=RECIPE, spec=SPEC)
BUDGET = Budget()


def differing(recipe: Recipe) -> set[str]:
    """The dimensions in which a recipe differs from `RECIPE`, but for those that follow."""
    return {n for n, one in DIMENSIONS.items() if one.of(recipe) != one.of(RECIPE)} - {
        "accumulation",
        "schedule",
    }


def test_a_sweep_holds_the_recipe_and_those_that_differ_in_one_dimension() -> None:
    first, *others = sweep_spec(SOURCE, (), BUDGET).survey().recipes
    assert first == RECIPE
    assert sorted(next(iter(differing(one))) for one in others) == [
        "micro_batch_seqs", "pipeline_parallel", "recompute", "sharding", "tensor_parallel",
    ]  # fmt: skip
    assert all(len(differing(one)) == 1 and one.global_batch_seqs == 16 for one in others)


def test_values_can_be_named_that_the_space_lacks_and_the_recipe_keeps_its_own() -> None:
    outside = replace(RECIPE, recompute="selective")
    spec = sweep_spec(
        Source(recipe=outside, spec=SPEC), ("tensor_parallel=1,4", "loss_chunks=1,3"), BUDGET
    )
    found = [(one.tensor_parallel, one.loss_chunks, one.recompute) for one in spec.survey().recipes]
    assert found[0] == (2, 1, "selective")
    assert set(found[1:]) == {
        (1, 1, "selective"),
        (4, 1, "selective"),
    }  # three pieces do not divide 32 tokens
    refused = [
        row.found.illegal for row in preview(spec).variations if row.dimension == "loss_chunks"
    ]
    assert refused[0] is None
    assert refused[1] is not None


def test_strong_scaling_keeps_the_batch_and_weak_scaling_that_of_a_replica() -> None:
    spec = scale_spec(SOURCE, [1, 4], BUDGET)
    found = preview(spec)
    assert [row.nodes for row in found.strong] == [1, 2, 4]  # its own number among them
    strong, weak = ([row.found.recipe for row in rows] for rows in (found.strong, found.weak))
    assert [one.global_batch_seqs for one in strong] == [16, 16, 16]
    assert [one.global_batch_seqs for one in weak] == [8, 16, 32]
    assert [one.data_parallel for one in strong] == [one.data_parallel for one in weak] == [2, 4, 8]
    assert {one.sharding_name for one in (*strong, *weak)} == {"zero-1"}
    assert strong[1] == weak[1] == RECIPE
    assert set(spec.survey().recipes) == {*strong, *weak}


def test_what_does_not_divide_is_a_gap_with_its_reason() -> None:
    small = replace(RECIPE, accumulation=1, micro_batch_seqs=1)
    found = preview(scale_spec(Source(recipe=small, spec=SPEC), [1, 8], BUDGET))
    assert [row.found.illegal is None for row in found.strong] == [True, True, False]
    assert (
        found.strong[2].found.illegal
        == "micro-batch 1 x 16 replicas does not divide global batch 4"
    )
    assert [row.found.illegal for row in found.weak] == [None] * 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sweep_spec(SOURCE, ("accumulation=1,2",), BUDGET),
            "accumulation follows from the fixed global batch"),
        (lambda: sweep_spec(SOURCE, ("tensor_paralel",), BUDGET),
            "unknown dimension tensor_paralel"),
        (lambda: sweep_spec(SOURCE, ("loss_chunks",), BUDGET), "has one value of loss_chunks"),
        (lambda: sweep_spec(SOURCE, ("tensor_parallel=x",), BUDGET), 'space.tensor_parallel = "x"'),
        (lambda: scale_spec(Source(recipe=replace(RECIPE, devices=2), spec=SPEC), [2], BUDGET),
            "expected whole nodes"),
        (lambda: SearchSettings(strategy="sweep"),
            'search.baseline is missing: expected a recipe file'),
    ],
    ids=["follows", "unknown", "one value", "no number", "part of a node", "no baseline"],
)  # fmt: skip
def test_what_cannot_be_measured_around_a_recipe_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        make()
    assert words in str(raised.value)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a simulated campaign of three probes."""
    folder = tmp_path_factory.mktemp("sweeps")
    frontrunner.launch(write_toml(folder / "tiny.toml", TABLE), store=str(folder / "s.db"))
    return str(folder / "s.db")


def test_a_sweep_goes_on_where_its_budget_ended_and_is_drawn_around_its_recipe(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, slowest = frontrunner.best("tiny", store=store)  # so that some value of the sweep is faster
    frontrunner_command(
        ["sweep", slowest.recipe_id, "--probes", "2", "--store", store, "--json"],
        standalone_mode=False,
    )
    first = json.loads(capsys.readouterr().out)
    assert (first["campaign"], first["reason"]) == (
        "tiny-sweep",
        "the budget is used up: 2 of 2 probes",
    )
    frontrunner_command(
        ["resume", "tiny-sweep", "--probes", "99", "--store", store, "--json"],
        standalone_mode=False,
    )
    around = json.loads(capsys.readouterr().out)["around"]
    rows = around["variations"]
    assert around["center"]["recipe_id"] == slowest.recipe_id
    legal = [row for row in rows if row["found"]["illegal"] is None]
    assert all(row["found"]["outcome"] is not None for row in legal)
    ids = {row["found"]["recipe_id"] for row in legal}
    assert sum(frontrunner.status("tiny-sweep", store=store).trials.values()) == len(ids)
    for row in legal:
        if row["found"]["tokens_per_s"]:
            change = row["found"]["tokens_per_s"] / around["center"]["tokens_per_s"] - 1
            assert row["change"] == pytest.approx(change)
    with frontrunner.store.LocalStore(store).opened() as found:
        chart = reported(found, "tiny-sweep").chart("sensitivity")
    assert isinstance(chart, Chart)
    assert chart.reading.startswith(f"One knob at a time around {slowest.recipe_id}")
    assert source_of(slowest.recipe_id, store=store).spec.name == "tiny"  # not its own sweep


def test_each_recipe_is_measured_as_often_as_asked_also_after_a_resume(store: str) -> None:
    recipe = frontrunner.best("tiny", store=store)[0].recipe_id
    some = Budget(probes=2)
    frontrunner.sweep(
        recipe, ["micro_batch_seqs"], repeats=3, budget=some, store=store, name="thrice"
    )
    frontrunner.resume("thrice", store=store, budget={"probes": 99})
    counts = {
        row.recipe_id: row.standing.repeats
        for row in frontrunner.best("thrice", top=None, store=store)
    }
    assert len(counts) > 1
    assert set(counts.values()) == {3}
    with pytest.raises(InvalidInput, match=r"search.repeats = 6: expected 1 to 5"):
        frontrunner.sweep(recipe, repeats=6, store=store)


def test_scaling_is_a_campaign_with_a_figure(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = frontrunner.best("tiny", store=store)[0]
    frontrunner_command(
        ["scale", first.recipe_id, "--nodes", "1,2,4", "--store", store], standalone_mode=False
    )
    text = capsys.readouterr().out
    assert text.index("strong scaling") < text.index("weak scaling")
    with frontrunner.store.LocalStore(store).opened() as found:
        chart = reported(found, "tiny-scale").chart("scaling")
    assert isinstance(chart, Chart)
    measured = [row for row in chart.spec["data"]["values"] if row["source"] == "measured"]
    assert {(row["scaling"], row["nodes"]) for row in measured} == {
        (s, n) for s in ("strong", "weak") for n in (1, 2, 4)
    }
    assert [row["efficiency"] for row in measured if row["nodes"] == 1] == [1.0, 1.0]
    four = next(row for row in measured if (row["scaling"], row["nodes"]) == ("weak", 4))
    one = next(row for row in measured if (row["scaling"], row["nodes"]) == ("weak", 1))
    assert four["efficiency"] == pytest.approx(four["tokens_per_s"] / one["tokens_per_s"] / 4)


def test_each_table_of_a_scaling_names_the_nodes_that_its_efficiency_is_relative_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    three = replace(RECIPE, devices=12, accumulation=1, sharding=Sharding.named("zero-1", 6))
    print_measured_scaling(preview(scale_spec(Source(recipe=three, spec=SPEC), [2], BUDGET)))
    strong, weak = capsys.readouterr().out.split(
        "weak scaling"
    )  # four replicas do not divide its batch of 12
    assert "relative to 3 nodes" in strong
    assert "relative to 2 nodes" in weak


def test_a_preview_stores_nothing(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = [one.name for one in frontrunner.campaigns(store=store)]
    first = frontrunner.best("tiny", store=store)[0].recipe_id
    for words in (["sweep", first], ["scale", first, "--nodes", "1,2"]):
        frontrunner_command([*words, "--preview", "--store", store], standalone_mode=False)
        text = capsys.readouterr().out
        assert "to be measured" in text
        assert "not measured" not in text  # the store has measured the recipe itself
    assert [one.name for one in frontrunner.campaigns(store=store)] == before


def test_strategies_around_a_recipe_are_commands() -> None:
    assert set(AROUND) <= set(frontrunner_command.list_commands(None))  # type: ignore[arg-type]
