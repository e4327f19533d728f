"""What notebooks show: what the terminal prints, as HTML that text from outside cannot become a
part of.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import frontrunner
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.ranking import Ranking
from frontrunner.results.states import CampaignState
from frontrunner.results.status import FailureList
from frontrunner.search.driver import Conclusion
from frontrunner.search.listener import View
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.store import LocalStore
from frontrunner.views.live import NotebookPanel, notebook_listener
from support.page_stores import SCRIPT, page_store


def test_notebook_shows_values_as_escaped_text(tmp_path: Path) -> None:
    ids = page_store(tmp_path, names=("first",))
    store = str(tmp_path / "store.db")
    ranking = frontrunner.best(store=store)
    status = frontrunner.status(store=store)
    failure = Failure(kind=FailureKind.CRASHED, message=SCRIPT)
    conclusion = Conclusion(
        state=CampaignState.PAUSED, reason=SCRIPT, measured=3, last_failure=failure
    )
    shown = [
        value._repr_html_() for value in (ranking, ranking[0], status, status.campaign, conclusion)
    ]
    for text in shown:
        assert text.startswith("<pre")
        assert "<script" not in text
        assert "\x1b" not in text
    assert all(recipe_id in shown[0] for recipe_id in ids)
    assert "tokens/s" in shown[1]
    assert "&lt;script&gt;" in shown[2]
    assert "1 crashed" in shown[2]


def test_values_of_every_size_have_a_short_repr_and_a_display(tmp_path: Path) -> None:
    page_store(tmp_path)
    store = str(tmp_path / "store.db")
    local = LocalStore(store)
    file = Path(__file__).parents[2] / "examples" / "frontier-22b.toml"
    recipes = local.recipes("first")
    for value, expected in (
        (frontrunner.plan(file).shown(10), "legal recipes"),
        (frontrunner.survey(file), "legal recipes"),
        (frontrunner.history("first", store=store), "kind"),
        (recipes, "tokens_per_s"),
        (local.trials("first"), "&lt;script&gt;"),
        (local.label("first"), "tag"),
        (frontrunner.check_store(store), "all hold"),
        (local.compare(["first", "second"]), "Comparison"),
        (local.delete("first", preview=True), "row"),
    ):
        assert len(repr(value)) <= 410, type(value)
        shown = value._repr_html_()
        assert expected in shown
        assert "<script" not in shown
    assert recipes.to_frame()["recipe_id"].tolist() == [one.recipe_id for one in recipes.items]


def test_notebook_shows_results_of_the_api(tmp_path: Path) -> None:
    ids = page_store(tmp_path)
    store = str(tmp_path / "store.db")
    campaigns, failures = (
        frontrunner.campaigns(store=store),
        frontrunner.failures("first", store=store),
    )
    front = frontrunner.front("first", store=store)
    for value, expected in (
        (frontrunner.step(ids[0], store=store), "bubble"),
        (campaigns, "best tokens/s"),
        (failures, "&lt;script&gt;"),
        (front, "headroom GiB"),
        (frontrunner.show(ids[0], store=store), "Rank 1".lower()),
        (frontrunner.explain(ids[0], store=store), "measured by campaign"),
    ):
        shown = value._repr_html_()
        assert "<script" not in shown
        assert expected in shown
    assert campaigns == list(campaigns)
    assert front == tuple(front)
    assert "nothing failed" in FailureList()._repr_html_()


def test_notebook_shows_choices_of_a_recipe_off_their_defaults() -> None:
    shown = Recipe(
        devices=8,
        tensor_parallel=2,
        micro_batch_seqs=4,
        accumulation=2,
        sharding=Sharding(optimizer=4),
    )._repr_html_()
    assert dict(re.findall(r"^  (\w+) +(\S+)", shown, flags=re.MULTILINE)) == {
        "devices": "8",
        "tensor_parallel": "2",
        "micro_batch_seqs": "4",
        "accumulation": "2",
        "sharding": "zero-1",
        "data_parallel": "4",
        "global_batch_seqs": "32",
    }


def test_ranking_is_a_list_and_notebook_reports_its_origin(tmp_path: Path) -> None:
    page_store(tmp_path, names=("first",))
    ranking = frontrunner.best(store=str(tmp_path / "store.db"))
    assert ranking == list(ranking)
    assert "Simulated" not in ranking._repr_html_()
    simulated = Ranking(replace(row, figures="simulated") for row in ranking)
    assert "Simulated" in simulated._repr_html_()


def test_values_are_short_in_an_interpreter_and_lists_are_data_frames(tmp_path: Path) -> None:
    ids = page_store(tmp_path)
    store = str(tmp_path / "store.db")
    file = Path(__file__).parents[2] / "examples" / "laptop.toml"
    plan, ranking = frontrunner.plan(file), frontrunner.best("first", store=store)
    values = (
        plan,
        ranking,
        ranking[0],
        frontrunner.status(store=store),
        frontrunner.show(ids[0], store=store),
    )
    assert all(len(repr(value)) < 500 for value in (*values, frontrunner.scaling(file, [1])))
    assert repr(ranking).startswith(f"<Ranking of {len(ranking)}: RankedRecipe(rank=1, ")
    table = ranking.to_frame()
    assert table["recipe_id"].tolist() == [row.recipe_id for row in ranking]
    assert table["recipe.tensor_parallel"].tolist() == [
        row.recipe.tensor_parallel for row in ranking
    ]
    assert plan.to_frame(2)["tokens_per_s"].tolist() == [
        one.tokens_per_s for one in plan.fastest(2)
    ]
    assert "weak scaling" in frontrunner.scaling(file, [1])._repr_html_()


def test_a_notebook_shows_the_panel_of_a_running_campaign() -> None:
    shown: list[str] = []
    panel = NotebookPanel(shown.append)
    view = View(name="<b>mine", strategy="guided", legal_recipes=9)
    panel.began(view)
    panel.ticked(view)
    panel.ticked(view)
    assert len(shown) == 1, "at most once a second"
    view.measured = 3
    panel.ended(view, CampaignState.FINISHED, "")
    assert "3 measured" in shown[-1]
    assert "&lt;b&gt;mine" in shown[-1]
    assert notebook_listener() is None


@dataclass(frozen=True, kw_only=True)
class Check(Displayed):
    """Bears the name of a class of the product that has a printer."""

    verdict: str


@dataclass(frozen=True, kw_only=True)
class LabeledRecipe(Recipe):
    label: str


def test_notebook_chooses_the_printer_by_class_and_not_by_name() -> None:
    shown = Check(verdict="no check of a store")._repr_html_()
    assert "verdict" in shown
    assert "no check of a store" in shown


def test_notebook_shows_a_subclass_as_its_parent() -> None:
    recipe = Recipe(devices=8, micro_batch_seqs=4, accumulation=2)
    labeled = LabeledRecipe(devices=8, micro_batch_seqs=4, accumulation=2, label="fast")
    assert labeled._repr_html_() == recipe._repr_html_()


def test_notebook_views_are_imported_when_a_value_is_first_shown() -> None:
    script = """
import sys
import frontrunner
from frontrunner.spaces.recipe import Recipe
recipe = Recipe(devices=8, micro_batch_seqs=4, accumulation=2)
repr(recipe)
assert not {"rich", "numpy", "sqlalchemy", "frontrunner.views"} & set(sys.modules)
print(recipe._repr_html_())
assert not {"torch", "pandas", "sklearn"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("<pre")
