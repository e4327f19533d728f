"""Recipes: their derived figures, their sharding's names, and an identity that must never
change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrunner.spaces.cluster import ByPrecision, Cluster, Links
from frontrunner.spaces.document import canonical_json, recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES, Sharding

MODEL = Model.from_keys(
    name="toy", layers=8, hidden=64, heads=8, kv_heads=4, ffn_hidden=256, vocabulary=257
)
CLUSTER = Cluster(
    name="c", device="d", backend="cpu", nodes=1, devices_per_node=8, memory_gib_per_device=1.0
)
PROBLEM = Problem(
    model=MODEL,
    cluster=CLUSTER,
    sequence_length=64,
    global_batch=GlobalBatch(minimum=32, maximum=32),
    precision="fp32",
)
PLAIN = Recipe(devices=8, micro_batch_seqs=4, accumulation=1)
RICH = Recipe(
    devices=8,
    tensor_parallel=2,
    pipeline_parallel=2,
    virtual_stages=2,
    schedule="interleaved-1f1b",
    micro_batch_seqs=2,
    accumulation=8,
    sharding=Sharding(optimizer=2),
    recompute="full",
    sequence_parallel=True,
)


def test_derived_figures() -> None:
    assert (RICH.data_parallel, RICH.stages, RICH.global_batch_seqs, RICH.sharding_name) == (
        2,
        4,
        32,
        "zero-1",
    )
    assert RICH.describe() == "tp2 pp2 dp2 interleaved-1f1b v2 mb2 x8 zero-1 recompute=full sp"
    assert PLAIN.describe() == "tp1 pp1 dp8 mb4 x1 none"


def test_context_ranks_hold_copies_of_the_model_and_train_no_sequences_of_their_own() -> None:
    shared = replace(PLAIN, context_parallel=4, sharding=Sharding.named("zero-2", 8))
    assert (shared.data_parallel, shared.copies, shared.global_batch_seqs) == (2, 8, 8)
    assert shared.sharding_name == "zero-2"
    assert shared.describe() == "tp1 pp1 dp2 cp4 mb4 x1 zero-2"
    assert replace(shared, context_parallel=8).describe() == "tp1 pp1 dp1 cp8 mb4 x1 zero-2"


def test_identity_is_what_it_was_when_stores_were_written() -> None:
    # Golden: a change here orphans every stored measurement. A new field with a default must not
    # change them.
    assert recipe_id(PROBLEM, PLAIN) == "443f055041ac"
    assert recipe_id(PROBLEM, RICH) == "efc9960939d6"


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, model=replace(MODEL, name="renamed")),
        replace(PROBLEM, model=MODEL.with_keys(head_width=8)),  # what it is without being stated
        replace(PROBLEM, cluster=replace(CLUSTER, name="renamed", source="another")),
        replace(
            PROBLEM, cluster=replace(CLUSTER, memory_gib_per_device=80.0, memory_gb_per_s=2000)
        ),
        replace(
            PROBLEM,
            cluster=replace(CLUSTER, peak_tflops=ByPrecision(fp32=3), links=Links(nic_gb_per_s=25)),
        ),
        replace(PROBLEM, cluster=replace(CLUSTER, nodes=4, mxfp8=True)),
        replace(PROBLEM, global_batch=GlobalBatch(minimum=1, maximum=64)),
    ],
)
def test_identity_does_not_depend_on_names_rates_or_sizes(problem: Problem) -> None:
    assert recipe_id(problem, RICH) == recipe_id(PROBLEM, RICH)


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, model=MODEL.with_keys(layers=9)),
        replace(PROBLEM, model=MODEL.with_keys(attention="math")),
        replace(PROBLEM, model=MODEL.with_keys(rotary_theta=5e5)),
        replace(PROBLEM, model=MODEL.with_keys(rotary_scaling=RotaryScaling(factor=8.0))),
        replace(PROBLEM, model=MODEL.with_keys(norm_epsilon=1e-6)),
        replace(PROBLEM, model=MODEL.with_keys(biases="qkv")),
        replace(PROBLEM, model=MODEL.with_keys(head_width=16)),
        replace(PROBLEM, model=MODEL.with_keys(qk_norm=True)),
        replace(PROBLEM, model=MODEL.with_keys(rotary_width=4)),
        replace(PROBLEM, model=MODEL.with_keys(parallel_residual=True)),
        replace(PROBLEM, sequence_length=65),
        replace(PROBLEM, precision="bf16"),
        replace(PROBLEM, cluster=replace(CLUSTER, device="another")),
        replace(PROBLEM, cluster=replace(CLUSTER, devices_per_node=16)),
    ],
)
def test_identity_depends_on_what_the_measurement_depends_on(problem: Problem) -> None:
    assert recipe_id(problem, RICH) != recipe_id(PROBLEM, RICH)


@pytest.mark.parametrize(
    "change",
    [
        {"devices": 16},
        {"tensor_parallel": 4},
        {"context_parallel": 2},
        {"pipeline_parallel": 4},
        {"virtual_stages": 3},
        {"schedule": "looped-bfs"},
        {"micro_batch_seqs": 1},
        {"accumulation": 4},
        {"sharding": Sharding(gradients=2, optimizer=2)},
        {"recompute": "none"},
        {"sequence_parallel": False},
        {"replication": "ddp"},
        {"compile": True},
        {"loss_chunks": 2},
        {"feed_forward_tiles": 2},
        {"optimizer_state": "bf16"},
        {"activation_offload": True},
        {"offload": "optimizer+parameters"},
        {"gradient_sync": "each"},
        {"async_tensor_parallel": True},
    ],
)
def test_identity_depends_on_every_choice(change: dict[str, Any]) -> None:
    assert recipe_id(PROBLEM, replace(RICH, **change)) != recipe_id(PROBLEM, RICH)


def test_canonical_json_has_one_form_and_no_nan() -> None:
    assert canonical_json({"b": [1, True], "a": None}) == '{"a":null,"b":[1,true]}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("none", (1, 1, 1)),
        ("zero-1", (1, 1, 8)),
        ("zero-2", (1, 8, 8)),
        ("zero-3", (8, 8, 8)),
        ("hybrid-2", (2, 2, 2)),
        ("3-level-2/4/8", (2, 4, 8)),
        ("3-level-1/4/8", (1, 4, 8)),
    ],
)
def test_names_of_shardings_over_eight_replicas(name: str, degrees: tuple[int, int, int]) -> None:
    assert Sharding.named(name, 8).degrees == degrees
    assert Sharding.named(name, 8).name(8) == name
    assert Sharding.named(name, 1).degrees == (1, 1, 1)


@given(
    name=st.sampled_from([*SHARDING_NAMES, "hybrid-2", "hybrid-4", "3-level-2/4/8"]),
    replicas=st.sampled_from([8, 16, 64]),
)
def test_a_name_gives_degrees_that_give_the_name(name: str, replicas: int) -> None:
    assert Sharding.named(name, replicas).name(replicas) == name


def test_three_levels_end_with_all_replicas() -> None:
    named = Sharding.named("3-level-2/8", 64)
    assert named == Sharding(parameters=2, gradients=8, optimizer=64)
    assert named.name(64) == "3-level-2/8/64"
    assert Sharding.named("3-level-8/8", 8).name(8) == "zero-3"


def test_degrees_without_a_common_name_are_shown_as_they_are() -> None:
    assert Sharding(optimizer=4).name(16) == "3-level-1/1/4"


@pytest.mark.parametrize(
    "name",
    [
        "3-level-2",
        "3-level-2/0",
        "3-level-2/8/",
        "3-level-2/8/64/128",
        "zero-4",
        "hybrid-0",
        "hybrid-K",
        "hybrid-²",
        "hybrid-",
        "hybrid--2",
        "",
        "hybrid-" + "9" * 5000,
    ],
)
def test_unknown_shardings_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^space\.sharding = ") as caught:
        Sharding.named(name, 8)
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tensor_parallel": 3},
            "a multiple of tensor_parallel x pipeline_parallel x context_parallel = 3 x 1 x 1",
        ),
        ({"context_parallel": 16}, "x context_parallel = 1 x 1 x 16"),
        ({"context_parallel": 0}, "recipe.context_parallel = 0: expected at least 1"),
        ({"accumulation": 0}, "recipe.accumulation = 0: expected at least 1"),
        ({"schedule": "2f2b"}, 'recipe.schedule = "2f2b": expected one of none, gpipe'),
        ({"engine": "megatron"}, 'recipe.engine = "megatron": expected one of torch'),
    ],
)
def test_a_recipe_that_cannot_be_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(PLAIN, **change)
    assert message in caught.value.message
