"""What the whole training takes: its days, node-hours and price, in plans and rankings; a budget in money."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.cli.main import frontrunner as command
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.results.ranking import best
from frontrunner.results.store import open_store
from frontrunner.search.campaign_setup import problem_summary
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Training
from support.analytic import A100, PROBLEM, recipe
from support.campaigns import spec_of, tiny, write_toml
from support.rankings import measurement, record

PRICED = replace(PROBLEM, billion_tokens=300, cluster=replace(A100, price_per_node_hour=20))


def test_a_plan_states_what_all_tokens_take_on_the_recipe_s_nodes() -> None:
    (found,) = plan([recipe(devices=12, tensor_parallel=4)], PRICED).estimates
    hours = 300e9 / found.tokens_per_s / 3600
    assert found.training == Training(days=hours / 24, node_hours=2 * hours, price=pytest.approx(40 * hours))
    (without,) = plan([recipe(devices=12, tensor_parallel=4)], replace(PRICED, billion_tokens=None)).estimates
    assert without.training is None


def test_neither_tokens_nor_a_price_change_what_is_the_same_problem() -> None:
    assert PRICED == PROBLEM
    assert recipe_id(PRICED, recipe()) == recipe_id(PROBLEM, recipe())


def test_a_ranking_states_what_all_tokens_take_at_the_measured_rate(tmp_path: Path) -> None:
    spec = spec_of(tiny(problem={"billion_tokens": 2}, cluster={"price_per_node_hour": 0.5}))
    with open_store(str(tmp_path / "store.db")) as store:
        campaign = store.create_campaign(
            name="c", spec_json="{}", legal_recipes=9, problem_summary=problem_summary(spec)
        )
        writer = store.drive(store.acquire_lease(campaign.id, host="another-host.example", pid=1, take_over=True))
        record(writer, "0" * 12, measurement((0.5,), 10**9), number=1)
        (row,) = best(store, "c")
    hours = 2e9 / row.standing.tokens_per_s / 3600
    nodes = -(-row.recipe.devices // 2)
    assert row.training == Training(days=hours / 24, node_hours=nodes * hours, price=pytest.approx(nodes * hours / 2))


@pytest.mark.parametrize(("budget", "hours"), [({}, 5.0), ({"node_hours": 2}, 2.0), ({"node_hours": 9}, 5.0)])
def test_a_budget_in_money_is_one_of_node_hours(budget: dict[str, Any], hours: float) -> None:
    spec = spec_of(tiny(cluster={"price_per_node_hour": 4}, budget=budget | {"cost": 20}))
    assert spec.budget.node_hours == hours


def test_a_budget_in_money_needs_a_price() -> None:
    with pytest.raises(InvalidInput, match=r"budget\.cost = 20\.0: expected cluster\.price_per_node_hour beside it"):
        spec_of(tiny(budget={"cost": 20}))


def test_the_command_prints_it_and_answers_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {
        "model": {"preset": "llama-3-8b"},
        "cluster": {"preset": "dgx-h100", "price_per_node_hour": 30},
        "problem": {"sequence_length": 4096, "global_batch": 64, "billion_tokens": 15},
        "space": {"tensor_parallel": [8]},
    }
    file = write_toml(tmp_path / "c.toml", table)
    assert command(["plan", str(file), "--json"], standalone_mode=False) in (None, 0)
    first = json.loads(capsys.readouterr().out)["estimates"][0]
    assert first["training"]["price"] == pytest.approx(30 * first["training"]["node_hours"])
    assert first["training"]["node_hours"] == pytest.approx(24 * first["training"]["days"])
