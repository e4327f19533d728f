"""Charts of a campaign, against values computed by hand from a small store."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.fronts import checked_objectives, front
from frontrunner.results.arrays import KINDS, Attempts
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.ranking import RankedRecipe, best
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.campaign import (
    MOST_LINES,
    feasibility,
    history,
    node_hours,
    parallel_coordinates,
    speed_memory,
)
from frontrunner.views.charts.knobs import (
    FEWEST_RECIPES,
    curve,
    order_agreement,
    predicted,
    sensitivity,
    shap,
    shap_effects,
)
from frontrunner.views.charts.marks import (
    MOST_DRAWN,
    OUTCOMES,
    Chart,
    Collected,
    Missing,
    collect,
    knobs,
)
from frontrunner.views.charts.render import fitted
from support.charted import GIB, add_trial, failed, measured, recorded, spec

SPEC = spec()
RECIPES = {
    (r.tensor_parallel, r.pipeline_parallel, r.micro_batch_seqs): r
    for r in SPEC.space.survey(SPEC.problem).recipes
}
"""By TP, PP and micro-batch: all nine, on two devices."""
BEST = RECIPES[1, 1, 4]
COLUMNS = ("rows", "kinds", "endings", "tokens_per_s", "node_seconds")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Five recipes: one measured twice, one crashed first, one out of memory, one that hung for
    good.
    """
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


def chart_of(found: Chart | Missing) -> Chart:
    assert isinstance(found, Chart)
    return found


def rows_of(spec: Any, field: str) -> list[dict[str, Any]]:
    """Return the rows of the first data set that has a field."""
    if isinstance(spec, dict):
        rows = spec.get("values")
        if isinstance(rows, list) and rows and field in rows[0]:
            return list(rows)
        spec = list(spec.values())
    if isinstance(spec, list):
        return next((rows for part in spec if (rows := rows_of(part, field))), [])
    return []


def test_history_pools_repeats_and_counts_every_attempt(collected: Collected) -> None:
    chart = chart_of(history(collected))
    rows = rows_of(chart.spec, "probe")
    assert [row["outcome"] for row in rows] == [
        *("measured", "measured", "measured", "out-of-memory", "crashed", "measured", "hung"),
    ]
    # The second measurement of the best brings its median from 500 down to (500 + 300) / 2.
    assert [row["best"] for row in rows] == [100, 500, 400, 400, 400, 400, 400]
    assert [row["tokens_per_s"] for row in rows] == [100, 500, 300, None, None, 200, None]
    assert [row["spent"] for row in rows] == pytest.approx(
        [0.01, 0.02, 0.03, 0.05, 0.06, 0.07, 0.08]
    )
    assert "found by probe 3 of 7, after 0.03 of 0.08 node-hours" in chart.reading


def chosen(attempts: Attempts, places: Sequence[int], **changed: Any) -> Attempts:
    """The attempts at these places, with some columns changed."""
    columns = {name: getattr(attempts, name)[list(places)] for name in COLUMNS}
    return replace(attempts, **columns | changed)


def test_time_of_nodes_is_in_seconds_if_short(collected: Collected) -> None:
    one = chosen(collected.attempts, [0])
    short = replace(collected, attempts=replace(one, node_seconds=np.array([18.0])))
    assert "after 18 of 18 node-seconds" in chart_of(history(short)).reading
    assert "18 node-seconds went to 1 attempts" in chart_of(node_hours(short)).reading


def test_history_tells_outcomes_of_earlier_campaigns_from_probes(collected: Collected) -> None:
    assert "earlier" not in chart_of(history(collected)).reading
    assert "not run here: 2 outcomes." in chart_of(history(replace(collected, reused=2))).reading


def test_history_best_is_the_best_standing_after_each_probe(collected: Collected) -> None:
    dice = random.Random(7)
    place_of = {row.recipe_id: place for place, row in enumerate(collected.attempts)}
    places, rates, kinds, speeds, expected = [], [], [], defaultdict(list), []
    for _ in range(400):
        name = dice.choice(sorted(place_of))
        outcome = dice.choice([measured(dice.choice([100.0, 200.0, 300.0, 400.0])), failed()])
        places.append(place_of[name])
        rates.append(getattr(outcome, "tokens_per_s", math.nan))
        kinds.append(KINDS.index(outcome.kind) if isinstance(outcome, Failure) else -1)
        standing = speeds[name]
        if isinstance(outcome, Measurement):
            standing.append((outcome.tokens_per_s, True))
        else:  # its earlier repeats count again with the next that is measured
            speeds[name] = [(speed, False) for speed, _ in standing]
        stands = [[speed for speed, _ in rows] for rows in speeds.values() if rows and rows[-1][1]]
        expected.append(max(map(statistics.median, stands), default=None))
    attempts = chosen(
        collected.attempts, places, tokens_per_s=np.array(rates), kinds=np.array(kinds)
    )
    rows = rows_of(chart_of(history(replace(collected, attempts=attempts))).spec, "probe")
    assert [row["best"] for row in rows] == expected
    assert None in expected[1:]  # every recipe had failed once


def test_an_imported_table_has_no_course_of_a_search(collected: Collected) -> None:
    imported = replace(
        collected, campaign=replace(collected.campaign, problem_summary={"figures": "imported"})
    )
    for draw in (history, node_hours):
        assert draw(imported) == Missing(
            reason="Nothing ran here: the table's rows were measured elsewhere."
        )


def test_history_of_many_probes_draws_some_thousand_and_every_step_of_the_best(
    collected: Collected,
) -> None:
    places = [*[0] * 9001, *range(1, len(collected.attempts))]
    many = replace(collected, attempts=chosen(collected.attempts, places))
    chart = chart_of(history(many))
    rows = rows_of(chart.spec, "probe")
    assert len(rows) < MOST_DRAWN + 10
    assert {row["best"]: row["probe"] for row in reversed(rows)} == {100: 1, 500: 9002, 400: 9003}
    assert chart.remarks == (
        (
            f"{len(rows):,} of 9,007 probes are drawn: an even selection, and each step of the best"
            " so far."
        ),
    )
    assert "found by probe 9003 of 9007" in chart.reading
    assert (
        sum(row["attempts"] for row in rows_of(chart_of(node_hours(many)).spec, "outcome")) == 9007
    )


def test_node_hours_by_outcome(collected: Collected) -> None:
    rows = rows_of(chart_of(node_hours(collected)).spec, "outcome")
    assert [(row["outcome"], row["attempts"]) for row in rows[:2]] == [
        ("measured", 4),
        ("out-of-memory", 1),
    ]
    assert {row["outcome"]: row["spent"] for row in rows} == pytest.approx(
        {"measured": 0.04, "out-of-memory": 0.02, "hung": 0.01, "crashed": 0.01}
    )
    assert {row["outcome"]: row["share"] for row in rows} == pytest.approx(
        {"measured": 0.5, "out-of-memory": 0.25, "hung": 0.125, "crashed": 0.125}
    )


def test_speed_memory_marks_the_front_of_the_store(collected: Collected) -> None:
    chart = chart_of(speed_memory(collected))
    rows = rows_of(chart.spec, "peak")
    # 400 at 1.5 GiB (the most of both repeats), 200 at 0.25 GiB; 100 at 0.5 GiB is beaten in both.
    assert [(row["peak"], row["group"], row["label"]) for row in rows] == [
        (1.5, "on the front", "#1"),
        (0.25, "on the front", "#2"),
        (0.5, "measured", ""),
    ]
    assert rows_of(chart.spec, "at")[0]["at"] == 2.0
    assert len(chart.table.rows) == 2
    assert not chart.remarks, "all of one node"


FRONT = [
    (100, 4, 1),
    (90, 5, 1),
    (80, 4, 2),
    (80, 4, 1),
    (70, 1, 2),
    (60, 2, 1),
    (60, 2, 1),
    (50, 3, 1),
]
"""(tokens/s, peak GiB, nodes), fastest first."""


def test_recipes_without_a_known_peak_are_left_out_and_counted(tmp_path: Path) -> None:
    outcomes = {
        (1, 1, 1): measured(500.0, 0.0),
        (1, 1, 4): measured(300.0, 1.0),
        (1, 2, 2): measured(200.0, 0.25),
    }
    several = recorded(
        tmp_path / "s.db", SPEC, [(RECIPES[key], [found]) for key, found in outcomes.items()]
    )
    chart = chart_of(speed_memory(several))
    assert chart.reading.startswith("2 of 2 recipes are on the front")
    assert "Left out: 1 recipe whose peak memory is unknown." in chart.remarks
    assert "over the 2 whose peak is known" in chart_of(predicted(several)).reading
    assert not rows_of(chart_of(parallel_coordinates(several)).spec, "peak GiB")
    none = recorded(tmp_path / "none.db", SPEC, [(RECIPES[1, 1, 1], [measured(500.0, 0.0)])])
    assert speed_memory(none) == Missing(reason="The peak memory of no measured recipe is known.")
    assert "peak memory" not in chart_of(predicted(none)).reading


def test_charts_are_of_one_moment_while_outcomes_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    first = recorded(path, SPEC, [(RECIPES[1, 1, 1], [measured(100.0, 0.5)])])

    def after_an_outcome(store: Store, campaign: Campaign, places: Any) -> list[RankedRecipe]:
        with open_store(str(path)) as other:
            lease = other.acquire_lease(campaign.id, host="another-host.example", pid=1)
            add_trial(other.drive(lease), SPEC, BEST, [measured(500.0, 0.25)])
        return best(store, campaign, top=None)

    monkeypatch.setattr("frontrunner.views.charts.marks.ranked_at", after_an_outcome)
    with open_store(str(path)) as store:
        found = collect(store, store.campaign(SPEC.name), first.survey)
        assert [row.recipe for row in found.ranking] == [RECIPES[1, 1, 1]]
        assert [row.recipe for row in best(store, SPEC.name)] == [BEST, RECIPES[1, 1, 1]]


def test_charts_rank_a_measurement_that_is_to_be_repeated_as_the_store_does(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first = recorded(path, SPEC, [(RECIPES[1, 1, 1], [measured(100.0, 0.5)])])
    with open_store(str(path)) as store:
        lease = store.acquire_lease(first.campaign.id, host="another-host.example", pid=1)
        writer = store.drive(lease)
        trial = writer.propose(recipe_id(SPEC.problem, BEST), BEST)
        for tokens_per_s in (500.0, 300.0):
            attempt = writer.start_attempt(trial, run_folder="/runs/x")
            writer.finish_attempt(attempt, measured(tokens_per_s, 1.0), retry=True)
            found = collect(store, store.campaign(SPEC.name), first.survey)
            assert found.ranking == best(store, SPEC.name)
            speeds = found.trials.figures["tokens_per_s"]
            assert max(speeds) == found.ranking[0].standing.tokens_per_s
            assert len(rows_of(chart_of(speed_memory(found)).spec, "peak")) == 2


def test_front_of_three_objectives_is_what_nothing_dominates(collected: Collected) -> None:
    # One device per node, so that a recipe's devices are its nodes.
    cluster = replace(SPEC.problem.cluster, devices_per_node=1, nodes=2, memory_gib_per_device=8.0)
    problem = replace(SPEC.problem, cluster=cluster)
    ranking = [
        replace(
            collected.ranking[0],
            rank=place,
            recipe=Recipe(devices=nodes, micro_batch_seqs=1, accumulation=8 // nodes),
            standing=replace(
                collected.ranking[0].standing,
                tokens_per_s=tokens,
                peak_memory_bytes_max_rank=memory * GIB,
            ),
        )
        for place, (tokens, memory, nodes) in enumerate(FRONT, start=1)
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


def test_front_of_speed_and_memory_is_the_store_s(collected: Collected) -> None:
    found = front(collected.ranking, SPEC.problem, ("tokens", "memory"))
    assert [row.ranked.recipe_id for row in found] == [row.recipe_id for row in collected.front]


@pytest.mark.parametrize("names", [["tokens"], ["tokens", "tokens"], ["tokens", "speed"], []])
def test_objectives_are_two_or_more_known_ones(names: list[str]) -> None:
    with pytest.raises(
        InvalidInput, match=r"--objectives = .*: expected two or more of tokens, memory, nodes"
    ):
        checked_objectives(names)


def test_feasibility_has_a_cell_for_each_corner_with_a_legal_recipe(collected: Collected) -> None:
    cells = {
        (row["tp"], row["pp"], row["micro_batch"]): row
        for row in rows_of(chart_of(feasibility(collected)).spec, "state")
    }
    assert set(cells) == set(RECIPES)
    states = {
        corner: cell["state"] for corner, cell in cells.items() if cell["state"] != "not tried"
    }
    assert states == {
        (1, 1, 1): "all ran",
        (1, 1, 4): "all ran",
        (1, 2, 2): "all ran",
        (2, 1, 4): "all failed: out-of-memory",
        (1, 2, 1): "all failed: hung",
    }
    assert cells[2, 1, 4]["failed"] == "1 out-of-memory"
    assert cells[1, 1, 4]["best"] == "400"
    assert all(cell["legal"] == 1 for cell in cells.values())


def test_feasibility_of_a_corner_where_some_failed(tmp_path: Path) -> None:
    both = spec(space={"recompute": ["none", "full"]})
    recipes = [
        r
        for r in both.space.survey(both.problem).recipes
        if (r.tensor_parallel, r.pipeline_parallel) == (1, 1)
    ]
    one, other = (r for r in recipes if r.micro_batch_seqs == 4)
    found = feasibility(
        recorded(tmp_path / "s.db", both, [(one, [failed()]), (other, [measured(1.0)])])
    )
    row = next(row for row in rows_of(chart_of(found).spec, "state") if row["words"] == "1/2")
    assert (row["state"], row["legal"]) == ("some ran, some failed", 2)


def test_predicted_errors_are_relative_to_the_measurement(collected: Collected) -> None:
    chart = chart_of(predicted(collected))
    expected = {row.recipe: row for row in estimate_many(list(RECIPES.values()), SPEC.problem)}
    errors = [
        expected[row.recipe].tokens_per_s / row.standing.tokens_per_s - 1
        for row in collected.ranking
    ]
    assert [cells[4] for cells in chart.table.rows] == [f"{100 * error:+.0f} %" for error in errors]
    mean = statistics.fmean(map(abs, errors))
    assert f"tokens/s are off by {100 * mean:.0f} % on average" in chart.reading
    assert "rank correlation" not in chart.reading, "three recipes are too few for an order"
    assert (
        "Of 1 recipes that ran out of memory the model had called 0 too large; of 3 that ran, 0."
        in chart.remarks
    )


def test_measured_recipes_are_counted_in_their_intervals(tmp_path: Path) -> None:
    known = spec(cluster={"peak_tflops": {"fp32": 0.1}})
    first, second, *_ = known.space.survey(known.problem).recipes
    (estimate,) = estimate_many([first], known.problem)
    outcomes = [(first, [measured(estimate.tokens_per_s)]), (second, [measured(1.0)])]
    found = chart_of(predicted(recorded(tmp_path / "s.db", known, outcomes)))
    assert "1 of 2 are in the 95 % intervals that it states" in found.reading


def test_order_agreement_is_the_rank_correlation() -> None:
    found = (1, 2, 3, 4, 5)
    assert order_agreement((10, 20, 40, 80, 90), found) == pytest.approx(1.0)
    assert order_agreement((9, 8, 7, 6, 5), found) == pytest.approx(-1.0)
    assert order_agreement((9, 9, 9, 9, 9), found) is None
    assert order_agreement((9, 8, 7, 6), found[:4]) is None


def test_sensitivity_states_what_each_point_rests_on(collected: Collected) -> None:
    chart = chart_of(sensitivity(collected))
    assert list(dict.fromkeys(row["knob"] for row in rows_of(chart.spec, "knob"))) == [
        "TP",
        "PP",
        "micro-batch",
    ]
    assert "Accumulation follows from the fixed global batch" in chart.reading
    tensor, micro = (
        list(curve("tensor_parallel", collected, BEST)),
        list(curve("micro_batch_seqs", collected, BEST)),
    )
    assert [(p["value"], p["source"], p["note"]) for p in tensor] == [
        ("1", "the recipe itself", ""),
        ("2", "failed", "out-of-memory"),
    ]
    assert [p["source"] for p in micro] == ["measured", "estimated", "the recipe itself"]
    guess = {
        row.recipe: row.tokens_per_s
        for row in estimate_many([BEST, RECIPES[1, 1, 2]], SPEC.problem)
    }
    assert [p["tokens_per_s"] for p in micro] == pytest.approx(
        [100, 400 * guess[RECIPES[1, 1, 2]] / guess[BEST], 400]
    )


def test_sensitivity_names_why_a_value_is_illegal(tmp_path: Path) -> None:
    odd = spec(space={"tensor_parallel": [1, 3], "micro_batch_seqs": [1, 2]})
    recipe = odd.space.survey(odd.problem).recipes[0]
    found = recorded(tmp_path / "s.db", odd, [(recipe, [measured(1.0)])])
    assert (
        "Not drawn, since no other value is legal while the rest stays: TP."
        in chart_of(sensitivity(found)).remarks
    )
    assert [p["source"] for p in curve("tensor_parallel", found, found.ranking[0].recipe)] == [
        "the recipe itself",
        "no legal recipe",
    ]
    assert "3" in list(curve("tensor_parallel", found, found.ranking[0].recipe))[1]["note"]


def test_parallel_coordinates_draw_the_fastest_last(collected: Collected) -> None:
    rows = rows_of(chart_of(parallel_coordinates(collected)).spec, "height")
    assert (
        list(dict.fromkeys(row["recipe"] for row in rows))
        == [row.recipe_id for row in collected.ranking][::-1]
    )
    best = {
        row["axis"]: row["height"]
        for row in rows
        if row["recipe"] == collected.ranking[0].recipe_id
    }
    assert best == {
        "PP": 0.0,
        "micro-batch": 1.0,
        "peak GiB": 1.0,
        "tokens/s": 1.0,
    }  # all measured have TP 1
    many = replace(collected, ranked=3 * MOST_LINES)
    assert chart_of(parallel_coordinates(many)).remarks == (
        f"The {2 * MOST_LINES} slowest recipes are not drawn.",
    )


def test_charts_without_data_state_why(tmp_path: Path, collected: Collected) -> None:
    empty = recorded(tmp_path / "s.db", SPEC, [])
    for _, draw in FIGURES.values():
        found = draw(empty)
        assert isinstance(found, Missing)
        assert found.reason.endswith(".")
    elsewhere = sensitivity(replace(collected, around=RECIPES[1, 1, 2]))
    assert isinstance(elsewhere, Missing)
    assert RECIPES[1, 1, 2].describe() in elsewhere.reason
    assert shap(collected) == Missing(
        reason=f"SHAP values need at least {FEWEST_RECIPES} measured recipes; there are 3."
    )


TENSOR = {1: 1.0, 2: 0.5, 4: 0.25}
RECOMPUTE = {"none": 1.0, "full": 0.8}


@pytest.fixture(scope="module")
def factorial(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """36 recipes, every combination of four knobs, of which TP decides much, recompute a little,
    the others nothing.
    """
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
    outcomes = [
        (r, [measured(1000 * TENSOR[r.tensor_parallel] * RECOMPUTE[r.recompute])]) for r in recipes
    ]
    return recorded(tmp_path_factory.mktemp("store") / "s.db", campaign, outcomes)


def test_shap_of_equal_speeds_is_missing(factorial: Collected) -> None:
    equal = [
        replace(row, standing=replace(row.standing, tokens_per_s=1.0)) for row in factorial.ranking
    ]
    found = shap(replace(factorial, ranking=equal))
    assert isinstance(found, Missing)
    assert "same speed" in found.reason


@pytest.mark.system
def test_shap_values_are_those_of_the_formula(factorial: Collected) -> None:
    """Of a sum of independent terms (the logarithms) each knob's Shapley value is its own term,
    less its mean.
    """
    pytest.importorskip("shap")
    varied = knobs(factorial.survey, [row.recipe for row in factorial.ranking])
    found, explained = shap_effects(varied, factorial.ranking)
    columns = [knob.dimension.name for knob in varied]
    tensor, micro = columns.index("tensor_parallel"), columns.index("micro_batch_seqs")
    mean = statistics.fmean(math.log(factor) for factor in TENSOR.values())
    for row, effects in zip(factorial.ranking, found, strict=True):
        expected = math.exp(math.log(TENSOR[row.recipe.tensor_parallel]) - mean) - 1
        assert effects[tensor] == pytest.approx(expected, abs=0.1)
        assert effects[micro] == pytest.approx(0.0, abs=0.02)
    assert explained > 0.9
    assert chart_of(shap(factorial)).table.rows[0][0] == "TP"


def test_knobs_are_the_dimensions_with_a_choice() -> None:
    found = knobs(SPEC.space.survey(SPEC.problem), list(RECIPES.values()))
    assert [(knob.label, knob.values) for knob in found] == [
        *(("TP", (1, 2)), ("PP", (1, 2)), ("micro-batch", (1, 2, 4))),
    ]


def test_outcomes_differ_in_color_and_in_symbol() -> None:
    assert {"measured", "running", *(kind.value for kind in FailureKind)} == set(OUTCOMES)
    colors, symbols = zip(*OUTCOMES.values(), strict=True)
    assert len(set(colors)) == len(set(symbols)) == len(OUTCOMES)


@pytest.mark.parametrize(
    ("width", "spec", "columns", "panel"),
    [
        (960, {"hconcat": [{}, {}], "usermeta": {"least": 400, "margin": 80}}, 2, 400),
        (600, {"hconcat": [{}, {}], "usermeta": {"least": 400, "margin": 80}}, 1, 520),
        (
            960,
            {
                "facet": {},
                "columns": 4,
                "spec": {},
                "usermeta": {"panels": 5, "least": 230, "margin": 52},
            },
            3,
            268,
        ),
        (
            960,
            {
                "facet": {},
                "columns": 4,
                "spec": {},
                "usermeta": {"panels": 4, "least": 230, "margin": 52},
            },
            4,
            188,
        ),
        (960, {"mark": "bar"}, 1, 960),
    ],
)
def test_fitted_panels_fill_the_width_in_even_rows(
    width: int, spec: Any, columns: int, panel: int
) -> None:
    found = fitted(spec, width)
    panels = found.get("hconcat") or found.get("vconcat") or [found.get("spec", found)]
    assert [one["width"] for one in panels] == [panel] * len(panels)
    assert (len(panels) if "hconcat" in found else found.get("columns", 1)) == columns
    assert fitted({"spec": {"width": {"step": 40}}}, 960)["spec"]["width"] == {"step": 40}
