"""Layers over pipeline stages: no other split leaves the busiest rank less to do, as brute force
confirms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import read_plain, recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import marks
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import model_preset
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space
from frontrunner.spaces.stages import balanced_layers, even_layers, rank_of_stage

CLUSTER = Cluster(
    name="c", device="d", backend="cpu", nodes=1, devices_per_node=8, memory_gib_per_device=1.0
)


def problem(layers: int, vocabulary: int) -> Problem:
    model = Model.from_keys(
        name="m",
        layers=layers,
        hidden=64,
        heads=4,
        kv_heads=4,
        ffn_hidden=256,
        vocabulary=vocabulary,
    )
    batch = GlobalBatch(minimum=16, maximum=16)
    return Problem(model=model, cluster=CLUSTER, sequence_length=64, global_batch=batch)


def pipeline(ranks: int, schedule: str = "1f1b", **choices: object) -> Recipe:
    virtual = 1 if schedule == "1f1b" else 2
    fixed = {
        "devices": ranks,
        "pipeline_parallel": ranks,
        "schedule": schedule,
        "virtual_stages": virtual,
    }
    return Recipe(**{**fixed, "micro_batch_seqs": 1, "accumulation": 16, **choices})  # type: ignore[arg-type]


def compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each stage at least one layer."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, layers)))


def busiest(recipe: Recipe, of: Problem, counts: tuple[int, ...]) -> tuple[float, float]:
    """FLOPs a token, forward and backward, of the rank and of the stage that have most to do."""
    model = of.model
    again = 1 if recipe.recompute == "full" else 0
    stages = [
        (3 + again) * count * model.layer_flops_per_token(of.sequence_length) for count in counts
    ]
    stages[-1] += 3 * model.head_flops_per_token()
    ranks = [0.0] * recipe.pipeline_parallel
    for stage, flops in enumerate(stages):
        ranks[rank_of_stage(recipe, stage)] += flops
    return max(ranks), max(stages)


@settings(max_examples=150, deadline=None)
@given(
    extra=st.integers(0, 6),
    vocabulary=st.sampled_from([130, 1000, 5000, 50_000]),
    ranks=st.sampled_from([2, 3, 4]),
    schedule=st.sampled_from(["1f1b", "interleaved-1f1b", "zbv"]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_no_split_leaves_the_busiest_rank_less(
    extra: int, vocabulary: int, ranks: int, schedule: str, recompute: str
) -> None:
    recipe = pipeline(ranks, schedule, recompute=recompute)
    asked = problem(recipe.stages + extra, vocabulary)

    counts = balanced_layers(recipe, asked)

    assert sum(counts) == len(asked.model.layers)
    least = min(
        busiest(recipe, asked, other)[0]
        for other in compositions(len(asked.model.layers), recipe.stages)
    )
    assert busiest(recipe, asked, counts)[0] == pytest.approx(least, rel=1e-12)


def test_a_heavy_head_and_the_embedding_shift_layers_inwards() -> None:
    assert balanced_layers(pipeline(4), problem(layers=14, vocabulary=2_000))[-1] == 2, (
        "the head is worth two layers"
    )
    # Without a remainder by FLOPs alone, what is left goes where no embedding is held.
    counts = balanced_layers(pipeline(4), problem(layers=14, vocabulary=130))
    assert counts == (3, 4, 4, 3)
    assert even_layers(14, 4) == (4, 4, 3, 3)


def test_a_balanced_split_is_another_recipe_only_where_it_differs() -> None:
    space = Space(
        pipeline_parallel=(1, 4),
        devices=(4,),
        sharding=("none",),
        layer_split=("even", "balanced"),
        schedule=("1f1b",),
    )
    uneven, light = space.survey(problem(14, 2_000)), space.survey(problem(16, 130))

    assert [recipe.layers_name for recipe in uneven.recipes] == ["even", "even", "4x3+2"]
    assert uneven.repeats == 1, "without a pipeline there is one split"
    assert [recipe.layers_name for recipe in light.recipes] == ["even", "even"]
    balanced = uneven.recipes[-1]
    assert "layers=4x3+2" in balanced.describe()
    assert "uneven-stages" not in {mark.code for mark in marks(balanced, problem(14, 2_000))}
    assert len({recipe_id(problem(14, 2_000), recipe) for recipe in uneven.recipes}) == 3


def test_layers_that_do_not_make_up_stages_are_refused() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"recipe\.layers_per_stage = \[1, 2\]: expected nothing, or at least one",
    ):
        pipeline(4, layers_per_stage=(1, 2))
    with pytest.raises(InvalidInput, match="layers_per_stage"):
        pipeline(2, layers_per_stage=(6, 0))


def test_further_tokens_leave_the_last_stage_as_few_layers_as_nvidia_s_layout_of_deepseek_v3() -> (
    None
):
    """Megatron-Bridge's recipe, over 16 ranks: four layers each, and one beside the layer and the
    loss of a token.
    """
    model = read_plain(
        Model, model_preset("deepseek-v3") | {"kv_heads": 128, "mtp_layers": 1}, "model"
    )
    asked = replace(problem(layers=61, vocabulary=130), model=model, sequence_length=4096)
    assert balanced_layers(pipeline(16), asked) == (4,) * 15 + (1,)
    for stages in range(2, 16):  # where all is computed once more, each part's share is the same
        again = replace(pipeline(stages), recompute="full", loss_chunks=2)
        assert balanced_layers(again, asked) == balanced_layers(pipeline(stages), asked)
