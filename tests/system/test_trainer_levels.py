"""Sharding by levels moves at each level the bytes that its definition says, and no others.

Losses cannot tell: gradients reduced over all replicas at every micro-batch give the same sums.
"""

from pathlib import Path

import pytest

from support.trainer_runs import (
    count_collectives,
    received_bytes,
    small_job,
    small_model,
    small_recipe,
)

STEPS = 5
MICRO_BATCHES = 2
BYTES = {"fp32": 4, "bf16": 2}
GATHER, REDUCE = "_allgather_base_", "_reduce_scatter_base_"


def _parameters() -> int:
    """The small model's parameters: each has a number of rows that 8 divides, so that nothing is
    padded.
    """
    shape = small_model()
    width = shape.hidden
    layer = 4 * width * width + 3 * width * shape.feed_forward.ffn_hidden + 2 * width
    return len(shape.layers) * layer + 2 * shape.embedding.vocabulary * width + width


def _expected(
    degrees: tuple[int, int, int], precision: str
) -> tuple[dict[str, float], dict[str, float]]:
    """The parameters and gradients that a rank receives a step at each level, in bytes: (gathered,
    reduced).

    Of what a level's group holds together a rank lacks all but its own part.
    """
    p, g, o = degrees
    total = _parameters()
    lacking = {"parameters": 1 - 1 / p, "gradients": 1 / p - 1 / g, "optimizer": 1 / g - 1 / o}
    # A forward and a backward pass of each micro-batch use the blocks' parameters; for the others
    # it is gathered once. The optimizer's step changes them once.
    outside = (2 * small_model().embedding.vocabulary + 1) * small_model().hidden
    uses = {"parameters": (2 - outside / total) * MICRO_BATCHES, "gradients": 1, "optimizer": 1}
    reductions = {"parameters": MICRO_BATCHES, "gradients": MICRO_BATCHES, "optimizer": 1}
    gathered = {
        level: uses[level] * share * total * BYTES[precision] for level, share in lacking.items()
    }
    reduced = {level: reductions[level] * share * total * 4 for level, share in lacking.items()}
    return gathered, reduced


def test_each_level_moves_its_bytes(tmp_path: Path) -> None:
    """Neighbours share parameters, the next ones gradients: groups of rank 5 by the level that they
    are for.
    """
    groups = {"parameters": "4,5", "gradients": "5,7", "optimizer": "1,5"}
    recipe = small_recipe(
        data_parallel=8, sharding=(2, 4, 8), micro_batch_seqs=1, accumulation=MICRO_BATCHES
    )
    job = small_job(tmp_path / "run", recipe=recipe, precision="bf16")

    count_collectives(job)

    gathered, reduced = _expected((2, 4, 8), "bf16")
    # The first weights are published as those of a step are.
    gathers = {level: STEPS if level == "parameters" else STEPS + 1 for level in groups}
    assert received_bytes(job, rank=5) == {
        **{
            f"{GATHER} {ranks}": gathers[level] * gathered[level] for level, ranks in groups.items()
        },
        **{f"{REDUCE} {ranks}": STEPS * reduced[level] for level, ranks in groups.items()},
    }


@pytest.mark.parametrize(
    ("degrees", "groups"),
    [
        pytest.param((1, 2, 4), {"gradients": "2,3", "optimizer": "1,3"}, id="whole-parameters"),
        pytest.param(
            (2, 2, 4), {"parameters": "2,3", "optimizer": "1,3"}, id="parameters-with-gradients"
        ),
        pytest.param(
            (2, 4, 4), {"parameters": "2,3", "gradients": "1,3"}, id="gradients-with-states"
        ),
    ],
)
def test_a_level_like_the_one_before_moves_nothing(
    degrees: tuple[int, int, int], groups: dict[str, str], tmp_path: Path
) -> None:
    recipe = small_recipe(data_parallel=4, sharding=degrees, micro_batch_seqs=1)
    job = small_job(tmp_path / "run", recipe=recipe)
    assert recipe.accumulation == MICRO_BATCHES

    count_collectives(job)

    _, reduced = _expected(degrees, "fp32")
    received = {
        name: count
        for name, count in received_bytes(job, rank=3).items()
        if name.startswith(REDUCE)
    }
    assert received == {
        f"{REDUCE} {ranks}": STEPS * reduced[level] for level, ranks in groups.items()
    }
