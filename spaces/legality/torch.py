"""Rules of the torch engine."""

from __future__ import annotations

from frontrunner.spaces.legality.common import Reason, Rule
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import INTERLEAVED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, V_SHAPED_SCHEDULES, Recipe


def ddp(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that DistributedDataParallel is right only on its own; `replicate` serves everywhere else."""
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


def sharding(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that parameters, gradients and states alike over a part of the copies, or the states over all of them."""
    n = recipe.copies
    p, g, o = recipe.sharding.degrees
    if o == n or p == g == o:
        return None
    return Reason(
        "sharding-levels",
        f"the torch engine has no sharding over {p}, {g} and {o} of {recipe.copies_in_words()}: where they differ, "
        "optimizer states are spread over all",
    )


def split_backward(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that schedules that split the backward pass find their weights by identity, and must find them whole."""
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


def micro_batches(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that a pipeline schedule needs enough micro-batches to fill its stages."""
    schedule, stages = recipe.schedule, recipe.stages
    if schedule in ("none", "gpipe"):
        return None
    needed = stages if schedule == "dualpipev" else recipe.pipeline_parallel
    if recipe.accumulation < needed:
        return Reason(
            "micro-batches", f"{recipe.accumulation} micro-batches; {schedule} over {stages} stages needs {needed}"
        )
    return None


def equal_rounds(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that interleaved schedules run max(1, micro-batches // pipeline_parallel) equal rounds.

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


def v_shape(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that V-shaped schedules give each rank one stage going down and one coming up."""
    if recipe.schedule in V_SHAPED_SCHEDULES and recipe.virtual_stages != 2:
        return Reason("virtual-stages", f"{recipe.schedule} takes virtual_stages 2, not {recipe.virtual_stages}")
    return None


def tied(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that tied embeddings would have to live on the first and the last stage at once."""
    if problem.model.tied_embeddings and recipe.pipeline_parallel > 1:
        return Reason("tied-pipeline", "tied embeddings need the first and last stage on one rank")
    return None


def precision(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that DistributedDataParallel has no mixed precision of its own."""
    if recipe.replication == "ddp" and problem.precision != "fp32":
        return Reason("ddp-precision", f"replication ddp casts no parameters to {problem.precision}; use replicate")
    return None


def secondary_partition(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that a second copy of the parameters is a part of ZeRO++."""
    if recipe.secondary_partition > 1:
        return Reason(
            "torch-secondary", "the torch engine has no secondary partition; use hybrid-K or engine deepspeed"
        )
    return None


def compilation(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that a compiled layer is one piece to whatever would look into it."""
    if not recipe.compile:
        return None
    if recipe.recompute == "full" and recipe.tensor_parallel > 1:
        return Reason(
            "compile-recompute-tensor",
            "torch 2.13 raises where a compiled tensor-parallel layer is to be recomputed: use recompute none",
        )
    if recipe.recompute == "selective":
        return Reason(
            "compile-selective", "selective recompute chooses among a layer's operations, which compile hides from it"
        )
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        return Reason(
            "compile-split-backward",
            f"{recipe.schedule} splits the backward pass, and a compiled layer's backward is one piece",
        )
    return None


def pieces(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that the positions of a rank, its share under context and sequence parallelism, make equal pieces."""
    shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
    held = problem.sequence_length // (recipe.context_parallel * shards)
    for name in ("loss_chunks", "feed_forward_tiles"):
        pieces = getattr(recipe, name)
        if held % pieces:
            return Reason("pieces-divide", f"{name} {pieces} does not divide the {held} positions that a rank holds")
    if recipe.feed_forward_tiles > 1 and recipe.recompute == "selective":
        return Reason(
            "tiles-selective", "selective recompute keeps the matrix products' outputs that feed_forward_tiles frees"
        )
    return None


def host_memory(recipe: Recipe, problem: Problem) -> Reason | None:
    """Check that offload has another memory to move to, and a time when the device can do without."""
    if recipe.offload not in ("none", "optimizer+parameters"):
        return Reason("torch-offload", f"the torch engine offloads optimizer+parameters or none, not {recipe.offload}")
    moves = recipe.activation_offload or recipe.offload != "none"
    if moves and problem.cluster.backend == "cpu":
        return Reason("offload-cpu", "a cpu device computes in the host's memory: there is no other to offload to")
    p, _, o = recipe.sharding.degrees
    if recipe.offload != "none" and (p == 1 or p < o) and recipe.copies > 1:
        return Reason(
            "offload-sharding",
            f"offload {recipe.offload} brings parameters to the device for each use: it needs zero-3 or hybrid "
            f"sharding, not {recipe.sharding_name}",
        )
    return None


def gradient_sync(recipe: Recipe, _: Problem) -> Reason | None:
    """Check that reducing gradients at each micro-batch is a choice only where they could wait."""
    if recipe.gradient_sync == "last":
        return None
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        return Reason(
            "gradient-sync-split-backward",
            f"{recipe.schedule} finishes weight gradients out of order: reduce at the last",
        )
    p, g, o = recipe.sharding.degrees
    reduces_late = o == 1 or p == o < recipe.copies
    if reduces_late:
        return None
    if 1 < g < o:
        return Reason(
            "gradient-sync-sharding",
            f"{recipe.sharding_name} holds gradients over {g} replicas until the last micro-batch: choose last",
        )
    same = "runs as zero-2" if g == 1 else "is what it does at any rate"
    return Reason("gradient-sync-sharding", f"{recipe.sharding_name} with gradient_sync each {same}: choose last")


RULES: tuple[Rule, ...] = (
    ddp,
    sharding,
    split_backward,
    micro_batches,
    equal_rounds,
    v_shape,
    tied,
    precision,
    secondary_partition,
    compilation,
    pieces,
    host_memory,
    gradient_sync,
)
