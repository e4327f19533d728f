"""Recipes and campaigns side by side: which are comparable, and what of them is printed."""

from __future__ import annotations

from typing import Any

import pytest

import frontrunner
from frontrunner.store import LocalStore
from frontrunner.views.comparison import (
    compare_campaigns,
    compare_recipes,
    print_campaign_comparison,
)
from support.campaigns import tiny, write_toml

PROBLEM = {"global_batch": 16}
SIDES: dict[str, dict[str, Any]] = {
    "fast": {"problem": PROBLEM},
    "thrifty": {
        "problem": PROBLEM | {"billion_tokens": 1},
        "search": {"objectives": ["tokens_per_device"]},
    },
    "wide": {"problem": {"global_batch": 32}},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """A store with simulated campaigns that seek different things, and a sweep around a recipe."""
    folder = tmp_path_factory.mktemp("sides")
    found = LocalStore(str(folder / "s.db"))
    for name, sections in SIDES.items():
        search = {"strategy": "exhaustive"} | sections.get("search", {})
        table = tiny(
            evaluator="simulated", problem=sections["problem"], search=search, budget={"probes": 99}
        )
        frontrunner.launch(write_toml(folder / f"{name}.toml", table), store=found.url, name=name)
    first = found.best("fast")[0].recipe_id
    frontrunner.sweep(first, ["micro_batch_seqs=1,2"], store=found.url, name="around")
    return found


def test_what_a_campaign_seeks_does_not_make_rates_incomparable(store: LocalStore) -> None:
    recipe = store.best("fast")[0].recipe_id
    other = store.best("wide")[0].recipe_id
    fast, thrifty, wide = (
        store.show(recipe, campaign="fast"),
        store.show(recipe, campaign="thrifty"),
        store.show(other),
    )
    alike = compare_recipes([fast, thrifty])
    assert (alike.same_problem, alike.speed_ratios[0]) == (True, 1.0)
    assert alike.speed_ratios[1] is not None
    assert compare_recipes([fast, wide]).same_problem is False


def test_campaigns_side_by_side_fit_a_narrow_terminal(
    store: LocalStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = compare_campaigns([store.status(name) for name in ("fast", "thrifty", "around")])
    baseline = store.best("fast")[0].recipe.describe()
    assert [cells for name, cells in found.differing if "baseline" in name] == [
        ("-", "-", baseline)
    ]
    print_campaign_comparison(found)
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "measured, failed" in text
