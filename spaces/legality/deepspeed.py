"""Rules of the DeepSpeed engine."""

from __future__ import annotations

from collections.abc import Iterator

from frontrunner.spaces.legality.common import Reason, Rule
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


def missing_features(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """DeepSpeed keeps replicas itself, numbers ranks in one way, and leaves sequences whole here."""
    if recipe.context_parallel > 1:
        yield Reason("deepspeed-context", "the deepspeed engine has no context parallelism; use engine torch")
    if recipe.replication != "replicate":
        yield Reason(
            "deepspeed-replication", f"the deepspeed engine keeps replicas itself, not by {recipe.replication}"
        )
    if recipe.rank_order != "tp-dp-pp":
        yield Reason("deepspeed-rank-order", f"the deepspeed engine numbers ranks as tp-dp-pp, not {recipe.rank_order}")


def sharding(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Sharding is ZeRO 0 to 3 over all replicas; MiCS, its hybrid sharding, was removed from DeepSpeed."""
    n = recipe.data_parallel
    p, g, o = recipe.sharding.degrees
    if (p, g, o) not in {(1, 1, 1), (1, 1, n), (1, n, n), (n, n, n)}:
        instead = "DeepSpeed has removed MiCS; use zero-3 with secondary_partition"
        hint = instead if p == g == o else "it has ZeRO 0 to 3"
        yield Reason("deepspeed-sharding", f"no sharding over {p}, {g} and {o} of {n} replicas: {hint}")


def pipeline(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """DeepSpeed's pipeline runs 1F1B over whole gradients."""
    if recipe.pipeline_parallel == 1:
        return
    if recipe.schedule != "1f1b":
        yield Reason("deepspeed-schedule", f"DeepSpeed's pipeline runs 1f1b only, not {recipe.schedule}")
    if recipe.sharding.gradients > 1:
        yield Reason(
            "deepspeed-pipeline-sharding",
            f"DeepSpeed's pipeline takes ZeRO 0 and 1, not {recipe.sharding_name}: it keeps whole gradients",
        )
    if problem.model.tied_embeddings:
        yield Reason("tied-pipeline", "tied embeddings need the first and last stage on one rank")


def tensor_parallel(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Attention and feed-forward are cut into equal shares of whole heads; activations stay whole."""
    tp, kv_heads = recipe.tensor_parallel, problem.model.kv_heads
    if recipe.sequence_parallel:
        yield Reason("deepspeed-sequence-parallel", "the deepspeed engine has no sequence parallelism")
    if kv_heads % tp:
        yield Reason("deepspeed-kv-heads", f"the deepspeed engine cannot cut {kv_heads} kv heads over {tp} ranks")
    if tp > 1 and recipe.pipeline_parallel == 1 and recipe.recompute == "selective":
        yield Reason(
            "deepspeed-selective-tensor",
            "wrong gradients: AutoTP sums over its ranks into the very tensors that selective recompute keeps, "
            "and sums them again; use recompute full or none",
        )


def offload(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Offload is a part of ZeRO, and parameters leave the device only where each is gathered for its use: ZeRO-3."""
    if recipe.offload == "nvme" and problem.cluster.nvme_path is None:
        yield Reason("offload-nvme", "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path")
    if recipe.offload != "none" and recipe.data_parallel > 1 and recipe.sharding.optimizer == 1:
        yield Reason("offload-sharding", f"offload is a part of ZeRO 1 to 3; sharding is {recipe.sharding_name}")
    if recipe.offload not in ("optimizer+parameters", "nvme"):
        return
    if recipe.pipeline_parallel > 1:
        yield Reason("offload-pipeline", "parameters are offloaded by ZeRO-3, which DeepSpeed's pipeline does not take")
    if recipe.sharding.parameters < recipe.data_parallel:
        yield Reason("offload-parameters", f"parameters are offloaded by ZeRO-3; sharding is {recipe.sharding_name}")


def secondary_partition(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """ZeRO++'s second copy of the parameters is held by equal groups of neighboring ranks."""
    k, n = recipe.secondary_partition, recipe.data_parallel
    if k == 1:
        return
    if recipe.sharding.parameters < n or n == 1:
        yield Reason(
            "secondary-sharding", f"secondary_partition is a part of ZeRO-3; sharding is {recipe.sharding_name}"
        )
    if recipe.offload == "nvme":
        yield Reason(
            "secondary-nvme", "DeepSpeed puts hpZ's second copy where the parameters are, and cannot on a disk"
        )
    if n % k or k == n:
        yield Reason("secondary-divides", f"secondary_partition {k} does not cut {n} replicas into groups")
    if recipe.tensor_parallel > 1:
        yield Reason(
            "secondary-tensor",
            "wrong parameters: hpZ groups neighboring ranks, which under tensor parallelism hold different shares",
        )


def precision(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """bf16 gradients are summed in fp32 only under ZeRO; skipped steps of fp16 are not reported."""
    if problem.precision == "fp16":
        yield Reason(
            "precision-fp16", "the deepspeed engine does not report skipped steps yet, as fp16 needs; use bf16"
        )
    if problem.precision == "bf16" and recipe.data_parallel > 1 and recipe.sharding.optimizer == 1:
        yield Reason("deepspeed-bf16", "DeepSpeed sums bf16 gradients in fp32 only under ZeRO 1 to 3; sharding is none")


def levers(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Compilation and the levers of memory, except `offload`, are the torch engine's."""
    moved = [lever for lever in recipe.levers if not lever.startswith("offload=")]
    if moved:
        yield Reason("levers-engine", f"only the torch engine has {', '.join(moved)}")


RULES: tuple[Rule, ...] = (
    missing_features,
    sharding,
    pipeline,
    tensor_parallel,
    offload,
    secondary_partition,
    precision,
    levers,
)
