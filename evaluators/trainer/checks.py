"""What the engines refuse, before anything is built. Each refusal is a ValueError with the numbers."""

from frontrunner.evaluators.trainer.compilation import check_compiler
from frontrunner.evaluators.trainer.deepspeed_engine.checks import check_deepspeed
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import sharding_kind
from frontrunner.evaluators.trainer.pipeline import (
    SINGLE_STAGE_SCHEDULES,
    SPLIT_BACKWARD_SCHEDULES,
    V_SHAPED_SCHEDULES,
    stage_layers,
)
from frontrunner.spaces.model import Model
from frontrunner.spaces.recipe import Recipe


def check_job(job: Job, *, world_size: int) -> None:
    """Raise ValueError where the job asks for what its engine cannot do, or not correctly."""
    if job.recipe.devices != world_size:
        raise ValueError(f"the recipe needs {job.recipe.devices} ranks, but {world_size} were started")
    _check_model(job.model)
    _check_tensor_parallel(job.model, job.recipe)
    _check_positions(job)
    _check_pipeline(job.model, job.recipe)
    if job.recipe.engine == "deepspeed":
        _check_no_levers(job)
        check_deepspeed(job)
    else:
        _check_torch(job)


def _check_torch(job: Job) -> None:
    recipe = job.recipe
    if recipe.offload in ("optimizer", "nvme") or recipe.secondary_partition > 1:
        raise ValueError(
            "offload of the optimizer alone or to a disk and secondary partitions are the deepspeed engine's"
        )
    if recipe.compile:
        _check_compile(job)
    _check_host_memory(recipe)
    if recipe.schedule == "1f1b" and recipe.accumulation < recipe.pipeline_parallel:
        ranks = recipe.pipeline_parallel
        raise ValueError(f"schedule '1f1b' over {ranks} stages needs as many micro-batches, not {recipe.accumulation}")
    _check_sharding(recipe)
    _check_ddp(job)


def _check_no_levers(job: Job) -> None:
    recipe = job.recipe
    pieces = max(recipe.loss_chunks, recipe.feed_forward_tiles)
    moved = recipe.compile or recipe.activation_offload or pieces > 1
    if moved or recipe.optimizer_state != "fp32" or recipe.gradient_sync != "last" or job.precision == "fp16":
        raise ValueError("compile, pieces, host activations, bf16 states, gradient_sync, fp16 are the torch engine's")


def _check_compile(job: Job) -> None:
    recipe = job.recipe
    if recipe.recompute == "selective" or recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        raise ValueError("compile goes with neither selective recompute nor split backward passes")
    if recipe.recompute == "full" and recipe.tensor_parallel > 1:
        raise ValueError("compile goes with full recompute only without tensor parallelism")
    check_compiler(job.device)


def _check_host_memory(recipe: Recipe) -> None:
    kind = sharding_kind(recipe)
    if recipe.offload != "none" and recipe.copies > 1 and kind not in ("zero-3", "hybrid"):
        raise ValueError(f"offload {recipe.offload} needs zero-3 or hybrid sharding, not {kind}")


def _check_model(model: Model) -> None:
    if model.hidden % model.heads:
        raise ValueError(f"hidden {model.hidden} is not divisible by heads {model.heads}")
    if model.heads % model.kv_heads:
        raise ValueError(f"heads {model.heads} is not divisible by kv_heads {model.kv_heads}")
    if model.positions == "rotary" and model.head_dim % 2:
        raise ValueError(f"rotary positions need an even head width, not {model.head_dim}")


def _check_tensor_parallel(model: Model, recipe: Recipe) -> None:
    ranks = recipe.tensor_parallel
    for name in ("heads", "ffn_hidden", "padded_vocabulary"):
        if getattr(model, name) % ranks:
            raise ValueError(f"tensor_parallel {ranks} does not divide {name} {getattr(model, name)}")
    if model.kv_heads % ranks and ranks % model.kv_heads:
        raise ValueError(f"tensor_parallel {ranks} neither divides kv_heads {model.kv_heads} nor is a multiple of it")


def _check_positions(job: Job) -> None:
    recipe, context = job.recipe, job.recipe.context_parallel
    heads = job.model.heads // recipe.tensor_parallel
    kv_heads = max(1, job.model.kv_heads // recipe.tensor_parallel)
    if job.sequence_length % context:
        raise ValueError(f"context_parallel {context} does not divide sequence length {job.sequence_length}")
    if heads % context or (kv_heads % context and context % kv_heads):
        raise ValueError(
            f"context_parallel {context} must divide the {heads} heads of a tensor-parallel rank, and divide its "
            f"{kv_heads} kv heads or be a multiple of them"
        )
    held, ranks = job.sequence_length // context, recipe.tensor_parallel
    if recipe.sequence_parallel and held % ranks:
        raise ValueError(f"sequence parallelism over {ranks} ranks does not divide {held} positions")
    held = held // ranks if recipe.sequence_parallel else held
    for name in ("loss_chunks", "feed_forward_tiles"):
        if held % getattr(recipe, name):
            raise ValueError(f"{name} {getattr(recipe, name)} does not divide the {held} positions that a rank holds")


def _check_pipeline(model: Model, recipe: Recipe) -> None:
    ranks, virtual, schedule = recipe.pipeline_parallel, recipe.virtual_stages, recipe.schedule
    if (schedule == "none") != (ranks == 1):
        raise ValueError(f"schedule {schedule!r} does not fit pipeline_parallel {ranks}")
    if schedule in SINGLE_STAGE_SCHEDULES | {"none"} and virtual != 1:
        raise ValueError(f"schedule {schedule!r} holds one stage a rank, not {virtual}")
    if schedule in V_SHAPED_SCHEDULES and virtual != 2:
        raise ValueError(f"schedule {schedule!r} holds two stages a rank, not {virtual}")
    if model.tied_embeddings and ranks > 1:
        raise ValueError("tied embeddings need the first and the last layer on one rank: pipeline_parallel 1")
    stage_layers(model.layers, recipe)


def _check_sharding(recipe: Recipe) -> None:
    kind = sharding_kind(recipe)
    if recipe.schedule not in SPLIT_BACKWARD_SCHEDULES:
        return
    if kind not in ("replicate", "zero-1"):
        raise ValueError(
            f"schedule {recipe.schedule!r} splits the backward pass, which goes wrong silently with sharded gradients "
            f"or parameters ({kind}); use plain replication or ZeRO-1"
        )
    if recipe.recompute == "selective":
        raise ValueError(f"schedule {recipe.schedule!r} splits the backward pass, which selective recompute forbids")


def _check_ddp(job: Job) -> None:
    recipe = job.recipe
    if recipe.replication != "ddp":
        return
    if recipe.tensor_parallel > 1 or recipe.pipeline_parallel > 1 or sharding_kind(recipe) != "replicate":
        raise ValueError("DistributedDataParallel is right only for whole models: no tensor, pipeline or sharding")
    if recipe.copies == 1 or job.precision != "fp32":
        raise ValueError("DistributedDataParallel is there for several copies in fp32")
