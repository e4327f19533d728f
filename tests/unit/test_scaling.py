"""Scaling: the best recipe on other numbers of nodes, with its efficiency worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.cli.main import frontrunner as command
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.evaluators.analytic.scaling import check_counts, scaling, weak_batch
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from frontrunner.spaces.problem import GlobalBatch
from frontrunner.spaces.space import Space
from support.analytic import A100, PROBLEM
from support.campaigns import tiny, write_toml

SPACE = Space(
    tensor_parallel=(4, 8),
    pipeline_parallel=(1, 2),
    micro_batch_seqs=(1, 2),
    sharding=("none", "zero-1"),
)


def test_each_count_has_the_recipe_that_a_plan_of_it_ranks_first() -> None:
    found = scaling(SPACE, PROBLEM, [16, 2, 8])

    assert [row.nodes for row in found.strong] == [row.nodes for row in found.weak] == [2, 8, 16]
    for row, batch in zip((*found.strong, *found.weak), (64, 64, 64, 16, 64, 128), strict=True):
        here = replace(
            PROBLEM,
            cluster=replace(A100, nodes=row.nodes),
            global_batch=GlobalBatch(minimum=batch, maximum=batch),
        )
        assert row.best == plan(SPACE.survey(here).recipes, here).fastest(1)[0]
        assert row.best.recipe.devices == row.devices == 8 * row.nodes
        assert row.best.recipe.global_batch_seqs == batch


def test_efficiency_and_node_hours_are_those_of_the_step_times() -> None:
    strong = scaling(SPACE, PROBLEM, [2, 8]).strong
    times = [row.best.step_time_s for row in strong if row.best]

    assert strong[0].efficiency == 1.0
    assert strong[1].efficiency == pytest.approx(times[0] * 2 / (times[1] * 8))
    steps = 1e9 / (64 * 2048)
    assert strong[1].node_hours_per_billion_tokens == pytest.approx(8 * steps * times[1] / 3600)
    weak = scaling(SPACE, PROBLEM, [2, 8]).weak
    assert weak[1].efficiency == pytest.approx(weak[0].best.step_time_s / weak[1].best.step_time_s)  # type: ignore[union-attr]


def test_the_weak_batch_is_the_problem_s_batch_a_node() -> None:
    spread = replace(PROBLEM, global_batch=GlobalBatch(minimum=16, maximum=64))

    assert weak_batch(PROBLEM, 4) == GlobalBatch(minimum=32, maximum=32)
    assert weak_batch(spread, 16) == GlobalBatch(minimum=32, maximum=128)
    assert weak_batch(replace(PROBLEM, global_batch=GlobalBatch(minimum=12, maximum=12)), 3) is None


def test_a_count_without_a_recipe_says_why_and_the_next_is_the_measure() -> None:
    small = replace(PROBLEM, cluster=replace(A100, memory_gib_per_device=39))
    found = scaling(replace(SPACE, pipeline_parallel=(1,)), small, [1, 4, 32])

    nothing_fits, best, more = found.strong
    assert nothing_fits.reason is not None
    assert nothing_fits.reason.startswith("nothing fits: the smallest recipe needs ")
    assert nothing_fits.reason.endswith("GiB of 39.00")
    assert (best.reason, best.efficiency) == (None, 1.0)
    assert more.efficiency != 1.0
    crowded = scaling(
        replace(SPACE, tensor_parallel=(8,), pipeline_parallel=(1,)), PROBLEM, [128]
    ).strong[0]
    assert crowded.reason is not None
    assert "does not divide global batch 64" in crowded.reason
    uneven = scaling(
        SPACE, replace(PROBLEM, global_batch=GlobalBatch(minimum=12, maximum=12)), [3]
    ).weak[0]
    assert uneven.reason == "12 sequences x 3 / 8 nodes is not a whole number of sequences"


def test_lists_that_may_bound_the_answer_are_named() -> None:
    bounds = {bound.dimension: bound for bound in scaling(SPACE, PROBLEM, [2, 8]).bounds}

    assert "context_parallel" not in bounds
    best = [row.best.recipe for row in scaling(SPACE, PROBLEM, [2, 8]).strong if row.best]
    for dimension, largest in (
        ("tensor_parallel", 8),
        ("pipeline_parallel", 2),
        ("micro_batch_seqs", 2),
    ):
        taken = any(getattr(recipe, dimension) == largest for recipe in best)
        assert not taken or bounds[dimension].largest == largest


def test_devices_of_the_space_are_left_aside() -> None:
    found = scaling(replace(SPACE, devices=(64,)), PROBLEM, [2])

    assert found.devices_ignored
    assert found.strong == scaling(SPACE, PROBLEM, [2]).strong


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([], r"nodes = \[\]: expected 1 to 32 counts"),
        ([0, 2], "nodes = 0: expected whole numbers of at least 1"),
        ([True], "nodes = true: expected whole numbers"),
        (
            [4, 2, 4],
            r"nodes = \[4, 2, 4\]: expected each count once, and 4 is there more than once",
        ),
        ([200_000], "nodes = 200000: expected at most 1,000,000 devices in all, with 8 a node"),
        (list(range(1, 40)), "expected 1 to 32 counts"),
    ],
)
def test_counts_that_cannot_be_used(counts: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_counts(counts, 8)


@pytest.mark.parametrize("text", ["16,x", "16,,32", "", "-4", "1.5", "٣"])
def test_text_that_is_no_list_of_counts(text: str, tmp_path: Path) -> None:
    file = write_toml(tmp_path / "tiny.toml", tiny())
    with pytest.raises(
        InvalidInput, match=r"--nodes = .*: expected whole numbers with commas between"
    ):
        command(["plan", str(file), "--nodes", text], standalone_mode=False)


def test_the_command_prints_both_tables_and_answers_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_toml(tmp_path / "tiny.toml", tiny()))

    command(["plan", file, "--nodes", "4, 1"], standalone_mode=False)
    text = capsys.readouterr().out
    command(["plan", file, "--nodes", "4,1", "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)

    assert "strong scaling" in text
    assert "weak scaling" in text
    assert [row["nodes"] for row in answer["strong"]] == [1, 4]
    assert [row["global_batch"]["maximum"] for row in answer["weak"]] == [8, 32]
    assert answer["weak"][0]["best"] == answer["strong"][0]["best"]
    with pytest.raises(InvalidInput, match="--top is for the ranking"):
        command(["plan", file, "--nodes", "1", "--top", "3"], standalone_mode=False)


def test_nothing_on_any_count_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_toml(tmp_path / "tiny.toml", tiny(cluster={"memory_gib_per_device": 0.01}))
    with pytest.raises(NothingLegal):
        command(["plan", str(file), "--nodes", "1,2"], standalone_mode=False)
    assert "1 node: nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    "figures", [{"memory_gib_per_device": 81920e3}, {"memory_gb_per_s": 2.039e12}]
)
def test_figures_in_another_unit_are_refused(figures: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="is it in another unit"):
        replace(A100, **figures)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match=r"cluster\.peak_tflops\.bf16 = 312000.0: expected at most 100,000"
    ):
        replace(A100, peak_tflops=ByPrecision(bf16=312e3))
