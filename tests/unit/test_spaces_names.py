"""Recipes of earlier versions: their ids, and the names that their dimensions had."""

import json
from dataclasses import replace

import pytest

from frontrunner.results.schema import recipe_from_json, recipe_to_json
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import read_plain, recipe_id
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import DIMENSIONS, Recipe, stored_recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.space import Space
from frontrunner.spaces.validation import dump_json, load_json, validate

PROBLEM = Problem(
    model=Model.from_keys(
        name="custom", layers=4, hidden=128, heads=8, kv_heads=8, ffn_hidden=512, vocabulary=1000
    ),
    cluster=Cluster(
        name="c", device="cpu", backend="cpu", nodes=1, devices_per_node=8, memory_gib_per_device=4
    ),
    sequence_length=64,
    global_batch=GlobalBatch(minimum=32, maximum=32),
    precision="fp32",
)
ALL = Sharding(parameters=8, gradients=8, optimizer=8)
LOOPED = {"pipeline_parallel": 2, "schedule": "interleaved-1f1b", "virtual_stages": 2}
EACH = Recipe(
    devices=8, micro_batch_seqs=2, accumulation=2, gradient_sync="each", layers_per_stage=()
)


@pytest.mark.parametrize(
    ("choices", "wanted"),
    [
        ({}, "5435cb1d1b33"),
        ({"gradient_sync": "each"}, "815f088ceecc"),
        (
            {"tensor_parallel": 2, "sequence_parallel": True, "recompute": "full", **LOOPED},
            "682757ebf54f",
        ),
        (
            {"sharding": ALL, "offload": "optimizer+parameters", "activation_offload": True},
            "980ecb256d56",
        ),
        (
            {
                "context_parallel": 2,
                "loss_chunks": 4,
                "feed_forward_tiles": 2,
                "optimizer_state": "bf16",
                "compile": True,
            },
            "c60b31f016bc",
        ),
        ({"engine": "deepspeed", "sharding": ALL, "secondary_partition": 2}, "4e68366557d6"),
        ({"quantized_weights": False, "quantized_gradients": False}, "5435cb1d1b33"),
        (
            {
                "pipeline_parallel": 2,
                "schedule": "gpipe",
                "layers_per_stage": (1, 3),
                "rank_order": "tp-pp-dp",
                "replication": "ddp",
            },
            "844a83b6d099",
        ),
    ],
)
def test_recipe_id_is_that_of_earlier_versions(choices: dict[str, object], wanted: str) -> None:
    assert (
        recipe_id(PROBLEM, Recipe(devices=8, micro_batch_seqs=2, accumulation=2, **choices))
        == wanted
    )  # type: ignore[arg-type]


def test_what_is_tolerated_is_no_part_of_an_id() -> None:
    recipe = Recipe(devices=8, micro_batch_seqs=2, accumulation=2, quantized_weights=True)
    assert recipe_id(replace(PROBLEM, tolerance="quantized"), recipe) == recipe_id(PROBLEM, recipe)
    assert recipe_id(PROBLEM, recipe) != recipe_id(
        PROBLEM, replace(recipe, quantized_weights=False)
    )


def test_recipe_is_stored_and_read_under_the_earlier_name() -> None:
    assert json.loads(recipe_to_json(EACH))["synchronise"] == "each"
    assert recipe_from_json(recipe_to_json(EACH)) == EACH
    plain = json.loads(json.dumps(stored_recipe(EACH)))
    assert read_plain(Recipe, plain, "recipe") == validate(Recipe, plain, prefix="recipe") == EACH
    assert load_json(Recipe, dump_json(EACH), what="recipe") == EACH


def test_space_is_read_under_the_earlier_name() -> None:
    assert validate(Space, {"synchronise": ["each"]}, prefix="space") == Space(
        gradient_sync=("each",)
    )


def test_dimensions_are_the_fields_of_recipe_and_space() -> None:
    own = {"custom"}  # the user's, which a space declares
    assert {one.field for one in DIMENSIONS.values()} | own == set(Recipe.__dataclass_fields__)
    assert set(DIMENSIONS) | own == set(Space.__dataclass_fields__)
    assert all(one.description and one.label for one in DIMENSIONS.values())
