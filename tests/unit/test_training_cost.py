"""What the whole training takes: its days, node-hours and price, in plans and rankings; a budget in
money.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import frontrunner as api
from frontrunner.cli.main import frontrunner as command
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.results.ranking import best
from frontrunner.results.store import open_store
from frontrunner.search.budget import BudgetTracker
from frontrunner.search.campaign_setup import create, problem_summary, stored_spec
from frontrunner.search.spec import Budget
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Training
from frontrunner.text import thousands
from support.analytic import A100, PROBLEM, recipe
from support.campaigns import spec_of, tiny, write_toml
from support.rankings import measurement, record

PRICED = replace(PROBLEM, billion_tokens=300, cluster=replace(A100, price_per_node_hour=20))


def test_a_plan_states_what_all_tokens_take_on_the_recipe_s_nodes() -> None:
    (found,) = plan([recipe(devices=12, tensor_parallel=4)], PRICED).estimates
    hours = 300e9 / found.tokens_per_s / 3600
    assert found.training == Training(
        days=hours / 24, node_hours=2 * hours, price=pytest.approx(40 * hours)
    )
    (without,) = plan(
        [recipe(devices=12, tensor_parallel=4)], replace(PRICED, billion_tokens=None)
    ).estimates
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
        writer = store.drive(
            store.acquire_lease(campaign.id, host="another-host.example", pid=1, take_over=True)
        )
        record(writer, "0" * 12, measurement((0.5,), 10**9), number=1)
        (row,) = best(store, "c")
    hours = 2e9 / row.standing.tokens_per_s / 3600
    nodes = -(-row.recipe.devices // 2)
    assert row.training == Training(
        days=hours / 24, node_hours=nodes * hours, price=pytest.approx(nodes * hours / 2)
    )


def test_a_budget_in_money_counts_each_probe_at_the_price_of_nodes(tmp_path: Path) -> None:
    campaign = tiny(
        cluster={"price_per_node_hour": 36}, budget={"probes": 6}, evaluator="simulated"
    )
    limited, store = str(tmp_path / "limited.db"), str(tmp_path / "store.db")
    api.launch(spec_of(campaign), store=store)
    total = 0.01 * api.dataframe("tiny", store=store)["node_seconds"].sum()
    spec = spec_of(campaign | {"budget": {"cost": 0.99 * total}})

    conclusion = api.launch(spec, store=limited)

    (limit,) = conclusion.limits
    assert limit == api.change_budget("tiny", {}, store=limited)[0], "as the driver has counted it"
    assert limit.used == pytest.approx(total)
    assert str(limit) == f"{thousands(total)} of {thousands(0.99 * total)} (price)"
    assert conclusion.reason == f"the budget is used up: {limit}"


def test_a_hard_budget_in_money_leaves_room_for_a_probe_on_all_nodes() -> None:
    tracker = BudgetTracker(Budget(cost=2.0, hard=True), nodes=10, price_per_node_hour=36.0)
    tracker.spend(40.0)
    assert tracker.used_up(()) is None  # 0.4, and 15 s on 10 nodes, 1.5
    tracker.spend(11.0)
    assert str(tracker.used_up(())) == "0.51 of 2 (price)"


def test_a_budget_that_an_earlier_version_made_one_of_node_hours_is_read_as_it_was_stated(
    tmp_path: Path,
) -> None:
    spec = spec_of(tiny(cluster={"price_per_node_hour": 4}, budget={"cost": 20, "node_hours": 5}))
    with open_store(str(tmp_path / "store.db")) as store:
        assert stored_spec(create(store, spec, 9)).budget == Budget(cost=20)
        other = replace(spec, name="other", budget=Budget(cost=20, node_hours=2))
        assert stored_spec(create(store, other, 9)).budget == Budget(cost=20, node_hours=2)


def test_a_budget_in_money_needs_a_price() -> None:
    with pytest.raises(
        InvalidInput, match=r"budget\.cost = 20\.0: expected cluster\.price_per_node_hour beside it"
    ):
        spec_of(tiny(budget={"cost": 20}))


def test_the_command_prints_it_and_answers_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
