"""Objectives under which more nodes do not always win: tokens per device, and for the price of the
nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import frontrunner
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.evaluators.analytic.scaling import scaling
from frontrunner.results.ranking import RankedRecipe
from frontrunner.search.guided.strategy import Guided
from frontrunner.search.proposals import Proposals
from frontrunner.search.spec import SearchSettings
from frontrunner.search.strategy import STRATEGIES, Strategy, Told, make_strategy
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.store import LocalStore
from frontrunner.views.charts.marks import Chart
from frontrunner.views.report import reported
from support import doubles
from support.campaigns import spec_of, tiny
from support.charted import measured
from support.known import Known

TABLE = tiny(
    evaluator="simulated",
    cluster={
        "nodes": 2,
        "devices_per_node": 4,
        "price_per_node_hour": 3.6,
        "peak_tflops": {"fp32": 0.1},
    },
    problem={"global_batch": 64},
    space={"devices": [2, 4, 8], "tensor_parallel": [1, 2], "pipeline_parallel": [1]},
    search={"strategy": "exhaustive"},
)
SURVEY = spec_of(TABLE).survey()
PROBLEM = SURVEY.problem
NODES = {2: 1, 4: 1, 8: 2}
RATES = {
    "tokens": lambda row: row.standing.tokens_per_s,
    "tokens_per_device": lambda row: row.standing.tokens_per_s / row.recipe.devices,
    "tokens_per_cost": lambda row: row.standing.tokens_per_s / NODES[row.recipe.devices],
}


def on(devices: int) -> Recipe:
    return next(one for one in SURVEY.recipes if one.devices == devices)


def test_a_rate_is_divided_by_devices_or_by_the_price_of_whole_nodes() -> None:
    assert [PROBLEM.divisor("tokens", on(count)) for count in NODES] == [1, 1, 1]
    assert [PROBLEM.divisor("tokens_per_device", on(count)) for count in NODES] == [2, 4, 8]
    assert [PROBLEM.divisor("tokens_per_cost", on(count)) for count in NODES] == pytest.approx(
        [1e-3, 1e-3, 2e-3]
    )


@pytest.mark.parametrize("rate", RATES)
def test_a_campaign_ranks_by_what_it_seeks(rate: str, tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    frontrunner.launch(
        spec_of(TABLE | {"search": {"strategy": "exhaustive", "objectives": [rate]}}), store=url
    )
    rows: list[RankedRecipe] = list(frontrunner.best(top=None, store=url))
    figures = [RATES[rate](row) for row in rows]
    assert figures == sorted(figures, reverse=True)
    assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
    assert [row.gap_percent for row in rows] == pytest.approx(
        [100 * (1 - one / figures[0]) for one in figures]
    )
    status = frontrunner.status(store=url)
    assert status.best is not None
    assert status.best.recipe == rows[0].recipe
    by_tokens = [
        row.standing.tokens_per_s for row in frontrunner.best(by="tokens", top=None, store=url)
    ]
    assert by_tokens == sorted(by_tokens, reverse=True)
    with LocalStore(url).opened() as store:
        found = reported(store, None)
    drawn, history = found.collected.ranking, found.chart("history")
    assert isinstance(history, Chart)
    unit = {"tokens_per_device": "TFLOPS/device", "tokens_per_cost": "tokens per price"}.get(
        rate, "tokens/s"
    )
    best = {
        "tokens_per_device": rows[0].standing.model_tflops_per_device,
        "tokens_per_cost": figures[0] * 1000,
    }
    assert history.table.header[3] == unit
    assert history.spec["data"]["values"][-1]["best"] == pytest.approx(best.get(rate, figures[0]))
    assert [(row.rank, row.recipe_id) for row in drawn] == [
        (row.rank, row.recipe_id) for row in rows
    ]


def test_strategies_are_told_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Told] = []

    class Heard:
        def ask(self, count: int) -> list[Any]:
            return list(SURVEY.recipes[:count])

        def tell(self, told: Told) -> None:
            heard.append(told)

    def make(*_: Any) -> Strategy:
        return Heard()

    doubles.register(monkeypatch, STRATEGIES, "random", make)
    search = SearchSettings(strategy="random", objectives=("tokens_per_device",))
    recipe = next(one for one in SURVEY.recipes if one.devices == 8)
    known = [(recipe, measured(80.0))]
    stored = Known(known)
    proposals = Proposals(
        search=search, survey=SURVEY, told=known, known=stored, notice=lambda *_, **__: None
    )
    stored.tell(proposals, recipe, measured(160.0))
    assert [told.outcome.tokens_per_s for told in heard] == [10.0, 20.0]  # type: ignore[union-attr]


def test_guided_predicts_the_rate() -> None:
    recipe = next(one for one in SURVEY.recipes if one.devices == 8)
    forecasts = []
    for rate in ("tokens", "tokens_per_device"):
        strategy = make_strategy("guided", SURVEY, 0, (rate,))
        assert isinstance(strategy, Guided)
        strategy.tell(Told(recipe=recipe, outcome=measured(5000.0 / PROBLEM.divisor(rate, recipe))))
        found = strategy.forecasts()
        forecasts.append({recipe: expected.tokens_per_s for recipe, expected in found.items()})
    assert forecasts[1] == pytest.approx(forecasts[0]), "in tokens/s, whatever is sought"


def test_nsga2_learns_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[float] = []
    monkeypatch.setattr(optuna.Study, "add_trial", lambda _, trial: learned.append(trial.values[0]))
    strategy = make_strategy("optuna-nsga2", SURVEY, 0, ("tokens_per_cost",))
    strategy.tell(Told(recipe=on(8), outcome=measured(160.0)))
    assert learned == [160.0]


def test_plans_and_scaling_name_the_best_by_the_rate() -> None:
    found = {rate: plan(SURVEY.recipes, PROBLEM, rate) for rate in RATES}
    for rate, one in found.items():
        rates = [row.tokens_per_s / PROBLEM.divisor(rate, row.recipe) for row in one.estimates]
        fitting = rates[: one.table.fitting - one.table.tight]
        assert fitting == sorted(fitting, reverse=True)
    for rate in RATES:
        rows = scaling(spec_of(TABLE).space, PROBLEM, [1, 2, 4], rate).strong
        (best,) = (row for row in rows if row.is_best)
        worth = [
            row.best.tokens_per_s / PROBLEM.divisor(rate, row.best.recipe)
            for row in rows
            if row.best
        ]
        assert best.best is not None
        assert best.best.tokens_per_s / PROBLEM.divisor(rate, best.best.recipe) == max(worth)
        assert best.price_per_billion_tokens == pytest.approx(
            best.node_hours_per_billion_tokens * 3.6
        )  # type: ignore[operator]


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (
            {"objectives": ["tokens_per_device", "memory"]},
            "or tokens_per_device or tokens_per_cost alone",
        ),
        ({"objectives": ["tokens_per_devices"]}, "tokens_per_device"),
        ({"objectives": ["tokens_per_cost"]}, "expected cluster.price_per_node_hour beside it"),
    ],
)
def test_rates_that_cannot_be_sought_are_refused(search: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        spec_of(tiny(search=search))
    assert words in f"{raised.value} {raised.value.hint}"
