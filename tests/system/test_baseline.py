"""A campaign's baseline is measured first, once, whether its space holds it or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import frontrunner
from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.recipe_file import Origin, RecipeFile, Training, to_text
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.store import LocalStore

CAMPAIGN = """
name = "small"
evaluator = "simulated"
[model]
layers = 4
hidden = 512
heads = 8
vocabulary = 1000
[cluster]
device = "test"
backend = "cuda"
devices_per_node = 4
memory_gib_per_device = 8.0
[problem]
sequence_length = 512
global_batch = 32
[space]
tensor_parallel = [1, 2]
micro_batch_seqs = [1, 4]
sharding = ["none", "zero-1"]
[search]
strategy = "exhaustive"
baseline = "today.json"
[budget]
probes = 4
"""
OUTSIDE = Recipe(devices=4, tensor_parallel=4, micro_batch_seqs=2, accumulation=16)
INSIDE = Recipe(devices=4, micro_batch_seqs=4, accumulation=2, sharding=Sharding.named("zero-1", 4))


def campaign(folder: Path, recipe: Recipe, **changes: str) -> Path:
    """A campaign file with this baseline beside it."""
    text = CAMPAIGN
    for old, new in changes.items():
        text = text.replace(old, new)
    path = folder / "small.toml"
    path.write_text(text.replace('baseline = "today.json"', ""))
    problem = read_campaign_file(path).spec.problem
    path.write_text(text)
    file = RecipeFile(
        recipe_id=recipe_id(problem, recipe),
        problem=problem,
        recipe=recipe,
        training=Training(),
        measured=None,
        origin=Origin(written_by="test", written_at="2026-01-01T00:00:00+00:00"),
    )
    (folder / "today.json").write_text(to_text(file))
    return path


@pytest.mark.parametrize(
    ("strategy", "recipe"), [("exhaustive", OUTSIDE), ("guided", OUTSIDE), ("optuna-tpe", INSIDE)]
)
def test_the_baseline_is_measured_first_and_once(
    strategy: str, recipe: Recipe, tmp_path: Path
) -> None:
    store = str(tmp_path / "s.db")
    frontrunner.launch(campaign(tmp_path, recipe, exhaustive=strategy), store=store)
    rows = frontrunner.dataframe("small", store=store)
    first = rows[rows["trial_number"] == 1].iloc[0]
    assert (first["tensor_parallel"], first["micro_batch_seqs"]) == (
        recipe.tensor_parallel,
        recipe.micro_batch_seqs,
    )
    assert rows["recipe_id"].nunique() == rows["trial_number"].nunique() >= 3
    frontrunner.resume("small", store=store)
    again = frontrunner.dataframe("small", store=store)
    assert (again["recipe_id"] == first["recipe_id"]).sum() == (
        rows["recipe_id"] == first["recipe_id"]
    ).sum()
    found = LocalStore(store).baseline("small")
    assert found is not None
    assert found.own.recipe == recipe
    assert found.factor == found.best.standing.tokens_per_s / found.own.standing.tokens_per_s >= 1
    assert f"baseline {first['recipe_id']}: rank {found.own.rank}" in found.in_words()


def test_a_baseline_that_cannot_be_measured_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    path = campaign(tmp_path, INSIDE)
    cases = {
        r"small\.toml: search\.baseline: .* illegal for this problem: .* not 64": (
            "global_batch = 32",
            "global_batch = 64",
        ),
        r"search\.baseline = 3: expected the path of a recipe file": ('"today.json"', "3"),
    }
    for message, (old, new) in cases.items():
        path.write_text(CAMPAIGN.replace(old, new))
        with pytest.raises(InvalidInput, match=message):
            frontrunner.launch(path, store=str(tmp_path / "s.db"))
    path.write_text(CAMPAIGN.replace("today.json", "none.json"))
    with pytest.raises(NotFound, match=r"no recipe file at .*none\.json"):
        frontrunner.launch(path, store=str(tmp_path / "s.db"))
    campaign(tmp_path, replace(INSIDE, engine="deepspeed"))
    with pytest.raises(
        InvalidInput, match=r"space\.engine = \[\"torch\"\]: expected deepspeed among them"
    ):
        frontrunner.launch(path, store=str(tmp_path / "s.db"))
    assert not (tmp_path / "s.db").exists()
