"""The order of ranks: which groups are neighbours, where that matters, and what it costs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.diagnostics.dryrun import worst_ranks
from frontrunner.evaluators.trainer.layout import rank_grid
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import marks, why_illegal
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import RANK_ORDERS
from frontrunner.spaces.space import Space
from support.analytic import PROBLEM, machine, recipe, work
from support.trainer_runs import small_recipe

DEGREES = {"tensor_parallel": 2, "pipeline_parallel": 3, "data_parallel": 4, "sharding": (2, 2, 2)}


@pytest.mark.parametrize("order", RANK_ORDERS)
def test_ranks_are_numbered_from_the_innermost_group(order):
    grid = rank_grid(small_recipe(**DEGREES, rank_order=order), (2, 2)).numpy()

    assert grid.shape == (3, 2, 2, 2)
    assert sorted(grid.ravel().tolist()) == list(range(24))
    inner_first = order.split("-")
    sizes = {"tp": 2, "dp": 4, "pp": 3}
    places = itertools.product(range(3), range(4), range(2))
    for (stage, copy, slice_), rank in zip(places, grid.reshape(3, 4, 2).ravel(), strict=True):
        place, number, apart = {"tp": slice_, "dp": copy, "pp": stage}, 0, 1
        for name in inner_first:
            number += place[name] * apart
            apart *= sizes[name]
        assert rank == number


@pytest.mark.parametrize("order", RANK_ORDERS)
def test_recipe_formulas_and_trainer_agree_on_how_far_apart_ranks_are(order):
    found = recipe(
        tensor_parallel=4, pipeline_parallel=2, accumulation=4, schedule="1f1b", rank_order=order
    )
    grid = rank_grid(
        small_recipe(
            tensor_parallel=4,
            pipeline_parallel=2,
            data_parallel=found.data_parallel,
            rank_order=order,
        ),
        (found.data_parallel,),
    ).numpy()
    strides = work(found).degrees.strides

    apart = {"pp": np.diff(grid, axis=0), "dp": np.diff(grid, axis=1), "tp": np.diff(grid, axis=2)}
    assert {name: set(steps.ravel().tolist()) for name, steps in apart.items()} == {
        name: {stride} for name, stride in found.rank_strides.items()
    }
    assert {name: stride[0] for name, stride in strides.items()} == found.rank_strides
    assert worst_ranks(found, PROBLEM)[-1] == grid[-1, 0, 0]
    assert all(
        found.pipeline_rank(int(rank)) == stage
        for stage in range(2)
        for rank in grid[stage].ravel()
    )


def test_tensor_parallel_ranks_on_several_nodes_are_slow_and_near_replicas_fast():
    near = recipe(tensor_parallel=8, pipeline_parallel=2, accumulation=4, schedule="1f1b")
    far, beside = replace(near, rank_order="dp-pp-tp"), replace(near, rank_order="tp-pp-dp")

    time = step_time(machine(), work(near, far, beside))

    assert time.tensor_parallel[1] > 2 * time.tensor_parallel[0] == 2 * time.tensor_parallel[2]
    assert time.data_parallel[1] < time.data_parallel[0]
    text = {mark.code: mark.text for mark in marks(far, PROBLEM)}
    assert (
        text["tp-beyond-node"] == "tensor_parallel 8, its ranks 8 apart, crosses nodes of 8 devices"
    )
    assert "tp-beyond-node" not in {mark.code for mark in marks(near, PROBLEM)}


def test_stages_within_a_node_send_over_its_links():
    near = recipe(
        tensor_parallel=2, pipeline_parallel=4, accumulation=8, micro_batch_seqs=1, schedule="1f1b"
    )

    time = step_time(machine(), work(near, replace(near, rank_order="tp-pp-dp")))

    assert time.pipeline_transfer[1] < time.pipeline_transfer[0]
    assert time.data_parallel[1] > time.data_parallel[0]


def test_orders_that_differ_in_groups_of_one_rank_are_one_recipe():
    model = PROBLEM.model.with_keys(tied_embeddings=False)
    cluster = Cluster(
        name="c", device="d", backend="cpu", nodes=1, devices_per_node=8, memory_gib_per_device=1.0
    )
    problem = Problem(
        model=model,
        cluster=cluster,
        sequence_length=64,
        global_batch=GlobalBatch(minimum=16, maximum=16),
    )
    space = Space(tensor_parallel=(1, 2, 8), pipeline_parallel=(1, 2), rank_order=RANK_ORDERS)

    orders: dict[tuple[int, int], list[str]] = {}
    for found in space.survey(problem).recipes:
        orders.setdefault((found.tensor_parallel, found.pipeline_parallel), []).append(
            found.rank_order
        )

    assert orders == {
        (1, 1): ["tp-dp-pp"],
        (1, 2): ["tp-dp-pp", "tp-pp-dp"],
        (2, 1): ["tp-dp-pp", "dp-tp-pp"],
        (2, 2): list(RANK_ORDERS),
        (8, 1): ["tp-dp-pp"],
    }


def test_deepspeed_has_one_order_and_others_are_spelt_right():
    there = recipe(rank_order="dp-tp-pp")
    reason = why_illegal(replace(there, engine="deepspeed"), PROBLEM)
    assert reason is not None
    assert (reason.code, reason.text) == (
        "deepspeed-rank-order",
        "the deepspeed engine numbers ranks as tp-dp-pp, not dp-tp-pp",
    )
    with pytest.raises(InvalidInput, match="rank_order"):
        Space(rank_order=("tp-dp",))
