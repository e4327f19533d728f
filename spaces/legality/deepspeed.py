"""Rules of the DeepSpeed engine."""

from __future__ import annotations

from frontrunner.spaces.legality.common import Reason, Rule
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


def context_parallel(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that DeepSpeed's own Ulysses attention is not built in: a recipe of this engine leaves sequences whole."""
    if recipe.context_parallel == 1:
        return None
    return Reason("deepspeed-context", "the deepspeed engine has no context parallelism; use engine torch")


def replication(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that replicas are DeepSpeed's own; torch's wrappers are no choice."""
    if recipe.replication == "replicate":
        return None
    return Reason("deepspeed-replication", f"the deepspeed engine keeps replicas itself, not by {recipe.replication}")


def rank_order(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that DeepSpeed's topologies number ranks in one way."""
    if recipe.rank_order == "tp-dp-pp":
        return None
    return Reason("deepspeed-rank-order", f"the deepspeed engine numbers ranks as tp-dp-pp, not {recipe.rank_order}")


def sharding(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that ZeRO 0 to 3 over all replicas; MiCS, its hybrid sharding, was removed from DeepSpeed."""
    n = recipe.data_parallel
    p, g, o = recipe.sharding.degrees
    if (p, g, o) in {(1, 1, 1), (1, 1, n), (1, n, n), (n, n, n)}:
        return None
    hint = "DeepSpeed has removed MiCS; use zero-3 with secondary_partition" if p == g == o else "it has ZeRO 0 to 3"
    return Reason("deepspeed-sharding", f"no sharding over {p}, {g} and {o} of {n} replicas: {hint}")


def pipeline(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that DeepSpeed's pipeline runs 1F1B over whole gradients."""
    if recipe.pipeline_parallel == 1:
        return None
    if recipe.schedule != "1f1b":
        return Reason("deepspeed-schedule", f"DeepSpeed's pipeline runs 1f1b only, not {recipe.schedule}")
    if recipe.sharding.gradients > 1:
        return Reason(
            "deepspeed-pipeline-sharding",
            f"DeepSpeed's pipeline takes ZeRO 0 and 1, not {recipe.sharding_name}: it keeps whole gradients",
        )
    if problem.model.tied_embeddings:
        return Reason("tied-pipeline", "tied embeddings need the first and last stage on one rank")
    return None


def tensor_parallel(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that attention and feed-forward are cut into equal shares of whole heads; activations stay whole."""
    tp, kv_heads = recipe.tensor_parallel, problem.model.kv_heads
    if recipe.sequence_parallel:
        return Reason("deepspeed-sequence-parallel", "the deepspeed engine has no sequence parallelism")
    if kv_heads % tp:
        return Reason("deepspeed-kv-heads", f"the deepspeed engine cannot cut {kv_heads} kv heads over {tp} ranks")
    if tp > 1 and recipe.pipeline_parallel == 1 and recipe.recompute == "selective":
        return Reason(
            "deepspeed-selective-tensor",
            "wrong gradients: AutoTP sums over its ranks into the very tensors that selective recompute keeps, "
            "and sums them again; use recompute full or none",
        )
    return None


def offload(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that offload is a part of ZeRO; to a disk it needs a folder."""
    if recipe.offload == "nvme" and problem.cluster.nvme_path is None:
        return Reason("offload-nvme", "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path")
    if recipe.offload != "none" and recipe.data_parallel > 1 and recipe.sharding.optimizer == 1:
        return Reason("offload-sharding", f"offload is a part of ZeRO 1 to 3; sharding is {recipe.sharding_name}")
    return None


def offload_parameters(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that parameters can leave the device only where each is gathered for its use: under ZeRO-3."""
    if recipe.offload not in ("optimizer+parameters", "nvme"):
        return None
    if recipe.pipeline_parallel > 1:
        return Reason(
            "offload-pipeline", "parameters are offloaded by ZeRO-3, which DeepSpeed's pipeline does not take"
        )
    if recipe.sharding.parameters < recipe.data_parallel:
        return Reason("offload-parameters", f"parameters are offloaded by ZeRO-3; sharding is {recipe.sharding_name}")
    return None


def secondary_partition(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that ZeRO++'s second copy of the parameters is held by equal groups of neighboring ranks."""
    k, n = recipe.secondary_partition, recipe.data_parallel
    if k == 1:
        return None
    if recipe.sharding.parameters < n or n == 1:
        return Reason(
            "secondary-sharding", f"secondary_partition is a part of ZeRO-3; sharding is {recipe.sharding_name}"
        )
    if recipe.offload == "nvme":
        return Reason(
            "secondary-nvme", "DeepSpeed puts hpZ's second copy where the parameters are, and cannot on a disk"
        )
    if n % k or k == n:
        return Reason("secondary-divides", f"secondary_partition {k} does not cut {n} replicas into groups")
    if recipe.tensor_parallel > 1:
        return Reason(
            "secondary-tensor",
            "wrong parameters: hpZ groups neighboring ranks, which under tensor parallelism hold different shares",
        )
    return None


def precision(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that bf16 gradients are summed in fp32 only under ZeRO; skipped steps of fp16 are not reported."""
    if problem.precision == "fp16":
        return Reason(
            "precision-fp16", "the deepspeed engine does not report skipped steps yet, as fp16 needs; use bf16"
        )
    if problem.precision == "bf16" and recipe.data_parallel > 1 and recipe.sharding.optimizer == 1:
        return Reason(
            "deepspeed-bf16", "DeepSpeed sums bf16 gradients in fp32 only under ZeRO 1 to 3; sharding is none"
        )
    return None


def levers(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that compilation and the levers of memory are the torch engine's, but for `offload`."""
    moved = [lever for lever in recipe.levers if not lever.startswith("offload=")]
    return Reason("levers-engine", f"only the torch engine has {', '.join(moved)}") if moved else None


RULES: tuple[Rule, ...] = (
    context_parallel,
    replication,
    rank_order,
    sharding,
    pipeline,
    tensor_parallel,
    offload,
    offload_parameters,
    secondary_partition,
    precision,
    levers,
)
