"""The job as DeepSpeed's configuration."""

from typing import Any

from frontrunner.evaluators.trainer.deepspeed_engine.disk import disk_settings
from frontrunner.evaluators.trainer.job import Job
from frontrunner.spaces.sharding import SHARDING_NAMES

LARGEST_BUCKET = 500_000_000
"""DeepSpeed's own default, in elements. It allocates a whole bucket, so a small model gets a smaller one."""


def zero_stage(job: Job) -> int:
    """Return the ZeRO stage of the recipe's sharding degrees.

    Over one replica there is nothing to shard: the stage is the one that has what the job needs, offload or fp32 sums
    of bf16 gradients.
    """
    recipe = job.recipe
    if recipe.data_parallel > 1:
        return SHARDING_NAMES.index(recipe.sharding_name)
    if recipe.offload in ("optimizer+parameters", "nvme"):
        return 3
    return 1 if recipe.offload == "optimizer" or job.precision == "bf16" else 0


def configuration(job: Job, *, parameters: int) -> dict[str, Any]:
    """Return what `deepspeed.initialize` is given for a rank that holds `parameters` parameters before sharding."""
    recipe = job.recipe
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": recipe.micro_batch_seqs,
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": job.optimizer.gradient_clip_norm or 0.0,
        "zero_optimization": _zero(job, parameters),
        # The optimizer is torch's own: DeepSpeed's are compiled at first use, for 45 s and more.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
    if job.precision == "bf16":
        settings["bf16"] = {"enabled": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        settings["communication_data_type"] = "fp32"
    if recipe.tensor_parallel > 1 and recipe.pipeline_parallel == 1:
        settings["tensor_parallel"] = _automatic_tensor_parallel(recipe.tensor_parallel)
    return settings


def _zero(job: Job, parameters: int) -> dict[str, Any]:
    recipe, stage = job.recipe, zero_stage(job)
    a_block = max(1, parameters // job.model.layers)
    bucket = min(LARGEST_BUCKET, a_block if stage == 3 else max(1, parameters))
    settings: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    memory = {"device": "cpu", "pin_memory": job.device != "cpu"}
    if recipe.offload in ("optimizer", "optimizer+parameters"):
        settings["offload_optimizer"] = memory
    if stage < 3:
        return settings
    # DeepSpeed's defaults keep parameters whole that are small (100,000 elements) or used again soon (within 1e9
    # elements): a model of less than a billion parameters would not be sharded at all. Here only norms stay whole.
    settings["stage3_param_persistence_threshold"] = job.model.hidden
    settings["stage3_max_reuse_distance"] = 0
    settings["stage3_prefetch_bucket_size"] = a_block
    if recipe.offload == "optimizer+parameters":
        settings["offload_param"] = memory
    elif recipe.offload == "nvme":
        settings |= disk_settings(job)
    if recipe.secondary_partition > 1:
        settings["zero_hpz_partition_size"] = recipe.secondary_partition
    return settings


def _automatic_tensor_parallel(degree: int) -> dict[str, Any]:
    """AutoTP with our modules' names, which it does not know: without them it refuses the model."""
    rows = [r".*\.attention\.output\.weight$", r".*\.feed_forward\.down\.weight$"]
    columns = [r".*\.attention\.(query|key|value)\.weight$", r".*\.feed_forward\.(gate|up)\.weight$"]
    layers = [
        {"patterns": rows, "partition_type": "row"},
        {"patterns": columns, "partition_type": "column"},
    ]
    return {
        "autotp_size": degree,
        "partition_config": {"use_default_specs": False, "layer_specs": layers},
    }
