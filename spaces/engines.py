"""What each engine cannot run, or would run wrongly, as legality rules.

The rules of the torch engine were found by running every combination against one process on torch 2.13;
`tests/system/test_numerics.py` runs the legal ones, and the two that give wrong gradients at full speed
are marked as such in their reason.
"""

from __future__ import annotations

from frontrunner.spaces import deepspeed
from frontrunner.spaces.levers import TORCH_LEVER_RULES, only_torch_levers
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason, Rule
from frontrunner.spaces.recipe import SPLIT_BACKWARD_SCHEDULES, Recipe

V_SHAPED_SCHEDULES = ("zbv", "dualpipev")
INTERLEAVED_SCHEDULES = ("interleaved-1f1b", "interleaved-zero-bubble")


def torch_ddp(recipe: Recipe, _: Problem) -> Reason | None:
    """DistributedDataParallel is right only on its own; `replicate` serves everywhere else."""
    if recipe.replication != "ddp":
        return None
    if recipe.copies == 1:
        return Reason("ddp-alone", "replication ddp needs data_parallel > 1 or context_parallel > 1")
    if recipe.sharding.degrees != (1, 1, 1):
        return Reason("ddp-sharding", f"replication ddp keeps whole replicas; sharding is {recipe.sharding_name}")
    if recipe.pipeline_parallel > 1:
        return Reason(
            "ddp-pipeline",
            f"wrong gradients: DistributedDataParallel under pipelining scales them by the {recipe.accumulation} "
            "micro-batches; use replication replicate",
        )
    if recipe.tensor_parallel > 1:
        return Reason("ddp-tensor", "DistributedDataParallel cannot broadcast tensor-parallel parameters")
    return None


def torch_sharding(recipe: Recipe, _: Problem) -> Reason | None:
    """Parameters, gradients and states alike over a part of the copies, or the states over all of them."""
    n = recipe.copies
    p, g, o = recipe.sharding.degrees
    if o == n or p == g == o:
        return None
    return Reason(
        "sharding-levels",
        f"the torch engine has no sharding over {p}, {g} and {o} of {recipe.copies_in_words()}: where they differ, "
        "optimizer states are spread over all",
    )


def torch_split_backward(recipe: Recipe, _: Problem) -> Reason | None:
    """Schedules that split the backward pass find their weights by identity, and must find them whole."""
    if recipe.schedule not in SPLIT_BACKWARD_SCHEDULES:
        return None
    if recipe.sharding.parameters > 1:
        return Reason(
            "split-backward-resharding",
            f"wrong gradients: {recipe.schedule} splits the backward pass, and with parameters resharded after the "
            "forward pass the weight half is computed against other tensors",
        )
    if recipe.sharding.gradients > 1:
        return Reason(
            "split-backward-gradients",
            f"{recipe.schedule} finishes weight gradients out of order: they cannot be sharded at each micro-batch",
        )
    if recipe.recompute == "selective":
        return Reason(
            "split-backward-selective",
            f"selective recompute keeps tensors for one backward pass; {recipe.schedule} has two",
        )
    return None


def torch_micro_batches(recipe: Recipe, _: Problem) -> Reason | None:
    """A pipeline schedule needs enough micro-batches to fill its stages."""
    schedule, stages = recipe.schedule, recipe.stages
    if schedule in ("none", "gpipe"):
        return None
    needed = stages if schedule == "dualpipev" else recipe.pipeline_parallel
    if recipe.accumulation < needed:
        return Reason(
            "micro-batches", f"{recipe.accumulation} micro-batches; {schedule} over {stages} stages needs {needed}"
        )
    return None


def torch_equal_rounds(recipe: Recipe, _: Problem) -> Reason | None:
    """Interleaved schedules run their micro-batches in max(1, micro-batches // pipeline_parallel) equal rounds.

    Any other number raises in `torch.distributed.pipelining` when the schedule is built.
    """
    rounds = max(1, recipe.accumulation // recipe.pipeline_parallel)
    if recipe.schedule not in INTERLEAVED_SCHEDULES or recipe.accumulation % rounds == 0:
        return None
    return Reason(
        "interleaved-rounds",
        f"{recipe.schedule} over {recipe.pipeline_parallel} ranks runs {recipe.accumulation} micro-batches in "
        f"{rounds} rounds, which does not divide them",
    )


def torch_v_shape(recipe: Recipe, _: Problem) -> Reason | None:
    """V-shaped schedules give each rank one stage going down and one coming up."""
    if recipe.schedule in V_SHAPED_SCHEDULES and recipe.virtual_stages != 2:
        return Reason("virtual-stages", f"{recipe.schedule} takes virtual_stages 2, not {recipe.virtual_stages}")
    return None


def torch_tied(recipe: Recipe, problem: Problem) -> Reason | None:
    """Tied embeddings would have to live on the first and the last stage at once."""
    if problem.model.tied_embeddings and recipe.pipeline_parallel > 1:
        return Reason("tied-pipeline", "tied embeddings need the first and last stage on one rank")
    return None


def torch_precision(recipe: Recipe, problem: Problem) -> Reason | None:
    """DistributedDataParallel has no mixed precision of its own."""
    if recipe.replication == "ddp" and problem.precision != "fp32":
        return Reason("ddp-precision", f"replication ddp casts no parameters to {problem.precision}; use replicate")
    return None


def torch_secondary_partition(recipe: Recipe, _: Problem) -> Reason | None:
    """A second copy of the parameters is a part of ZeRO++."""
    if recipe.secondary_partition > 1:
        return Reason(
            "torch-secondary", "the torch engine has no secondary partition; use hybrid-K or engine deepspeed"
        )
    return None


ENGINE_RULES: dict[str, tuple[Rule, ...]] = {
    "torch": (
        torch_ddp,
        torch_sharding,
        torch_split_backward,
        torch_v_shape,
        torch_micro_batches,
        torch_equal_rounds,
        torch_tied,
        torch_precision,
        torch_secondary_partition,
        *TORCH_LEVER_RULES,
    ),
    "deepspeed": (*deepspeed.RULES, only_torch_levers),
}
