"""What the DeepSpeed engine refuses, before deepspeed is imported. Each refusal is a ValueError with the numbers."""

from importlib.util import find_spec

from frontrunner.evaluators.trainer.deepspeed_engine.disk import check_disk
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import sharding_kind


def check_deepspeed(job: Job) -> None:
    """Raise ValueError where DeepSpeed cannot run the job, or would train another model than one process does."""
    if find_spec("deepspeed") is None:
        raise ValueError("deepspeed is not installed; run: pip install deepspeed")
    _check_replicas(job)
    _check_pipeline(job)
    _check_tensor_parallel(job)
    _check_offload(job)


def _check_replicas(job: Job) -> None:
    recipe, kind = job.recipe, sharding_kind(job.recipe)
    if recipe.context_parallel > 1:
        raise ValueError("the deepspeed engine has no context parallelism")
    if recipe.replication != "replicate":
        raise ValueError(f"the deepspeed engine keeps replicas itself, not by {recipe.replication}")
    if kind == "hybrid":
        raise ValueError("DeepSpeed has removed its hybrid sharding; use ZeRO-3 with a secondary partition")
    if kind == "levels":
        raise ValueError("DeepSpeed spreads its states over all replicas alike: it has no sharding by levels")
    if job.precision == "bf16" and kind == "replicate" and recipe.data_parallel > 1:
        raise ValueError("DeepSpeed sums bf16 gradients in fp32 only under ZeRO 1 to 3")
    secondary = recipe.secondary_partition
    if secondary == 1:
        return
    if kind != "zero-3" or recipe.data_parallel % secondary or secondary == recipe.data_parallel:
        raise ValueError(f"a secondary partition of {secondary} needs ZeRO-3 over a multiple of it, not {kind}")
    if recipe.offload == "nvme":
        raise ValueError("DeepSpeed's secondary partition does not go with offload to a disk")
    if recipe.tensor_parallel > 1:
        raise ValueError("DeepSpeed's secondary partition ignores tensor parallelism: its parameters would be wrong")


def _check_pipeline(job: Job) -> None:
    recipe = job.recipe
    if recipe.pipeline_parallel == 1:
        return
    if recipe.schedule != "1f1b":
        raise ValueError(f"DeepSpeed's pipeline runs '1f1b' only, not {recipe.schedule!r}")
    if recipe.sharding.gradients > 1:
        raise ValueError(f"DeepSpeed's pipeline takes ZeRO 0 and 1, not {sharding_kind(recipe)}")


def _check_tensor_parallel(job: Job) -> None:
    recipe = job.recipe
    if recipe.sequence_parallel:
        raise ValueError("the deepspeed engine has no sequence parallelism")
    if job.model.kv_heads % recipe.tensor_parallel:
        raise ValueError(f"tensor_parallel {recipe.tensor_parallel} does not divide kv_heads {job.model.kv_heads}")
    if recipe.tensor_parallel > 1 and recipe.pipeline_parallel == 1 and recipe.recompute == "selective":
        raise ValueError("selective recompute keeps tensors that AutoTP changes: the gradients would be wrong")


def _check_offload(job: Job) -> None:
    recipe, kind = job.recipe, sharding_kind(job.recipe)
    if recipe.offload == "none":
        return
    if kind == "replicate" and recipe.data_parallel > 1:
        raise ValueError("offload is a part of ZeRO 1 to 3")
    if recipe.offload == "optimizer":
        return
    if recipe.pipeline_parallel > 1 or (kind != "zero-3" and recipe.data_parallel > 1):
        raise ValueError("parameters are offloaded by ZeRO-3 only, and not under a pipeline")
    if recipe.offload == "nvme":
        check_disk(job)
