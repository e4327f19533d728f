"""Legal recipes as rows: what is searched, which point means which recipe, and which open row is
nearest.
"""

from __future__ import annotations

import itertools

import pytest

from frontrunner.search.strategies.candidates import Candidates
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space, Survey, recipe_at


@pytest.fixture
def survey() -> Survey:
    model = Model.from_keys(
        name="toy", layers=4, hidden=64, heads=8, kv_heads=8, ffn_hidden=256, vocabulary=512
    )
    cluster = Cluster(
        name="toy",
        device="gpu",
        backend="cuda",
        nodes=1,
        devices_per_node=8,
        memory_gib_per_device=16,
    )
    batch = GlobalBatch(minimum=32, maximum=32)
    problem = Problem(model=model, cluster=cluster, sequence_length=128, global_batch=batch)
    space = Space(
        tensor_parallel=(8, 3, 1, 2, 4),
        pipeline_parallel=(1, 2, 8),
        micro_batch_seqs=(4, 2, 1),
        schedule=("gpipe", "1f1b"),
        sharding=("none", "zero-1"),
        engine=("torch",),
    )
    return space.survey(problem)


def test_numbers_rise_words_keep_their_order_and_what_is_never_legal_is_left_out(survey):
    found = {d.name: (d.values, d.is_ordered) for d in Candidates(survey, seed=0).dimensions}
    assert found == {
        "tensor_parallel": ((1, 2, 4, 8), True),  # 3 divides no head count of 8
        "pipeline_parallel": ((1, 2), True),  # 8 stages do not fit 4 layers
        "micro_batch_seqs": ((1, 2, 4), True),
        "schedule": (("gpipe", "1f1b"), False),
        "sharding": (("none", "zero-1"), False),
    }


def test_the_codes_of_a_row_say_its_recipe(survey):
    candidates = Candidates(survey, seed=0)
    for row, recipe in enumerate(candidates.recipes):
        assert candidates.row(recipe) == row
        assert candidates.open_row_at(candidates.codes[row].tolist()) == row
        value = {
            d.name: d.values[code]
            for d, code in zip(candidates.dimensions, candidates.codes[row], strict=True)
        }
        assert value["tensor_parallel"] == recipe.tensor_parallel
        assert value["micro_batch_seqs"] == recipe.micro_batch_seqs


def test_every_point_means_the_recipe_that_the_space_says(survey):
    candidates = Candidates(survey, seed=0)
    legal, rest = (
        set(survey.recipes),
        {name: values[0] for name, values in survey.dimensions.items()},
    )
    meant: list[Recipe | None] = []
    for codes in itertools.product(*(range(len(d.values)) for d in candidates.dimensions)):
        point = {
            d.name: d.values[code] for d, code in zip(candidates.dimensions, codes, strict=True)
        }
        answer = recipe_at({**rest, **point}, survey.problem)
        row = candidates.open_row_at(codes)
        expected = answer if isinstance(answer, Recipe) and answer in legal else None
        assert (None if row is None else candidates.recipes[row]) == expected
        meant.append(expected)
    assert None in meant  # some points are illegal,
    assert len([recipe for recipe in meant if recipe]) > len(
        legal
    )  # and some recipes have several points


def test_the_nearest_open_row_is_the_one_that_a_search_by_hand_finds(survey):
    candidates = Candidates(survey, seed=0)

    def distance(row: int, codes: tuple[int, ...]) -> float:
        parts = zip(candidates.dimensions, candidates.codes[row].tolist(), codes, strict=True)
        return sum(
            abs(a - b) / (len(d.values) - 1) if d.is_ordered else float(a != b) for d, a, b in parts
        )

    points = list(itertools.product(*(range(len(d.values)) for d in candidates.dimensions)))
    for place, codes in enumerate(points):
        row = candidates.nearest_open(codes)
        open_rows = candidates.open_rows().tolist()
        assert row in open_rows
        assert distance(row, codes) == pytest.approx(
            min(distance(other, codes) for other in open_rows)
        )
        if place % 3 == 0 and candidates.open_count > 1:
            candidates.take(row)


def test_ties_are_broken_by_the_seed(survey):
    def answers(seed: int) -> list[int]:
        candidates = Candidates(survey, seed)
        candidates.take(candidates.open_row_at([1, 0, 1, 0, 0]) or 0)
        return [candidates.nearest_open([1, 0, 1, 0, 0]) for _ in range(20)]

    assert answers(1) == answers(1)
    assert len(set(answers(1))) > 1


def test_a_row_is_counted_once_however_often_it_is_taken(survey):
    candidates = Candidates(survey, seed=0)
    for _ in range(2):
        candidates.take(3)
    assert candidates.open_count == len(survey.recipes) - 1 == len(candidates.open_rows())
    assert 3 not in candidates.open_rows()
