"""What figures are drawn from, against values computed by hand from a small store."""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.insight.collected import Collected, Missing
from frontrunner.evaluators.insight.history import History, history, spending
from frontrunner.evaluators.insight.importance import FEWEST_RECIPES, Importance, ShapValues, importance, shap_values
from frontrunner.evaluators.insight.knobs import knobs
from frontrunner.evaluators.insight.landscape import Feasibility, SpeedMemory, feasibility, parallel, speed_memory
from frontrunner.evaluators.insight.objectives import checked_objectives, front
from frontrunner.evaluators.insight.predicted import Predicted, predicted
from frontrunner.evaluators.insight.sensitivity import Sensitivity, Source, sensitivity
from frontrunner.results.outcome import FailureKind, Measurement
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.views.charts.course import history_chart, spending_chart
from support.insight import GIB, failed, measured, recorded, spec

SPEC = spec()
RECIPES = {
    (r.tensor_parallel, r.pipeline_parallel, r.micro_batch_seqs): r for r in SPEC.space.survey(SPEC.problem).recipes
}
"""By TP, PP and micro-batch: all nine, on two devices."""
BEST = RECIPES[1, 1, 4]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Five recipes: one measured twice, one crashed first, one out of memory, one that hung for good."""
    return recorded(
        tmp_path_factory.mktemp("store") / "s.db",
        SPEC,
        [
            (RECIPES[1, 1, 1], [measured(100.0, 0.5)]),
            (BEST, [measured(500.0, 1.5), measured(300.0, 1.0)]),
            (RECIPES[2, 1, 4], [failed(node_seconds=72.0)]),
            (RECIPES[1, 2, 2], [failed(FailureKind.CRASHED), measured(200.0, 0.25)]),
            (RECIPES[1, 2, 1], [failed(FailureKind.HUNG)]),
        ],
    )


def test_history_pools_repeats_and_counts_every_attempt(collected: Collected) -> None:
    found = history(collected)
    assert isinstance(found, History)
    assert [step.outcome for step in found.steps] == [
        *("measured", "measured", "measured", "out-of-memory", "crashed", "measured", "hung"),
    ]
    # The second measurement of the best brings its median from 500 down to (500 + 300) / 2.
    assert [step.best_tokens_per_s for step in found.steps] == [100, 500, 400, 400, 400, 400, 400]
    assert [step.tokens_per_s for step in found.steps] == [100, 500, 300, None, None, 200, None]
    assert [step.node_hours for step in found.steps] == pytest.approx([0.01, 0.02, 0.03, 0.05, 0.06, 0.07, 0.08])
    assert found.steps[-1].best_tokens_per_s == collected.ranking[0].standing.tokens_per_s
    assert found.best_found_at == 3


def test_charts_of_little_time_are_in_node_seconds_and_of_much_in_node_hours(collected: Collected) -> None:
    much, little = history(collected), history(replace(collected, attempts=collected.attempts[:1]))
    assert isinstance(much, History)
    assert isinstance(little, History)
    chart = history_chart(replace(little, steps=(replace(little.steps[0], node_hours=0.005),)))
    assert chart.panels[1].x.label == "node-seconds spent"
    assert chart.panels[1].series[0].x == pytest.approx((18.0,))
    assert "after 18 of 18 node-seconds" in chart.reading
    chart = history_chart(much)
    assert chart.panels[1].x.label == "node-hours spent"
    assert "of 0.08 node-hours" in chart.reading
    spent = spending(collected)
    assert not isinstance(spent, Missing)
    assert spending_chart(spent).panels[0].x.label == "node-hours"
    chart = spending_chart([replace(row, node_hours=row.node_hours / 100) for row in spent])
    assert chart.panels[0].x.label == "node-seconds"
    assert sum(series.x[0] for series in chart.panels[0].series) == pytest.approx(0.08 * 36)


def test_the_best_so_far_is_the_best_of_all_standings_after_each_probe(collected: Collected) -> None:
    dice = random.Random(7)
    by_recipe = {row.trial.recipe_id: row for row in collected.attempts}
    attempts, speeds, expected = [], defaultdict(list), []
    for _ in range(400):
        attempted = by_recipe[dice.choice(sorted(by_recipe))]
        outcome = dice.choice([measured(dice.choice([100.0, 200.0, 300.0, 400.0])), failed()])
        attempts.append(replace(attempted, outcome=outcome))
        standing = speeds[attempted.trial.recipe_id]
        if isinstance(outcome, Measurement):
            standing.append((outcome.tokens_per_s, True))
        else:  # its earlier repeats count again with the next that is measured
            speeds[attempted.trial.recipe_id] = [(speed, False) for speed, _ in standing]
        stands = [[speed for speed, _ in rows] for rows in speeds.values() if rows and rows[-1][1]]
        expected.append(max(map(statistics.median, stands), default=None))
    found = history(replace(collected, attempts=attempts))
    assert isinstance(found, History)
    assert [step.best_tokens_per_s for step in found.steps] == expected
    assert None in expected[1:]  # every recipe had failed once


def test_node_hours_are_told_by_outcome(collected: Collected) -> None:
    found = spending(collected)
    assert not isinstance(found, Missing)
    assert [(row.outcome, row.attempts) for row in found[:2]] == [("measured", 4), ("out-of-memory", 1)]
    assert {row.outcome: row.node_hours for row in found} == pytest.approx(
        {"measured": 0.04, "out-of-memory": 0.02, "hung": 0.01, "crashed": 0.01}
    )
    assert {row.outcome: row.share for row in found} == pytest.approx(
        {"measured": 0.5, "out-of-memory": 0.25, "hung": 0.125, "crashed": 0.125}
    )


def test_the_front_is_that_of_the_store(collected: Collected) -> None:
    found = speed_memory(collected)
    assert isinstance(found, SpeedMemory)
    # 400 at 1.5 GiB (the most of both repeats), 200 at 0.25 GiB; 100 at 0.5 GiB is beaten in both.
    assert [row.recipe for row in found.front] == [BEST, RECIPES[1, 2, 2]]
    assert [row.standing.peak_memory_bytes_max_rank for row in found.recipes] == [1.5 * GIB, 0.25 * GIB, 0.5 * GIB]
    assert found.limit_bytes == 2 * GIB


FIGURES_OF_FRONT = [(100, 4, 1), (90, 5, 1), (80, 4, 2), (80, 4, 1), (70, 1, 2), (60, 2, 1), (60, 2, 1), (50, 3, 1)]
"""(tokens/s, peak GiB, nodes), fastest first."""


def test_a_front_of_three_objectives_is_what_nothing_dominates(collected: Collected) -> None:
    # One device a node, so that a recipe's devices are its nodes.
    cluster = replace(SPEC.problem.cluster, devices_per_node=1, nodes=2, memory_gib_per_device=8.0)
    problem = replace(SPEC.problem, cluster=cluster)
    ranking = [
        replace(
            collected.ranking[0],
            rank=place,
            recipe=Recipe(devices=nodes, micro_batch_seqs=1, accumulation=8 // nodes),
            standing=replace(
                collected.ranking[0].standing, tokens_per_s=tokens, peak_memory_bytes_max_rank=memory * GIB
            ),
        )
        for place, (tokens, memory, nodes) in enumerate(FIGURES_OF_FRONT, start=1)
    ]
    found = front(ranking, problem, ("tokens", "memory", "nodes"))
    # 2 to 4 are no better than 1 anywhere; 7 equals 6, which ranks before it; 8 is worse than 6.
    assert [(row.ranked.rank, row.nodes, row.headroom_bytes / GIB) for row in found] == [
        (1, 1, 4),
        (5, 2, 7),
        (6, 1, 6),
    ]
    assert [row.ranked.rank for row in front(ranking, problem, ("tokens", "nodes"))] == [1]
    assert [row.ranked.rank for row in front(ranking, problem, ("memory", "nodes"))] == [5, 6]


def test_a_front_of_speed_and_memory_is_the_store_s(collected: Collected) -> None:
    found = front(collected.ranking, SPEC.problem, ("tokens", "memory"))
    assert [row.ranked.recipe_id for row in found] == [row.recipe_id for row in collected.front]


@pytest.mark.parametrize("names", [["tokens"], ["tokens", "tokens"], ["tokens", "speed"], []])
def test_objectives_are_two_or_more_known_ones(names: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"--objectives = .*: expected two or more of tokens, memory, nodes"):
        checked_objectives(names)


def test_the_map_has_a_cell_for_each_corner_with_a_legal_recipe(collected: Collected) -> None:
    found = feasibility(collected)
    assert isinstance(found, Feasibility)
    assert set(found.cells) == set(RECIPES)
    assert (found.tensor_parallel, found.pipeline_parallel, found.micro_batch_seqs) == ((1, 2), (1, 2), (1, 2, 4))
    states = {corner: cell.state for corner, cell in found.cells.items() if cell.state != "untried"}
    assert states == {
        (1, 1, 1): "measured",
        (1, 1, 4): "measured",
        (1, 2, 2): "measured",
        (2, 1, 4): "failed",
        (1, 2, 1): "failed",
    }
    assert found.cells[2, 1, 4].failures == {"out-of-memory": 1}
    assert found.cells[1, 1, 4].best_tokens_per_s == 400
    assert all(cell.legal == 1 for cell in found.cells.values())


def test_a_cell_in_which_some_ran_and_some_failed_is_mixed(tmp_path: Path) -> None:
    both = spec(space={"recompute": ["none", "full"]})
    recipes = [r for r in both.space.survey(both.problem).recipes if (r.tensor_parallel, r.pipeline_parallel) == (1, 1)]
    one, other = (r for r in recipes if r.micro_batch_seqs == 4)
    found = feasibility(recorded(tmp_path / "s.db", both, [(one, [failed()]), (other, [measured(1.0)])]))
    assert isinstance(found, Feasibility)
    assert found.cells[1, 1, 4].state == "mixed"
    assert found.cells[1, 1, 4].legal == 2


def test_predictions_are_the_model_s_and_errors_are_relative(collected: Collected) -> None:
    found = predicted(collected)
    assert isinstance(found, Predicted)
    expected = {row.recipe: row for row in estimate_many(list(RECIPES.values()), SPEC.problem)}
    for row in found.recipes:
        guess, standing = expected[row.measured.recipe], row.measured.standing
        assert row.speed_error == pytest.approx((guess.tokens_per_s - standing.tokens_per_s) / standing.tokens_per_s)
        assert row.predicted_memory_bytes == guess.peak_memory_bytes
    assert found.mean_speed_error == pytest.approx(sum(abs(row.speed_error) for row in found.recipes) / 3)
    assert (found.fits.fits_and_ran, found.fits.fits_and_out_of_memory) == (3, 1)
    assert found.order_agreement is None, "three recipes are too few for an order"


def test_one_knob_at_a_time_says_what_each_point_rests_on(collected: Collected) -> None:
    found = sensitivity(collected)
    assert isinstance(found, Sensitivity)
    curves = {curve.dimension: curve.points for curve in found.curves}
    assert list(curves) == ["tensor_parallel", "pipeline_parallel", "micro_batch_seqs"]
    assert found.accumulation_follows
    tensor, micro = curves["tensor_parallel"], curves["micro_batch_seqs"]
    assert [(p.value, p.source, p.is_best) for p in tensor] == [(1, Source.MEASURED, True), (2, Source.FAILED, False)]
    assert tensor[1].note == "out-of-memory"
    assert [p.source for p in micro] == [Source.MEASURED, Source.ESTIMATED, Source.MEASURED]
    guess = {row.recipe: row.tokens_per_s for row in estimate_many([BEST, RECIPES[1, 1, 2]], SPEC.problem)}
    assert [p.tokens_per_s for p in micro] == pytest.approx([100, 400 * guess[RECIPES[1, 1, 2]] / guess[BEST], 400])


def test_a_value_without_a_legal_recipe_says_why(tmp_path: Path) -> None:
    odd = spec(space={"tensor_parallel": [1, 3], "micro_batch_seqs": [1, 2]})
    recipe = odd.space.survey(odd.problem).recipes[0]
    found = sensitivity(recorded(tmp_path / "s.db", odd, [(recipe, [measured(1.0)])]))
    assert isinstance(found, Sensitivity)
    (tensor,) = (curve for curve in found.fixed if curve.dimension == "tensor_parallel")
    assert [p.source for p in tensor.points] == [Source.MEASURED, Source.ILLEGAL]
    assert "3" in tensor.points[1].note


def test_what_cannot_be_told_says_why(tmp_path: Path, collected: Collected) -> None:
    empty = recorded(tmp_path / "s.db", SPEC, [])
    for figure in (history, spending, speed_memory, parallel, feasibility, predicted, sensitivity, importance):
        found = figure(empty)
        assert isinstance(found, Missing), figure
        assert found.reason.endswith(".")
    few = importance(collected)
    assert few == Missing(reason=f"Importance needs at least {FEWEST_RECIPES} measured recipes; there are 3.")
    assert shap_values(collected) == few


TENSOR = {1: 1.0, 2: 0.5, 4: 0.25}
RECOMPUTE = {"none": 1.0, "full": 0.8}


@pytest.fixture(scope="module")
def factorial(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """36 recipes, every combination of four knobs, of which TP decides much, recompute a little, the others nothing."""
    campaign = spec(
        cluster={"devices_per_node": 4},
        problem={"global_batch": 16},
        space={
            "tensor_parallel": [1, 2, 4],
            "pipeline_parallel": [1],
            "micro_batch_seqs": [1, 2, 4],
            "recompute": ["none", "full"],
            "optimizer_state": ["fp32", "bf16"],
        },
    )
    recipes = campaign.space.survey(campaign.problem).recipes
    assert len(recipes) == 36
    outcomes = [(r, [measured(1000 * TENSOR[r.tensor_parallel] * RECOMPUTE[r.recompute])]) for r in recipes]
    return recorded(tmp_path_factory.mktemp("store") / "s.db", campaign, outcomes)


def test_importance_finds_the_knobs_that_decide(factorial: Collected) -> None:
    found = importance(factorial)
    assert isinstance(found, Importance)
    assert [knob.label for knob in found.knobs] == ["TP", "micro-batch", "recompute", "optimizer state"]
    assert found.best_share == pytest.approx(5 / 36)
    for shares in found.methods.values():
        assert sum(shares) == pytest.approx(1.0)
        assert shares[0] > shares[2] > max(shares[1], shares[3])
    # fANOVA is the share of variance: speeds are 1000 x TP x recompute, so that of their means over each alone.
    means = [1000 * factor * 0.9 for factor in TENSOR.values()], [1000 * factor * 1.75 / 3 for factor in (1.0, 0.8)]
    tensor, recompute = (statistics.pvariance(row) for row in means)
    assert found.methods["fANOVA"][0] == pytest.approx(tensor / (tensor + recompute), abs=0.02)
    assert importance(factorial) == found, "the same campaign gives the same figures"


def test_equal_speeds_leave_nothing_to_explain(factorial: Collected) -> None:
    equal = [replace(row, standing=replace(row.standing, tokens_per_s=1.0)) for row in factorial.ranking]
    found = importance(replace(factorial, ranking=equal))
    assert isinstance(found, Missing)
    assert "same speed" in found.reason


@pytest.mark.system
def test_shap_values_are_those_of_the_formula(factorial: Collected) -> None:
    """Of a sum of independent terms (the logarithms) each knob's Shapley value is its own term, less its mean."""
    pytest.importorskip("shap")
    found = shap_values(factorial)
    assert isinstance(found, ShapValues)
    columns = [knob.name for knob in found.knobs]
    mean = statistics.fmean(math.log(factor) for factor in TENSOR.values())
    for row, effects in zip(found.recipes, found.effects, strict=True):
        expected = math.exp(math.log(TENSOR[row.recipe.tensor_parallel]) - mean) - 1
        assert effects[columns.index("tensor_parallel")] == pytest.approx(expected, abs=0.1)
        assert effects[columns.index("micro_batch_seqs")] == pytest.approx(0.0, abs=0.02)
    assert found.explained > 0.9
    assert max(range(4), key=lambda place: found.mean_effects[place]) == columns.index("tensor_parallel")


def test_knobs_are_the_dimensions_with_a_choice() -> None:
    found = knobs(SPEC.space.survey(SPEC.problem), list(RECIPES.values()))
    assert [(knob.label, knob.values) for knob in found] == [
        *(("TP", (1, 2)), ("PP", (1, 2)), ("micro-batch", (1, 2, 4))),
    ]


def test_without_the_extra_packages_what_needs_them_is_left_out(
    factorial: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("sklearn", "shap"):
        monkeypatch.setitem(sys.modules, package, None)  # as Python marks a module that cannot be imported
    found = importance(factorial)
    assert isinstance(found, Importance)
    assert list(found.methods) == ["PED-ANOVA"]
    assert shap_values(factorial) == Missing(
        reason="SHAP values need shap and scikit-learn: pip install 'frontrunner[report]'."
    )
