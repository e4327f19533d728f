"""The space: every point is counted once, and choices that make no difference are one recipe."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import Reason, why_illegal
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, Recipe
from frontrunner.spaces.space import FRAME, MAX_POINTS, Space, recipe_at
from frontrunner.spaces.variants import scaled

MODEL = Model.from_keys(
    name="toy", layers=6, hidden=64, heads=8, kv_heads=4, ffn_hidden=256, vocabulary=257
)
CLUSTER = Cluster(
    name="c", device="d", backend="cpu", nodes=2, devices_per_node=4, memory_gib_per_device=1.0
)
PROBLEM = Problem(
    model=MODEL,
    cluster=CLUSTER,
    sequence_length=64,
    global_batch=GlobalBatch(minimum=16, maximum=16),
)


def some(values: list[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """One to three different values."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(tuple)


SPACES = st.builds(
    Space,
    tensor_parallel=some([1, 2, 3, 4, 8]),
    pipeline_parallel=some([1, 2, 4, 8]),
    context_parallel=some([1, 2, 4, 8]),
    micro_batch_seqs=some([1, 2, 3, 16]),
    accumulation=st.one_of(st.just(()), some([1, 2, 4, 8])),
    devices=st.one_of(st.just(()), some([1, 4, 8, 16])),
    virtual_stages=some([1, 2]),
    schedule=some(["none", "1f1b", *LOOPED_SCHEDULES]),
    sharding=some(["none", "zero-1", "zero-3", "hybrid-2"]),
    recompute=some(["none", "full"]),
    sequence_parallel=some([False, True]),
    replication=some(["replicate", "ddp"]),
)


@settings(max_examples=60, deadline=None)
@given(space=SPACES)
def test_every_point_is_legal_a_repeat_or_refused(space: Space) -> None:
    survey = space.survey(PROBLEM)
    assert len(survey.legal) + survey.repeats + sum(survey.refusals.values()) == survey.points
    assert len(set(survey.recipes)) == len(survey.recipes)
    assert len({recipe_id(PROBLEM, recipe) for recipe in survey.recipes}) == len(survey.recipes)
    assert set(survey.examples) == set(survey.refusals)
    for point, recipe in survey.legal.items():
        assert why_illegal(recipe, PROBLEM) is None
        assert recipe_at(dict(zip(survey.dimensions, point, strict=True)), PROBLEM) == recipe
        assert recipe.global_batch_seqs == 16


@settings(max_examples=40, deadline=None)
@given(space=SPACES)
def test_a_survey_is_what_its_points_say_one_by_one(space: Space) -> None:
    """A survey refuses points, and counts them as repeats, by the frame that they share."""
    survey = space.survey(PROBLEM)
    legal: dict[Any, Recipe] = {}
    refused: dict[str, int] = {}
    repeats = 0
    for point in itertools.product(*survey.dimensions.values()):
        recipe = recipe_at(dict(zip(survey.dimensions, point, strict=True)), PROBLEM)
        reason = recipe if isinstance(recipe, Reason) else why_illegal(recipe, PROBLEM)
        if reason is not None:
            refused[reason.code] = refused.get(reason.code, 0) + 1
            if refused[reason.code] == 1:
                assert survey.examples[reason.code] == reason.text
        elif recipe in legal.values():
            repeats += 1
        else:
            assert isinstance(recipe, Recipe)
            legal[point] = recipe
    assert list(survey.legal.items()) == list(legal.items())
    assert (survey.repeats, survey.refusals) == (repeats, refused)


def test_frames_are_the_first_dimensions() -> None:
    names = [field.name for field in fields(Space)]
    assert tuple(names[: len(FRAME)]) == tuple(sorted(FRAME, key=names.index))


def test_points_without_a_difference_are_one_recipe() -> None:
    space = Space(
        virtual_stages=(1, 2),
        schedule=("1f1b", "gpipe", "zbv"),
        sharding=("none",),
        sequence_parallel=(False, True),
    )
    survey = space.survey(PROBLEM)
    assert survey.recipes == (Recipe(devices=8, micro_batch_seqs=1, accumulation=2),)
    assert survey.repeats == 11


def test_one_replica_has_nothing_to_shard_or_to_wrap() -> None:
    space = Space(
        tensor_parallel=(8,),
        sharding=("none", "zero-1", "zero-3", "hybrid-4"),
        replication=("replicate", "ddp"),
    )
    survey = space.survey(PROBLEM)
    assert len(survey.recipes) == 1
    assert survey.recipes[0].sharding.degrees == (1, 1, 1)
    assert survey.recipes[0].replication == "replicate"
    assert survey.repeats == 7


def test_context_ranks_are_something_to_shard_over_and_share_the_batch() -> None:
    space = Space(context_parallel=(8, 4, 3), tensor_parallel=(1, 2), sharding=("none", "zero-3"))
    survey = space.survey(PROBLEM)
    found = [
        (r.tensor_parallel, r.context_parallel, r.data_parallel, r.accumulation, r.sharding_name)
        for r in survey.recipes
    ]
    assert found == [
        (1, 8, 1, 16, "none"),
        (1, 8, 1, 16, "zero-3"),
        (1, 4, 2, 8, "none"),
        (1, 4, 2, 8, "zero-3"),
        (2, 4, 1, 16, "none"),
        (2, 4, 1, 16, "zero-3"),
    ]
    assert survey.refusals == {"devices-divide": 6}
    expected = (
        "tensor_parallel 1 x pipeline_parallel 1 x context_parallel 3 does not divide 8 devices"
    )
    assert expected in survey.examples["devices-divide"]
    refused = scaled(survey.recipes[0], survey, 12, weak=True)
    assert isinstance(refused, Reason)
    assert refused.code == "devices-divide"


def test_a_sharding_over_a_whole_group_is_its_common_name() -> None:
    survey = Space(sharding=("hybrid-8", "zero-3", "hybrid-1", "none")).survey(PROBLEM)
    assert [recipe.sharding_name for recipe in survey.recipes] == ["zero-3", "none"]
    assert survey.repeats == 2


def test_accumulation_follows_from_the_fixed_batch() -> None:
    survey = Space(tensor_parallel=(1, 2, 4), micro_batch_seqs=(1, 2, 4)).survey(PROBLEM)
    found = {(r.data_parallel, r.micro_batch_seqs, r.accumulation) for r in survey.recipes}
    assert found == {
        (8, 1, 2),
        (8, 2, 1),
        (4, 1, 4),
        (4, 2, 2),
        (4, 4, 1),
        (2, 1, 8),
        (2, 2, 4),
        (2, 4, 2),
    }
    assert survey.refusals == {"global-batch": 1}
    assert (
        survey.examples["global-batch"]
        == "micro-batch 4 x 8 replicas does not divide global batch 16"
    )


def test_free_accumulation_keeps_to_the_range() -> None:
    problem = replace(PROBLEM, global_batch=GlobalBatch(minimum=16, maximum=32))
    survey = Space(micro_batch_seqs=(1, 2), accumulation=(1, 2, 3, 4, 5)).survey(problem)
    assert [recipe.global_batch_seqs for recipe in survey.recipes] == [16, 24, 32, 16, 32]
    assert "accumulation" in survey.dimensions


def test_a_range_without_accumulation_to_choose_is_refused() -> None:
    problem = replace(PROBLEM, global_batch=GlobalBatch(minimum=16, maximum=32))
    with pytest.raises(InvalidInput) as caught:
        Space().survey(problem)
    assert (
        caught.value.message
        == "space.accumulation is missing: expected values to choose from, since"
        " problem.global_batch is the range 16-32"
    )


def test_an_empty_list_of_devices_means_all() -> None:
    assert Space().dimensions(CLUSTER)["devices"] == (8,)
    assert [r.devices for r in Space(devices=(4, 8)).survey(PROBLEM).recipes] == [4, 8]


def test_refusals_come_with_the_commonest_first() -> None:
    survey = Space(tensor_parallel=(1, 3, 5, 7), micro_batch_seqs=(1, 16)).survey(PROBLEM)
    counts = [(code, count) for code, count, _ in survey.refused_by_count()]
    assert counts == [("devices-divide", 6), ("global-batch", 1)]


@pytest.mark.system
def test_a_space_of_millions_of_points_is_columns_of_its_recipes() -> None:
    numbers = tuple(range(1, 257))
    space = Space(
        loss_chunks=numbers,
        feed_forward_tiles=numbers,
        recompute=("none", "full"),
        micro_batch_seqs=(1, 2),
    )
    problem = replace(
        PROBLEM, sequence_length=256, global_batch=GlobalBatch(minimum=16, maximum=16)
    )
    survey = space.survey(problem)
    assert survey.points == 2**18
    assert len(survey.recipes) == 2 * 2 * 9 * 9, "256 positions have nine divisors"
    last = survey.recipes[-1]
    assert (last.micro_batch_seqs, last.loss_chunks, last.feed_forward_tiles, last.recompute) == (
        2,
        256,
        256,
        "full",
    )
    assert survey.choices(len(survey.recipes) - 1)["loss_chunks"] == 256
    assert survey.recipes.row(last) == len(survey.recipes) - 1
    assert replace(last, loss_chunks=3) not in survey.recipes
    assert survey.refusals == {"pieces-divide": 2**18 - 324}
    chunks = survey.recipes.each(lambda recipe: recipe.loss_chunks * recipe.accumulation, np.int64)
    assert chunks.tolist() == [
        recipe.loss_chunks * recipe.accumulation for recipe in survey.recipes
    ]


def test_a_space_too_large_to_list_is_refused_before_it_is_walked() -> None:
    numbers = tuple(range(1, 1000))
    with pytest.raises(
        InvalidInput, match=rf"^space has 997002999 points: expected at most {MAX_POINTS}$"
    ) as caught:
        Space(tensor_parallel=numbers, pipeline_parallel=numbers, micro_batch_seqs=numbers).survey(
            PROBLEM
        )
    assert (
        caught.value.hint
        == "narrow a dimension: tensor_parallel 999, pipeline_parallel 999, micro_batch_seqs 999"
    )


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"tensor_parallel": ()}, "space.tensor_parallel = []: expected at least one value"),
        (
            {"micro_batch_seqs": (2, 2)},
            "space.micro_batch_seqs = [2, 2]: expected values that differ",
        ),
        ({"devices": (0,)}, "space.devices = 0: expected whole numbers of at least 1"),
        (
            {"accumulation": (True,)},
            "space.accumulation = true: expected whole numbers of at least 1",
        ),
        ({"schedule": ("1f1c",)}, 'space.schedule = "1f1c": expected one of none, gpipe, 1f1b'),
        ({"sharding": ("zero3",)}, 'space.sharding = "zero3": expected one of none, zero-1'),
    ],
)
def test_a_choice_that_cannot_be_says_why(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Space(**choices)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequence_length": 1}, "problem.sequence_length = 1: expected at least 2"),
        ({"precision": "fp8"}, 'problem.precision = "fp8": expected one of fp32, bf16, fp16'),
        (
            {"model": MODEL.with_keys(positions="learned")},
            "model.max_positions is missing: expected the number of learned positions",
        ),
        (
            {"model": MODEL.with_keys(positions="learned", max_positions=32)},
            "problem.sequence_length = 64: expected at most model.max_positions = 32",
        ),
    ],
)
def test_a_problem_that_cannot_be_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(PROBLEM, **change)
    assert caught.value.message == message


def test_rotary_positions_are_not_limited() -> None:
    assert replace(PROBLEM, model=MODEL.with_keys(max_positions=32)).sequence_length == 64
