"""Which recipes are legal for a problem, and why the others are not.

A search checks every point of a space, so a refusal is a value. Rules are in the order in which a person would check
them; the first that refuses gives the reason. Those of one engine were found by running every combination against one
process on torch 2.13 and DeepSpeed 0.19.8; `tests/system/test_numerics*.py` run the legal ones. Reasons that begin
with "wrong" name combinations that run at full speed with other weights than one process would have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import (
    INTERLEAVED_SCHEDULES,
    LOOPED_SCHEDULES,
    SPLIT_BACKWARD_SCHEDULES,
    V_SHAPED_SCHEDULES,
    Recipe,
)


@dataclass(frozen=True)
class Reason:
    """Why a recipe is illegal: a stable code to count by, and the sentence with the numbers."""

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


Rule = Callable[[Recipe, Problem], Iterator[Reason]]
"""Yields why a recipe is illegal; its docstring states what is required."""


def why_illegal(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first reason for which `recipe` cannot solve `problem`, or None where it is legal."""
    return why_no_frame(recipe, problem) or why_illegal_in_frame(recipe, problem)


def why_no_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first of `FRAME_RULES` that refuses."""
    return _first(FRAME_RULES, recipe, problem)


def why_illegal_in_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first of the other rules that refuses."""
    return _first(LATER_RULES, recipe, problem) or _first(ENGINE_RULES[recipe.engine], recipe, problem)


def _first(rules: tuple[Rule, ...], recipe: Recipe, problem: Problem) -> Reason | None:
    return next((reason for rule in rules for reason in rule(recipe, problem)), None)


def devices_fit(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """A recipe uses at most the cluster's devices."""
    if recipe.devices > problem.cluster.devices:
        yield Reason("devices", f"{recipe.devices} devices of {problem.cluster.devices} in the cluster")


def tensor_parallel_divides(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Tensor parallelism cuts heads, feed-forward and vocabulary into equal shares."""
    model, tp = problem.model, recipe.tensor_parallel
    parts = (("heads", model.heads), ("ffn_hidden", model.ffn_hidden), ("padded vocabulary", model.padded_vocabulary))
    for part, size in parts:
        if size % tp:
            yield Reason("tensor-parallel-divides", f"tensor_parallel {tp} does not divide {part} {size}")
    if model.kv_heads % tp and tp % model.kv_heads:
        yield Reason("kv-heads", f"tensor_parallel {tp} neither divides kv_heads {model.kv_heads} nor is a multiple")


def context_parallel_divides(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Context parallelism cuts sequences and a tensor-parallel rank's heads into equal parts."""
    cp, tp, length = recipe.context_parallel, recipe.tensor_parallel, problem.sequence_length
    heads, kv_heads = problem.model.heads // tp, max(1, problem.model.kv_heads // tp)
    code, of_rank = "context-parallel-heads", "heads of a tensor-parallel rank"
    if length % cp:
        yield Reason("context-parallel-divides", f"context_parallel {cp} does not divide sequence_length {length}")
    if heads % cp:
        yield Reason(code, f"context_parallel {cp} does not divide the {heads} {of_rank}")
    if kv_heads % cp and cp % kv_heads:
        yield Reason(code, f"context_parallel {cp} neither divides the {kv_heads} kv {of_rank} nor is a multiple")


def stages_hold_layers(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Every pipeline stage holds at least one layer, and all of them together the model's."""
    if recipe.stages > problem.model.layers:
        yield Reason("too-many-stages", f"{recipe.stages} pipeline stages for {problem.model.layers} layers")
    if recipe.layers_per_stage and sum(recipe.layers_per_stage) != problem.model.layers:
        yield Reason("layers-per-stage", f"stages of {recipe.layers_name} layers for {problem.model.layers} layers")


def schedule_fits(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """A schedule exists exactly where there is a pipeline; looped ones need more than one chunk per rank."""
    name, chunks = f"schedule {recipe.schedule}", recipe.virtual_stages
    if (recipe.schedule == "none") != (recipe.pipeline_parallel == 1):
        yield Reason("schedule-without-pipeline", f"{name} with pipeline_parallel {recipe.pipeline_parallel}")
    looped = recipe.schedule in LOOPED_SCHEDULES
    if looped and chunks < 2:
        yield Reason("virtual-stages", f"{name} needs virtual_stages >= 2")
    if not looped and chunks != 1:
        yield Reason("virtual-stages", f"{name} takes virtual_stages 1, not {chunks}")


def batch_matches(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Micro_batch_seqs * accumulation * data_parallel is the problem's global batch."""
    if (batch := recipe.global_batch_seqs) not in problem.global_batch:
        product = f"{recipe.micro_batch_seqs} x {recipe.accumulation} x {recipe.data_parallel} = {batch}"
        yield Reason("global-batch", f"micro-batch x accumulation x replicas = {product}, not {problem.global_batch}")


def sequence_parallel_divides(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Sequence parallelism divides the positions of a context rank over the tensor-parallel group."""
    tp, held = recipe.tensor_parallel, problem.sequence_length // recipe.context_parallel
    if recipe.sequence_parallel and tp == 1:
        yield Reason("sequence-parallel-alone", "sequence_parallel needs tensor_parallel > 1")
    if recipe.sequence_parallel and held % tp:
        is_whole = recipe.context_parallel == 1
        share = f"sequence_length {held}" if is_whole else f"the {held} positions of a context rank"
        yield Reason("sequence-parallel-divides", f"tensor_parallel {tp} does not divide {share}")


def sharding_divides(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Sharding degrees rise from parameters to optimizer and divide one another and the copies."""
    degrees = recipe.sharding.degrees
    if any(small < 1 or large % small for small, large in itertools.pairwise((*degrees, recipe.copies))):
        copies = recipe.copies_in_words()
        yield Reason("sharding-divides", f"sharding degrees {degrees} do not divide one another and {copies}")


def untied_pipeline(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """A pipeline has first and last stage on different ranks."""
    if problem.model.tied_embeddings and recipe.pipeline_parallel > 1:
        yield Reason("tied-pipeline", "tied embeddings need the first and last stage on one rank")


FRAME_RULES: tuple[Rule, ...] = (
    devices_fit,
    tensor_parallel_divides,
    context_parallel_divides,
    stages_hold_layers,
    schedule_fits,
    batch_matches,
)
"""Rules about degrees, devices, schedule and batch alone: a space checks them once for all points that share these."""
LATER_RULES: tuple[Rule, ...] = (sequence_parallel_divides, sharding_divides)


def torch_replicas(recipe: Recipe, _: Problem) -> Iterator[Reason]:
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


def torch_split_backward(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Schedules that split the backward pass find their weights by identity, and must find them whole."""
    name = recipe.schedule
    if name not in SPLIT_BACKWARD_SCHEDULES:
        return
    if recipe.sharding.parameters > 1:
        yield Reason(
            "split-backward-resharding",
            f"wrong gradients: {name} splits the backward pass, and with parameters resharded after the forward pass "
            "the weight half is computed against other tensors",
        )
    if recipe.sharding.gradients > 1:
        yield Reason(
            "split-backward-gradients",
            f"{name} finishes weight gradients out of order: they cannot be sharded at each micro-batch",
        )
    if recipe.recompute == "selective":
        yield Reason(
            "split-backward-selective", f"selective recompute keeps tensors for one backward pass; {name} has two"
        )


def torch_schedules(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """V-shaped schedules go down and up once, a pipeline needs enough micro-batches, interleaved ones equal rounds."""
    schedule, ranks, stages, batches = recipe.schedule, recipe.pipeline_parallel, recipe.stages, recipe.accumulation
    if schedule in V_SHAPED_SCHEDULES and recipe.virtual_stages != 2:
        yield Reason("virtual-stages", f"{schedule} takes virtual_stages 2, not {recipe.virtual_stages}")
    needed = stages if schedule == "dualpipev" else ranks
    if schedule not in ("none", "gpipe") and batches < needed:
        yield Reason("micro-batches", f"{batches} micro-batches; {schedule} over {stages} stages needs {needed}")
    rounds = max(1, batches // ranks)
    if schedule in INTERLEAVED_SCHEDULES and batches % rounds:  # raises when torch builds the schedule
        how = f"runs {batches} micro-batches in {rounds} rounds, which does not divide them"
        yield Reason("interleaved-rounds", f"{schedule} over {ranks} ranks {how}")


def torch_features(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """DistributedDataParallel has no mixed precision of its own, and hpZ is a part of ZeRO++."""
    if recipe.replication == "ddp" and problem.precision != "fp32":
        yield Reason("ddp-precision", f"replication ddp casts no parameters to {problem.precision}; use replicate")
    if recipe.secondary_partition > 1:
        yield Reason("torch-secondary", "the torch engine has no secondary partition; use hybrid-K or engine deepspeed")


def torch_compilation(recipe: Recipe, _: Problem) -> Iterator[Reason]:
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


def torch_pieces(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """The positions of a rank, its share under context and sequence parallelism, make equal pieces."""
    shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
    held = problem.sequence_length // (recipe.context_parallel * shards)
    for name, count in (("loss_chunks", recipe.loss_chunks), ("feed_forward_tiles", recipe.feed_forward_tiles)):
        if held % count:
            yield Reason("pieces-divide", f"{name} {count} does not divide the {held} positions that a rank holds")
    if recipe.feed_forward_tiles > 1 and recipe.recompute == "selective":
        yield Reason(
            "tiles-selective", "selective recompute keeps the matrix products' outputs that feed_forward_tiles frees"
        )


def torch_offload(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
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


def torch_gradient_sync(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Gradients are reduced at each micro-batch only where they could wait."""
    p, g, o = recipe.sharding.degrees
    code, name = "gradient-sync-sharding", recipe.sharding_name
    if recipe.gradient_sync == "last":
        return
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        why = f"{recipe.schedule} finishes weight gradients out of order: reduce at the last"
        yield Reason("gradient-sync-split-backward", why)
    elif 1 < g < o:
        yield Reason(code, f"{name} holds gradients over {g} replicas until the last micro-batch: choose last")
    elif o > 1 and not p == o < recipe.copies:
        same = "runs as zero-2" if g == 1 else "is what it does at any rate"
        yield Reason(code, f"{name} with gradient_sync each {same}: choose last")


def deepspeed_features(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """DeepSpeed keeps replicas itself, numbers ranks in one way, and leaves sequences whole here."""
    engine = "the deepspeed engine"
    if recipe.context_parallel > 1:
        yield Reason("deepspeed-context", f"{engine} has no context parallelism; use engine torch")
    if recipe.replication != "replicate":
        yield Reason("deepspeed-replication", f"{engine} keeps replicas itself, not by {recipe.replication}")
    if recipe.rank_order != "tp-dp-pp":
        yield Reason("deepspeed-rank-order", f"{engine} numbers ranks as tp-dp-pp, not {recipe.rank_order}")


def deepspeed_sharding(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Sharding is ZeRO 0 to 3 over all replicas; MiCS, its hybrid sharding, was removed from DeepSpeed."""
    n, (p, g, o) = recipe.data_parallel, recipe.sharding.degrees
    if (p, g, o) not in {(1, 1, 1), (1, 1, n), (1, n, n), (n, n, n)}:
        instead = "DeepSpeed has removed MiCS; use zero-3 with secondary_partition"
        hint = instead if p == g == o else "it has ZeRO 0 to 3"
        yield Reason("deepspeed-sharding", f"no sharding over {p}, {g} and {o} of {n} replicas: {hint}")


def deepspeed_pipeline(recipe: Recipe, _: Problem) -> Iterator[Reason]:
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


def deepspeed_tensor_parallel(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
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


def deepspeed_offload(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Offload is a part of ZeRO, and parameters leave the device only where each is gathered for its use: ZeRO-3."""
    name = recipe.sharding_name
    if recipe.offload == "nvme" and problem.cluster.nvme_path is None:
        yield Reason("offload-nvme", "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path")
    if recipe.offload != "none" and recipe.data_parallel > 1 and recipe.sharding.optimizer == 1:
        yield Reason("offload-sharding", f"offload is a part of ZeRO 1 to 3; sharding is {name}")
    if recipe.offload not in ("optimizer+parameters", "nvme"):
        return
    if recipe.pipeline_parallel > 1:
        yield Reason("offload-pipeline", "parameters are offloaded by ZeRO-3, which DeepSpeed's pipeline does not take")
    if recipe.sharding.parameters < recipe.data_parallel:
        yield Reason("offload-parameters", f"parameters are offloaded by ZeRO-3; sharding is {name}")


def deepspeed_secondary_partition(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """ZeRO++'s second copy of the parameters is held by equal groups of neighboring ranks."""
    k, n = recipe.secondary_partition, recipe.data_parallel
    if k == 1:
        return
    if recipe.sharding.parameters < n or n == 1:
        text = f"secondary_partition is a part of ZeRO-3; sharding is {recipe.sharding_name}"
        yield Reason("secondary-sharding", text)
    if recipe.offload == "nvme":
        text = "DeepSpeed puts hpZ's second copy where the parameters are, and cannot on a disk"
        yield Reason("secondary-nvme", text)
    if n % k or k == n:
        yield Reason("secondary-divides", f"secondary_partition {k} does not cut {n} replicas into groups")
    if recipe.tensor_parallel > 1:
        text = "wrong parameters: hpZ groups neighboring ranks, which under tensor parallelism hold different shares"
        yield Reason("secondary-tensor", text)


def deepspeed_precision(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """bf16 gradients are summed in fp32 only under ZeRO; skipped steps of fp16 are not reported."""
    if problem.precision == "fp16":
        text = "the deepspeed engine does not report skipped steps yet, as fp16 needs; use bf16"
        yield Reason("precision-fp16", text)
    if problem.precision == "bf16" and recipe.data_parallel > 1 and recipe.sharding.optimizer == 1:
        yield Reason("deepspeed-bf16", "DeepSpeed sums bf16 gradients in fp32 only under ZeRO 1 to 3; sharding is none")


def deepspeed_levers(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Compilation and the levers of memory, except `offload`, are the torch engine's."""
    levers = [lever for lever in recipe.levers if not lever.startswith("offload=")]
    if levers:
        yield Reason("levers-engine", f"only the torch engine has {', '.join(levers)}")


ENGINE_RULES: dict[str, tuple[Rule, ...]] = {
    "torch": (
        torch_replicas,
        torch_split_backward,
        torch_schedules,
        untied_pipeline,
        torch_features,
        torch_compilation,
        torch_pieces,
        torch_offload,
        torch_gradient_sync,
    ),
    "deepspeed": (
        deepspeed_features,
        deepspeed_sharding,
        deepspeed_pipeline,
        untied_pipeline,
        deepspeed_tensor_parallel,
        deepspeed_offload,
        deepspeed_secondary_partition,
        deepspeed_precision,
        deepspeed_levers,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A remark about a legal recipe that its reader should know."""

    code: str
    text: str


def marks(recipe: Recipe, problem: Problem) -> Iterator[Mark]:
    """Yield what a reader should know about a legal recipe: unusual, allowed, and often slow."""
    model, devices, per_node = problem.model, problem.cluster.devices, problem.cluster.devices_per_node
    tp, cp, stages = recipe.tensor_parallel, recipe.context_parallel, recipe.stages
    apart, span = recipe.rank_strides["tp"], recipe.rank_strides["dp"]
    crosses = f"crosses nodes of {per_node} devices"
    if tp > 1 and tp * apart > per_node:
        spread = f", its ranks {apart} apart," if apart > 1 else ""
        yield Mark(code="tp-beyond-node", text=f"tensor_parallel {tp}{spread} {crosses}")
    if cp > 1 and span * cp > per_node:
        spread = f"tensor_parallel {span} x" if span == tp else f"groups of {span} ranks x"
        yield Mark(code="cp-beyond-node", text=f"{spread} context_parallel {cp} {crosses}")
    if tp > model.kv_heads:
        copies = tp // model.kv_heads
        yield Mark(code="kv-replicated", text=f"each of {model.kv_heads} kv heads is held by {copies} ranks")
    if not recipe.layers_per_stage and (more := model.layers % stages):
        text = f"{model.layers} layers over {stages} stages: the first {more} hold one more"
        yield Mark(code="uneven-stages", text=text)
    if recipe.devices < devices:
        yield Mark(code="idle-devices", text=f"{devices - recipe.devices} of {devices} devices stay idle")
