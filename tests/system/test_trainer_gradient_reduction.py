"""How often gradients are reduced in a step: what tells ZeRO-1, ZeRO-2 and ZeRO-3 apart, with and
without pipelining.

Losses cannot tell: reducing once or at every micro-batch gives the same sums. Memory and traffic
differ, and they are what a recipe is measured for.
"""

from pathlib import Path
from typing import Any

import pytest

from support.trainer_runs import count_collectives, small_job, small_model, small_recipe

STEPS = 5
MICRO_BATCHES = 4
ONE_STAGE = {"schedule": "none"}
ONE_F_ONE_B = {"pipeline_parallel": 2, "schedule": "1f1b"}
INTERLEAVED = {"pipeline_parallel": 2, "schedule": "interleaved-1f1b", "virtual_stages": 2}
ZBV = {"pipeline_parallel": 2, "schedule": "zbv", "virtual_stages": 2}
# Rank 0's groups of parameters that are gathered and reduced together: its blocks, the embedding,
# last norm with head.
GROUPS = {"none": 4 + 2, "1f1b": 2 + 1, "interleaved-1f1b": 2 + 1, "zbv": 2 + 2}

BLOCKS = {"none": 4, "1f1b": 2}


@pytest.mark.parametrize(
    "stages", [ONE_STAGE, ONE_F_ONE_B, INTERLEAVED], ids=lambda stages: stages["schedule"]
)
@pytest.mark.parametrize(
    ("sharding", "reductions_per_group"),
    [((1, 1, 2), 1), ((1, 2, 2), MICRO_BATCHES), ((2, 2, 2), MICRO_BATCHES)],
    ids=["zero-1", "zero-2", "zero-3"],
)
def test_reduce_scatters_a_step(
    stages: dict[str, Any],
    sharding: tuple[int, int, int],
    reductions_per_group: int,
    tmp_path: Path,
) -> None:
    recipe = small_recipe(data_parallel=2, sharding=sharding, micro_batch_seqs=1, **stages)

    counts = count_collectives(small_job(tmp_path / "run", recipe=recipe))

    assert (
        counts["_reduce_scatter_base_"] == GROUPS[stages["schedule"]] * reductions_per_group * STEPS
    )


def test_split_backward_reduces_once_a_step(tmp_path: Path) -> None:
    recipe = small_recipe(data_parallel=2, sharding=(1, 1, 2), micro_batch_seqs=1, **ZBV)

    counts = count_collectives(small_job(tmp_path / "run", recipe=recipe))

    assert counts["_reduce_scatter_base_"] == GROUPS["zbv"] * STEPS


@pytest.mark.parametrize("stages", [ONE_STAGE, ONE_F_ONE_B], ids=lambda stages: stages["schedule"])
def test_only_zero_3_gathers_for_each_use(stages: dict[str, Any], tmp_path: Path) -> None:
    """ZeRO-2 gathers each group once a step, ZeRO-3 blocks once for each forward and backward of
    each micro-batch.

    There it gathers the embedding, whose backward pass needs no weight, and last norm and head,
    whose backward pass follows at once, for the forward pass alone. Under pipelining a trial run of
    the first micro-batch, which finds the shapes between stages, gathers once more.
    """
    gathers = {}
    for name, sharding in (("zero-2", (1, 2, 2)), ("zero-3", (2, 2, 2))):
        recipe = small_recipe(data_parallel=2, sharding=sharding, micro_batch_seqs=1, **stages)
        gathers[name] = count_collectives(small_job(tmp_path / name, recipe=recipe))[
            "_allgather_base_"
        ]

    groups, blocks = GROUPS[stages["schedule"]], BLOCKS[stages["schedule"]]
    trial = 0 if stages is ONE_STAGE else groups
    assert gathers == {
        "zero-2": groups * STEPS + trial,
        "zero-3": (groups + blocks) * MICRO_BATCHES * STEPS + trial,
    }


@pytest.mark.parametrize(
    "options", [{"loss_chunks": 4}, {"tied_embeddings": True}], ids=["chunks", "tied"]
)
def test_a_head_that_is_used_again_is_gathered_once_per_micro_batch(
    options: dict[str, Any], tmp_path: Path
) -> None:
    is_tied = "tied_embeddings" in options
    recipe = small_recipe(
        data_parallel=2, sharding=(2, 2, 2), micro_batch_seqs=1, **({} if is_tied else options)
    )
    model = small_model(**(options if is_tied else {}))

    counts = count_collectives(small_job(tmp_path / "run", recipe=recipe, model=model))

    outside_blocks = 1 if is_tied else 2
    assert (
        counts["_allgather_base_"] == (2 * BLOCKS["none"] + outside_blocks) * MICRO_BATCHES * STEPS
    )
    assert (
        counts["_reduce_scatter_base_"] == (BLOCKS["none"] + outside_blocks) * MICRO_BATCHES * STEPS
    )


def test_hybrid_reduces_between_groups_once_a_step(tmp_path: Path) -> None:
    """Within a sharding group at every micro-batch, between groups only at the last."""
    recipe = small_recipe(data_parallel=4, sharding=(2, 2, 2), micro_batch_seqs=1)
    micro_batches = recipe.accumulation

    counts = count_collectives(small_job(tmp_path / "run", recipe=recipe))

    loss_and_start = STEPS + 1
    assert counts["_reduce_scatter_base_"] == GROUPS["none"] * micro_batches * STEPS
    assert counts["allreduce_"] == GROUPS["none"] * STEPS + loss_and_start


@pytest.mark.parametrize(("gradient_sync", "reductions"), [("last", 1), ("each", MICRO_BATCHES)])
@pytest.mark.parametrize("stages", [ONE_STAGE, ONE_F_ONE_B], ids=lambda stages: stages["schedule"])
def test_plain_replicas_reduce_as_told(
    stages: dict[str, Any], gradient_sync: str, reductions: int, tmp_path: Path
) -> None:
    recipe = small_recipe(
        data_parallel=2, micro_batch_seqs=1, gradient_sync=gradient_sync, **stages
    )

    counts = count_collectives(small_job(tmp_path / "run", recipe=recipe))

    loss_and_start, buckets = (
        STEPS + 1,
        1,
    )  # all gradients of so small a model, or stage, travel together
    assert counts["allreduce_"] == buckets * reductions * STEPS + loss_and_start
