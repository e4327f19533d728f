"""A few recipes, of which one sees almost any wrong line of the trainer, train as one process does:
see test_numerics. test_numerics_faults shows which faults each of them sees.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from support.trainer_runs import (
    BALANCED,
    CLIP_NORM,
    DEEPSEEK,
    EXPERTS,
    GEMMA,
    GPT2,
    NEVER_REACHED,
    QWEN,
    assert_trains_as_one_process,
    small_job,
    small_model,
    small_recipe,
    training_job,
)

pytestmark = pytest.mark.smoke

BIASED = {"biases": "all"}
ON_TWO_STAGES = {"pipeline_parallel": 2, "micro_batch_seqs": 1}
PIECES = {"loss_chunks": 2, "feed_forward_tiles": 2}
RECIPES = {
    "dp4-levels-124": ({"data_parallel": 4, "sharding": (1, 2, 4), "micro_batch_seqs": 1}, {}),
    "cp4-learned-2-kv-heads": (
        {"context_parallel": 4, "micro_batch_seqs": 4},
        GPT2 | {"kv_heads": 2},
    ),
    "tp2-sp-dp2-zero2-full-pieces-1-kv-head": (
        {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 2, "sharding": (1, 2, 2)}
        | {"micro_batch_seqs": 2, "recompute": "full"}
        | PIECES,
        QWEN | {"kv_heads": 1},
    ),
    "tp2-sp-cp2-of-gemma": (
        {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2},
        GEMMA,
    ),
    "pp2-of-gemma": ({"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 2}, GEMMA),
    "dp4-zero1-ep2": (
        {"data_parallel": 4, "sharding": (1, 1, 4), "expert_parallel": 2, "micro_batch_seqs": 1},
        EXPERTS | {"biases": "all", "activation": "swiglu_clamped", "renormalized_experts": False},
    ),
    "tp2-sp-etp2": (
        {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 2},
        EXPERTS,
    ),
    "deepseek-tp2-sp-pp2-1f1b-ep2": (
        {
            "tensor_parallel": 2,
            "sequence_parallel": True,
            "pipeline_parallel": 2,
            "schedule": "1f1b",
        }
        | {"expert_parallel": 2, "micro_batch_seqs": 2},
        DEEPSEEK,
    ),
    "balanced-cp2-dp2-zero1-ep2": (
        {
            "context_parallel": 2,
            "data_parallel": 2,
            "sharding": (1, 1, 4),
            "expert_parallel": 2,
            "micro_batch_seqs": 2,
        },
        BALANCED,
    ),
    "tp2-sp-pp2-gpipe-selective": (
        ON_TWO_STAGES
        | {"tensor_parallel": 2, "sequence_parallel": True}
        | {"schedule": "gpipe", "recompute": "selective"},
        BIASED,
    ),
    "cp2-pp2-gpipe-zero1-full": (
        ON_TWO_STAGES
        | {"context_parallel": 2, "sharding": (1, 1, 2)}
        | {"schedule": "gpipe", "recompute": "full"},
        BIASED,
    ),
    "cp2-dp2-ddp-each-selective": (
        {"context_parallel": 2, "data_parallel": 2, "micro_batch_seqs": 1}
        | {"replication": "ddp", "gradient_sync": "each", "recompute": "selective"},
        BIASED,
    ),
    "pp2-interleaved-dp2-zero3-selective": (
        ON_TWO_STAGES
        | {"virtual_stages": 2, "schedule": "interleaved-1f1b", "recompute": "selective"}
        | {"data_parallel": 2, "sharding": (2, 2, 2)},
        BIASED,
    ),
    "tp2-pp2-zbv-full": (
        ON_TWO_STAGES
        | {"virtual_stages": 2, "schedule": "zbv", "recompute": "full"}
        | {"tensor_parallel": 2},
        BIASED,
    ),
}
ZERO_3 = {"data_parallel": 2, "sharding": (2, 2, 2), "micro_batch_seqs": 1}
DEEPSPEED = {
    "zero-3": ZERO_3,
    "tensor-zero-1": {
        "tensor_parallel": 2,
        "data_parallel": 2,
        "sharding": (1, 1, 2),
        "micro_batch_seqs": 1,
    },
    "pipeline": {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 1},
}


@pytest.mark.parametrize(("recipe", "model"), RECIPES.values(), ids=RECIPES)
def test_torch_engine_trains_the_right_model(
    recipe: dict[str, Any], model: dict[str, Any], tmp_path: Path
) -> None:
    job = small_job(tmp_path / "run", recipe=small_recipe(**recipe), model=small_model(**model))
    assert_trains_as_one_process(training_job(job))


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra")
@pytest.mark.parametrize("recipe", DEEPSPEED.values(), ids=DEEPSPEED)
def test_deepspeed_engine_trains_the_right_model(recipe: dict[str, Any], tmp_path: Path) -> None:
    job = small_job(tmp_path / "run", recipe=small_recipe(engine="deepspeed", **recipe))
    # Without ZeRO it reports no norm, and what is clipped does not show how large it was.
    clip_norm = CLIP_NORM if "sharding" in recipe else NEVER_REACHED
    assert_trains_as_one_process(training_job(job, clip_norm=clip_norm))
