"""The DeepSpeed engine where deepspeed itself is not needed: its checks, its configuration, its absence."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators import here
from frontrunner.evaluators.trainer.checks import check_job
from frontrunner.evaluators.trainer.deepspeed_engine.configuration import configuration, zero_stage
from frontrunner.evaluators.trainer.job import Job
from frontrunner.spaces.errors import InvalidInput
from support.trainer_runs import small_job, small_model, small_recipe

needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra")
PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b"}


def job(precision: str = "fp32", model: dict[str, Any] | None = None, **recipe: Any) -> Job:
    chosen = small_recipe(**({"engine": "deepspeed"} | recipe))
    return small_job(Path("unused"), recipe=chosen, precision=precision, model=small_model(**(model or {})))


@needs_deepspeed
@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"data_parallel": 2, "replication": "ddp"}, "not by ddp"),
        ({"data_parallel": 4, "sharding": (2, 2, 2)}, "removed its hybrid sharding"),
        ({"data_parallel": 4, "sharding": (2, 2, 4)}, "no sharding by levels"),
        ({"data_parallel": 2, "precision": "bf16"}, "only under ZeRO 1 to 3"),
        ({"data_parallel": 2, "secondary_partition": 2}, "secondary partition of 2 needs ZeRO-3"),
        (
            {"tensor_parallel": 2, "data_parallel": 4, "sharding": (4, 4, 4), "secondary_partition": 2},
            "ignores tensor parallelism",
        ),
        (PIPELINE | {"schedule": "gpipe", "micro_batch_seqs": 1}, "'1f1b' only, not 'gpipe'"),
        (PIPELINE | {"data_parallel": 2, "sharding": (1, 2, 2)}, "ZeRO 0 and 1, not zero-2"),
        ({"tensor_parallel": 2, "sequence_parallel": True}, "no sequence parallelism"),
        ({"tensor_parallel": 4, "model": {"kv_heads": 2}}, "does not divide kv_heads 2"),
        ({"tensor_parallel": 2, "recompute": "selective"}, "gradients would be wrong"),
        ({"data_parallel": 2, "offload": "optimizer"}, "a part of ZeRO 1 to 3"),
        ({"data_parallel": 2, "sharding": (1, 1, 2), "offload": "optimizer+parameters"}, "by ZeRO-3 only"),
        (PIPELINE | {"offload": "optimizer+parameters"}, "not under a pipeline"),
        ({"precision": "fp16"}, "fp16 are the torch engine's"),
        ({"compile": True}, "are the torch engine's"),
        ({"loss_chunks": 2}, "are the torch engine's"),
        ({"feed_forward_tiles": 2}, "are the torch engine's"),
        ({"optimizer_state": "bf16"}, "are the torch engine's"),
        ({"activation_offload": True}, "are the torch engine's"),
        ({"data_parallel": 2, "synchronise": "each"}, "are the torch engine's"),
        ({"data_parallel": 2, "engine": "torch", "secondary_partition": 2}, "are the deepspeed engine's"),
        ({"data_parallel": 2, "engine": "torch", "offload": "optimizer"}, "are the deepspeed engine's"),
    ],
)
def test_a_job_that_legality_should_have_refused_is_refused(recipe: dict[str, Any], words: str) -> None:
    tried = job(**recipe)
    with pytest.raises(ValueError, match=words):
        check_job(tried, world_size=tried.recipe.world_size)


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [
        ({"data_parallel": 2}, 0),
        ({"data_parallel": 2, "sharding": (1, 1, 2)}, 1),
        ({"data_parallel": 2, "sharding": (1, 2, 2)}, 2),
        ({"data_parallel": 2, "sharding": (2, 2, 2)}, 3),
        ({}, 0),
        ({"precision": "bf16"}, 1),
        ({"offload": "optimizer"}, 1),
        ({"offload": "optimizer+parameters"}, 3),
    ],
)
def test_the_zero_stage_of_a_job(recipe: dict[str, Any], stage: int) -> None:
    assert zero_stage(job(**recipe)) == stage


def test_zero_3_shards_every_matrix_of_a_small_model() -> None:
    """DeepSpeed's defaults would keep a model of this size whole."""
    settings = configuration(job(data_parallel=2, sharding=(2, 2, 2)), parameters=200_000)["zero_optimization"]

    smallest_matrix = small_model().hidden * small_model().hidden
    assert settings["stage3_param_persistence_threshold"] < smallest_matrix
    assert settings["stage3_max_reuse_distance"] == 0
    assert settings["reduce_bucket_size"] == 200_000 // small_model().layers


def test_the_torch_engine_does_not_import_deepspeed() -> None:
    program = (
        "import sys; from frontrunner.evaluators.trainer.entry import preload; preload(); "
        "sys.exit('deepspeed' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0


def test_an_engine_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here.refuse_missing_engines(("torch",))
    monkeypatch.setattr(here, "find_spec", lambda name: None)
    here.refuse_missing_engines(("torch",))
    with pytest.raises(InvalidInput) as caught:
        here.refuse_missing_engines(("torch", "deepspeed"))
    assert caught.value.message == 'space.engine = "deepspeed": expected an engine that is installed'
    assert caught.value.hint == "pip install 'frontrunner[deepspeed]'"
