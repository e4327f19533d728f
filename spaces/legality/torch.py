"""Rules of the torch engine."""

from __future__ import annotations

from collections.abc import Iterator

from frontrunner.spaces.legality.common import Reason, Rule
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import INTERLEAVED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, V_SHAPED_SCHEDULES, Recipe


def replicas(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """DistributedDataParallel is right only by itself; sharding differs by kind only where states are over all."""
    if recipe.replication == "ddp":
        if recipe.copies == 1:
            yield Reason("ddp-alone", "replication ddp needs data_parallel > 1 or context_parallel > 1")
        if recipe.sharding.degrees != (1, 1, 1):
            yield Reason("ddp-sharding", f"replication ddp keeps whole replicas; sharding is {recipe.sharding_name}")
        if recipe.pipeline_parallel > 1:
            yield Reason(
                "ddp-pipeline",
                f"wrong gradients: DistributedDataParallel under pipelining scales them by the {recipe.accumulation} "
                "micro-batches; use replication replicate",
            )
        if recipe.tensor_parallel > 1:
            yield Reason("ddp-tensor", "DistributedDataParallel cannot broadcast tensor-parallel parameters")
    p, g, o = recipe.sharding.degrees
    if o != recipe.copies and not p == g == o:
        yield Reason(
            "sharding-levels",
            f"the torch engine has no sharding over {p}, {g} and {o} of {recipe.copies_in_words()}: where they differ, "
            "optimizer states are spread over all",
        )


def split_backward(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Schedules that split the backward pass find their weights by identity, and must find them whole."""
    if recipe.schedule not in SPLIT_BACKWARD_SCHEDULES:
        return
    if recipe.sharding.parameters > 1:
        yield Reason(
            "split-backward-resharding",
            f"wrong gradients: {recipe.schedule} splits the backward pass, and with parameters resharded after the "
            "forward pass the weight half is computed against other tensors",
        )
    if recipe.sharding.gradients > 1:
        yield Reason(
            "split-backward-gradients",
            f"{recipe.schedule} finishes weight gradients out of order: they cannot be sharded at each micro-batch",
        )
    if recipe.recompute == "selective":
        yield Reason(
            "split-backward-selective",
            f"selective recompute keeps tensors for one backward pass; {recipe.schedule} has two",
        )


def schedules(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """V-shaped schedules go down and up once, a pipeline needs enough micro-batches, interleaved ones equal rounds."""
    schedule, ranks, stages, batches = recipe.schedule, recipe.pipeline_parallel, recipe.stages, recipe.accumulation
    if schedule in V_SHAPED_SCHEDULES and recipe.virtual_stages != 2:
        yield Reason("virtual-stages", f"{schedule} takes virtual_stages 2, not {recipe.virtual_stages}")
    needed = stages if schedule == "dualpipev" else ranks
    if schedule not in ("none", "gpipe") and batches < needed:
        yield Reason("micro-batches", f"{batches} micro-batches; {schedule} over {stages} stages needs {needed}")
    rounds = max(1, batches // ranks)
    if schedule in INTERLEAVED_SCHEDULES and batches % rounds:  # raises when torch builds the schedule
        yield Reason(
            "interleaved-rounds",
            f"{schedule} over {ranks} ranks runs {batches} micro-batches in {rounds} rounds, which does not divide "
            "them",
        )
    if problem.model.tied_embeddings and ranks > 1:
        yield Reason("tied-pipeline", "tied embeddings need the first and last stage on one rank")


def features(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """DistributedDataParallel has no mixed precision of its own, and hpZ is a part of ZeRO++."""
    if recipe.replication == "ddp" and problem.precision != "fp32":
        yield Reason("ddp-precision", f"replication ddp casts no parameters to {problem.precision}; use replicate")
    if recipe.secondary_partition > 1:
        yield Reason("torch-secondary", "the torch engine has no secondary partition; use hybrid-K or engine deepspeed")


def compilation(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """A compiled layer is one piece, which nothing looks into."""
    if not recipe.compile:
        return
    if recipe.recompute == "full" and recipe.tensor_parallel > 1:
        yield Reason(
            "compile-recompute-tensor",
            "torch 2.13 raises where a compiled tensor-parallel layer is to be recomputed: use recompute none",
        )
    if recipe.recompute == "selective":
        yield Reason(
            "compile-selective", "selective recompute chooses among a layer's operations, which compile hides from it"
        )
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        yield Reason(
            "compile-split-backward",
            f"{recipe.schedule} splits the backward pass, and a compiled layer's backward is one piece",
        )


def pieces(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """The positions of a rank, its share under context and sequence parallelism, make equal pieces."""
    shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
    held = problem.sequence_length // (recipe.context_parallel * shards)
    for name in ("loss_chunks", "feed_forward_tiles"):
        count = getattr(recipe, name)
        if held % count:
            yield Reason("pieces-divide", f"{name} {count} does not divide the {held} positions that a rank holds")
    if recipe.feed_forward_tiles > 1 and recipe.recompute == "selective":
        yield Reason(
            "tiles-selective", "selective recompute keeps the matrix products' outputs that feed_forward_tiles frees"
        )


def host_memory(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Offload needs a device that has another memory, and a time when the device can do without the data."""
    if recipe.offload not in ("none", "optimizer+parameters"):
        yield Reason("torch-offload", f"the torch engine offloads optimizer+parameters or none, not {recipe.offload}")
    if (recipe.activation_offload or recipe.offload != "none") and problem.cluster.backend == "cpu":
        yield Reason("offload-cpu", "a cpu device computes in the host's memory: there is no other to offload to")
    p, _, o = recipe.sharding.degrees
    if recipe.offload != "none" and (p == 1 or p < o) and recipe.copies > 1:
        yield Reason(
            "offload-sharding",
            f"offload {recipe.offload} brings parameters to the device for each use: it needs zero-3 or hybrid "
            f"sharding, not {recipe.sharding_name}",
        )


def gradient_sync(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Gradients are reduced at each micro-batch only where they could wait."""
    p, g, o = recipe.sharding.degrees
    if recipe.gradient_sync == "last":
        return
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        yield Reason(
            "gradient-sync-split-backward",
            f"{recipe.schedule} finishes weight gradients out of order: reduce at the last",
        )
    elif 1 < g < o:
        yield Reason(
            "gradient-sync-sharding",
            f"{recipe.sharding_name} holds gradients over {g} replicas until the last micro-batch: choose last",
        )
    elif o > 1 and not p == o < recipe.copies:
        same = "runs as zero-2" if g == 1 else "is what it does at any rate"
        yield Reason("gradient-sync-sharding", f"{recipe.sharding_name} with gradient_sync each {same}: choose last")


RULES: tuple[Rule, ...] = (
    replicas,
    split_backward,
    schedules,
    features,
    compilation,
    pieces,
    host_memory,
    gradient_sync,
)
