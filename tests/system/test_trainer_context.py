"""Context parallelism sends what its definition says, and no more: two all-to-alls a layer forward,
two backward.

Losses cannot tell: keys and values sent twice, or all heads sent to everyone, give the same sums.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.trainer_runs import (
    SEQUENCE_LENGTH,
    count_collectives,
    received_bytes,
    run_job,
    small_job,
    small_model,
    small_recipe,
)

STEPS = 5
BYTES = {"fp32": 4, "bf16": 2}
# The ranks' shares of the recipe below: one sequence a micro-batch, and the whole global batch of 8
# a step.
MICRO_BATCHES = 8


def _exchanged_bytes(ranks: int, *, heads: int, kv_heads: int, precision: str) -> int:
    """What a rank receives in a step and layer: query, key, value and outcome forward, their
    gradients backward.

    Of a slice's values a rank keeps a share. A key-value head that several ranks need is sent to
    each.
    """
    width = small_model().attention.head_dim
    values = SEQUENCE_LENGTH // ranks * (2 * heads + 2 * max(kv_heads, ranks)) * width
    return 2 * MICRO_BATCHES * values * BYTES[precision] * (ranks - 1) // ranks


@pytest.mark.parametrize(
    ("recipe", "kv_heads", "precision", "exchanges"),
    [
        pytest.param(
            {"context_parallel": 2, "sharding": (2, 2, 2)},
            2,
            "bf16",
            4,
            id="cp2-bf16-2-kv-heads",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"context_parallel": 4},
            2,
            "fp32",
            4,
            id="cp4-sends-2-kv-heads-twice",
        ),
        # The kept outcomes are not sent again; under full recompute all of the forward pass is.
        pytest.param(
            {"context_parallel": 2, "recompute": "selective"}, 4, "fp32", 4, id="cp2-selective"
        ),
        pytest.param(
            {"context_parallel": 2, "recompute": "full"},
            4,
            "fp32",
            6,
            id="cp2-full",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_all_to_alls_a_layer_and_their_bytes(
    recipe: dict[str, Any], kv_heads: int, precision: Any, exchanges: int, tmp_path: Path
) -> None:
    model = small_model(kv_heads=kv_heads)
    job = small_job(
        tmp_path / "run",
        recipe=small_recipe(**recipe, micro_batch_seqs=1),
        model=model,
        precision=precision,
    )
    assert job.recipe.accumulation == MICRO_BATCHES

    counts = count_collectives(job)

    assert counts["all_to_all_single"] == STEPS * MICRO_BATCHES * len(model.layers) * exchanges
    received = _exchanged_bytes(
        job.recipe.context_parallel,
        heads=model.attention.heads,
        kv_heads=kv_heads,
        precision=precision,
    )
    if exchanges == 6:  # forward, forward again, backward
        received = received * 3 // 2
    assert received_bytes(job, rank=1)["all_to_all_single"] == STEPS * len(model.layers) * received


def test_a_rank_keeps_a_share_of_the_activations(tmp_path: Path) -> None:
    """Of feed-forward parts this wide a quarter of the positions must leave less than half of the
    memory.
    """
    peaks = {}
    for ranks in (1, 4):
        model = small_model(ffn_hidden=8192)
        job = small_job(
            tmp_path / str(ranks), recipe=small_recipe(context_parallel=ranks), model=model
        )
        job = replace(job, sequence_length=128, probe=replace(job.probe, measured_steps=1))  # type: ignore[type-var]
        peaks[ranks] = max(run_job(job)["peak_memory_bytes"])

    # gate, up, the gate's SiLU and the product, of 8 sequences of 128 tokens, in fp32, of each of
    # the layers.
    whole = 4 * 4 * 8 * 128 * 8192 * 4
    assert peaks[1] - peaks[4] > whole / 2
