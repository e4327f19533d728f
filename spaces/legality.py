"""Which recipes are legal for a problem, and why the others are not.

A search checks every point of a space, so a refusal is a value; the first rule that refuses gives
the reason. Rules of one engine were found by running every combination against one process on torch
2.13 and DeepSpeed 0.19.8; `tests/system/test_numerics*.py` run the legal ones. Reasons that begin
with "wrong" name combinations that run at full speed with other weights than one process would
have.

The rules here are those of the built-in trainer. Those marked `universal` hold for every trainer;
`trainers` has the rules of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, Recipe
from frontrunner.spaces.trainers import (
    TRAINERS,
    Refusals,
    Rules,
    grouped_heads,
    grouped_products,
    interleaved_rounds,
    micro_batches,
    next_lower,
    quantized_choices,
    v_shaped_stages,
    zero_levels,
    zero_offload,
    zero_pipeline,
    zero_quantized,
    zero_secondary,
)


@dataclass(frozen=True)
class Reason:
    """Why a recipe is illegal, or a remark on it: a stable code to count by, and the sentence with
    the numbers.
    """

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


FP8_MULTIPLES = {"tensorwise": 16, "rowwise": 16, "mxfp8": 32}
"""What both sides of a factor in 8 bits divide by: torch's `_scaled_mm`
(aten/src/ATen/native/cuda/ScaledBlas.cpp), and torchao's casts to blocks
(prototype/mx_formats/kernels.py, `mxfp8_quantize_cuda`).
"""
OTHER_NUMBERS = 'trains with other numbers: set problem.tolerance = "quantized" to accept that'
NO_DISK = "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path"
_UNIVERSAL: set[Rules] = set()


def universal(rule: Rules) -> Rules:
    """Mark a rule that holds for every trainer: it follows from mathematics, the model, the cluster
    or the problem. All other rules here follow from the code of the built-in trainer.
    """
    _UNIVERSAL.add(rule)
    return rule


def why_illegal(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first reason for which `recipe` cannot solve `problem`, or None where it is
    legal.
    """
    return why_no_frame(recipe, problem) or why_illegal_in_frame(recipe, problem)


def why_no_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first reason in degrees, devices, schedule and batch alone: one for all points
    that share these.
    """
    rules = FRAME_RULES if problem.trainer is None else _universal_of(FRAME_RULES)
    return _first(rules, recipe, problem)


def why_illegal_in_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first of the other reasons."""
    return _first(rules_of(recipe.engine, problem.trainer), recipe, problem)


def _first(rules: Iterable[Rules], recipe: Recipe, problem: Problem) -> Reason | None:
    return next((Reason(*reason) for rule in rules for reason in rule(recipe, problem)), None)


@universal
def _equal_shares(recipe: Recipe, problem: Problem) -> Refusals:
    """Tensor ranks have equal shares of the model."""
    model, tp = problem.model, recipe.tensor_parallel
    if recipe.devices > problem.cluster.devices:
        yield "devices", f"{recipe.devices} devices of {problem.cluster.devices} in the cluster"
    parts = (
        ("heads", model.attention.heads),
        ("ffn_hidden", model.feed_forward.ffn_hidden),
        ("dense_ffn_hidden", model.dense.ffn_hidden if model.dense else 0),
        ("padded vocabulary", model.embedding.padded_vocabulary),
    )
    for part, size in parts:
        if size % tp:
            yield "tensor-parallel-divides", f"tensor_parallel {tp} does not divide {part} {size}"


@universal
def _equal_positions(recipe: Recipe, problem: Problem) -> Refusals:
    """Context ranks have equally many positions of a sequence."""
    length, cp = problem.sequence_length, recipe.context_parallel
    if length % cp:
        yield (
            "context-parallel-divides",
            f"context_parallel {cp} does not divide sequence_length {length}",
        )


def _context_heads(recipe: Recipe, problem: Problem) -> Refusals:
    """The built-in trainer's context ranks exchange positions for heads."""
    model, tp, cp = problem.model, recipe.tensor_parallel, recipe.context_parallel
    heads, kv_heads = model.attention.heads // tp, max(1, model.attention.kv_heads // tp)
    code, of_rank = "context-parallel-heads", "heads of a tensor-parallel rank"
    if heads % cp:
        yield code, f"context_parallel {cp} does not divide the {heads} {of_rank}"
    if kv_heads % cp and cp % kv_heads:
        yield (
            code,
            f"context_parallel {cp} neither divides the {kv_heads} kv {of_rank} nor is a multiple",
        )


@universal
def _stages_and_batch(recipe: Recipe, problem: Problem) -> Refusals:
    """Every stage has a layer, and a step has the problem's batch."""
    layers, schedule, chunks = len(problem.model.layers), recipe.schedule, recipe.virtual_stages
    pp = recipe.pipeline_parallel
    if recipe.stages > layers:
        yield "too-many-stages", f"{recipe.stages} pipeline stages for {layers} layers"
    if recipe.layers_per_stage and sum(recipe.layers_per_stage) != layers:
        yield "layers-per-stage", f"stages of {recipe.layers_name} layers for {layers} layers"
    if (schedule == "none") != (pp == 1):
        yield "schedule-without-pipeline", f"schedule {schedule} with pipeline_parallel {pp}"
    if schedule in LOOPED_SCHEDULES and chunks < 2:
        yield "virtual-stages", f"schedule {schedule} needs virtual_stages >= 2"
    if schedule not in LOOPED_SCHEDULES and chunks != 1:
        yield "virtual-stages", f"schedule {schedule} takes virtual_stages 1, not {chunks}"
    if (batch := recipe.global_batch_seqs) not in problem.global_batch:
        product = (
            f"{recipe.micro_batch_seqs} x {recipe.accumulation} x {recipe.data_parallel} = {batch}"
        )
        yield (
            "global-batch",
            f"micro-batch x accumulation x replicas = {product}, not {problem.global_batch}",
        )


@universal
def _shares(recipe: Recipe, problem: Problem) -> Refusals:
    """Sequence parallelism divides the positions of a context rank, sharding the copies of the
    model.
    """
    tp, held = recipe.tensor_parallel, problem.sequence_length // recipe.context_parallel
    if recipe.sequence_parallel and tp == 1:
        yield "sequence-parallel-alone", "sequence_parallel needs tensor_parallel > 1"
    if recipe.sequence_parallel and held % tp:
        is_whole = recipe.context_parallel == 1
        share = f"sequence_length {held}" if is_whole else f"the {held} positions of a context rank"
        yield "sequence-parallel-divides", f"tensor_parallel {tp} does not divide {share}"
    degrees = recipe.sharding.degrees
    if any(
        small < 1 or large % small for small, large in itertools.pairwise((*degrees, recipe.copies))
    ):
        copies = recipe.copies_in_words()
        yield (
            "sharding-divides",
            f"sharding degrees {degrees} do not divide one another and {copies}",
        )


def _experts_engine(recipe: Recipe, problem: Problem) -> Refusals:
    """Only the torch engine trains latent attention and experts."""
    if recipe.engine == "torch":
        return
    if isinstance(problem.model.attention, LatentAttention):
        yield (
            "latent-engine",
            f"the {recipe.engine} engine trains no latent attention; use engine torch",
        )
    if problem.model.mixture:
        yield (
            "experts-engine",
            f"the {recipe.engine} engine trains no mixture of experts; use engine torch",
        )


@universal
def _experts(recipe: Recipe, problem: Problem) -> Refusals:
    """Ranks of a stage share whole experts, or equal parts of each."""
    model, e, tp = problem.model, recipe.expert_parallel, recipe.tensor_parallel
    etp, sharing = recipe.expert_tensor_parallel, recipe.expert_ranks
    mixture = model.mixture
    if mixture is None:
        if sharing > 1:
            key, degree = ("expert_parallel", e) if e > 1 else ("expert_tensor_parallel", etp)
            yield "experts-none", f"{key} {degree} for a model without experts"
        return
    experts, width = mixture.experts, mixture.ffn_hidden
    ranks = tp * recipe.copies
    if experts % e:
        text = f"expert_parallel {e} does not divide the {experts} experts"
        yield "experts-divide", f"{text}; {next_lower(e, experts)} does"
    if width % etp:
        text = f"expert_tensor_parallel {etp} does not divide ffn_hidden {width} of an expert"
        yield "experts-width", f"{text}; {next_lower(etp, width)} does"
    if ranks % sharing:
        degrees = (
            f"expert_parallel {e}"
            if etp == 1
            else f"expert_parallel {e} x expert_tensor_parallel {etp}"
        )
        text = f"{degrees} does not divide the {ranks} ranks of a pipeline stage"
        if ranks % etp == 0:
            text = f"{text}; expert_parallel {next_lower(e, experts, ranks // etp)} does"
        yield "experts-ranks", text


def _experts_layer(recipe: Recipe, problem: Problem) -> Refusals:
    """Limits of the built-in trainer's layer of experts."""
    model, tp = problem.model, recipe.tensor_parallel
    if model.mixture is None:
        return
    if tp > 1 and not (recipe.sequence_parallel and recipe.expert_ranks > 1):
        needed = "sequence_parallel, and expert_parallel or expert_tensor_parallel > 1"
        yield "experts-tensor", f"with experts, tensor_parallel {tp} needs {needed}"
    if model.mixture.balancing == "loss" and recipe.feed_forward_tiles > 1:
        text = (
            f"in {recipe.feed_forward_tiles} feed_forward_tiles a loss that balances a sequence"
            " sees parts of it"
        )
        yield "experts-tiles", f"{text}; use 1, or model.balancing bias"
    if recipe.compile and recipe.recompute != "none":
        text = (
            "a layer with experts is compiled in part, and torch recomputes no compiled part; use"
            " recompute none"
        )
        yield "experts-compile", text


def _spread_experts(recipe: Recipe, problem: Problem) -> Refusals:
    """Experts are averaged over other ranks than the rest."""
    p, g, o = recipe.sharding.degrees
    if recipe.expert_ranks == 1 or problem.model.mixture is None:
        return
    key = "expert_parallel" if recipe.expert_parallel > 1 else "expert_tensor_parallel"
    if problem.model.mixture.has_biases and recipe.expert_tensor_parallel > 1:
        text = (
            "each rank of expert_tensor_parallel would add an expert's last bias to what all of"
            " them sum up"
        )
        yield "experts-biases", f"{text}; use expert_parallel"
    if recipe.replication == "ddp":
        yield (
            "experts-ddp",
            "DistributedDataParallel averages all gradients over all replicas; use replicate",
        )
    if (p, g, o) not in itertools.product((1, recipe.copies), repeat=3):
        yield (
            "experts-sharding",
            f"{key} takes none and zero-1 to zero-3, not {recipe.sharding_name}",
        )
    if recipe.offload != "none":
        yield "experts-offload", f"{key} does not go together with offload"


def _tied(recipe: Recipe, problem: Problem) -> Refusals:
    if problem.model.head.tied and recipe.pipeline_parallel > 1:
        yield "tied-pipeline", "tied embeddings need the first and last stage on one rank"


def _torch_replicas(recipe: Recipe, _: Problem) -> Refusals:
    """DistributedDataParallel is right only by itself; sharding differs by kind only where states
    are over all.
    """
    if recipe.replication == "ddp":
        if recipe.copies == 1:
            yield "ddp-alone", "replication ddp needs data_parallel > 1 or context_parallel > 1"
        if recipe.sharding.degrees != (1, 1, 1):
            yield (
                "ddp-sharding",
                f"replication ddp keeps whole replicas; sharding is {recipe.sharding_name}",
            )
        if recipe.pipeline_parallel > 1:
            by = f"the {recipe.accumulation} micro-batches; use replication replicate"
            yield (
                "ddp-pipeline",
                f"wrong gradients: DistributedDataParallel under pipelining scales them by {by}",
            )
        if recipe.tensor_parallel > 1:
            yield (
                "ddp-tensor",
                "DistributedDataParallel cannot broadcast tensor-parallel parameters",
            )
    p, g, o = recipe.sharding.degrees
    if o != recipe.copies and not p == g == o:
        what = f"no sharding over {p}, {g} and {o} of {recipe.copies_in_words()}"
        instead = "where they differ, optimizer states are spread over all"
        yield "sharding-levels", f"the torch engine has {what}: {instead}"


def _torch_split_backward(recipe: Recipe, _: Problem) -> Refusals:
    """A split backward pass finds its weights by identity, whole."""
    name = recipe.schedule
    if name in SPLIT_BACKWARD_SCHEDULES:
        if recipe.sharding.parameters > 1:
            text = (
                "with parameters resharded after the forward pass the weight half is computed"
                " against other tensors"
            )
            yield (
                "split-backward-resharding",
                f"wrong gradients: {name} splits the backward pass, and {text}",
            )
        if recipe.sharding.gradients > 1:
            text = (
                f"{name} finishes weight gradients out of order: they cannot be sharded at each"
                " micro-batch"
            )
            yield "split-backward-gradients", text
        if recipe.recompute == "selective":
            yield (
                "split-backward-selective",
                f"selective recompute keeps tensors for one backward pass; {name} has two",
            )


def _torch_micro_batches(recipe: Recipe, _: Problem) -> Refusals:
    """The built-in trainer fills its pipelines."""
    name, stages, batches = recipe.schedule, recipe.stages, recipe.accumulation
    needed = stages if name == "dualpipev" else recipe.pipeline_parallel
    if name not in ("none", "gpipe") and batches < needed:
        yield (
            "micro-batches",
            f"{micro_batches(batches)}; {name} over {stages} stages needs {needed}",
        )


def _quantized_engine(recipe: Recipe, _: Problem) -> Refusals:
    if recipe.engine != "deepspeed" and (what := quantized_choices(recipe)):
        yield "quantized-engine", f"only the deepspeed engine has {what}"


@universal
def _quantized_numbers(recipe: Recipe, problem: Problem) -> Refusals:
    """Messages of int8 and int4 give other numbers than one process."""
    if problem.tolerance != "quantized" and (what := quantized_choices(recipe)):
        yield "quantized-tolerance", f"{what} {OTHER_NUMBERS}"


def _fp8_engine(recipe: Recipe, problem: Problem) -> Refusals:
    """The torch engine multiplies in 8 bits what else is in bf16."""
    if recipe.fp8 == "none":
        return
    what = f"fp8 {recipe.fp8}"
    if recipe.engine != "torch":
        yield "fp8-engine", f"only the torch engine has {what}; use fp8 none"
    if problem.precision != "bf16":
        text = (
            f"{what} goes with what else is in bf16: problem.precision is {problem.precision}; use"
            " fp8 none"
        )
        yield "fp8-precision", text


@universal
def _fp8_devices(recipe: Recipe, problem: Problem) -> Refusals:
    """Products in 8 bits have other numbers, on devices that have them."""
    if recipe.fp8 == "none":
        return
    cluster, what = problem.cluster, f"fp8 {recipe.fp8}"
    if problem.tolerance != "quantized":
        yield "fp8-tolerance", f"{what} {OTHER_NUMBERS}"
    if cluster.backend not in ("cuda", "rocm"):
        yield (
            "fp8-backend",
            (
                f"{what} needs products in 8 bits, which {cluster.backend} devices do not have; use"
                " none"
            ),
        )
    elif cluster.peak_flops("fp8") is None and cluster.matmul_flops("fp8") is None:
        text = (
            f"{what} needs products in 8 bits: {cluster.device} states no cluster.peak_tflops.fp8;"
            " use fp8 none"
        )
        yield "fp8-device", text
    elif recipe.fp8 == "mxfp8" and not cluster.mxfp8:
        text = (
            f"{what} needs products with a factor for each 32 values: {cluster.device} states no"
            " cluster.mxfp8"
        )
        yield "fp8-device", f"{text}; use tensorwise, rowwise or none"


def _fp8_torchao(recipe: Recipe, problem: Problem) -> Refusals:
    """Torchao's products in 8 bits need even sizes, a whole backward pass, and for mxfp8 a cast by
    a CUDA kernel.
    """
    if recipe.fp8 == "none":
        return
    cluster = problem.cluster
    if recipe.fp8 == "mxfp8" and cluster.backend != "cuda":
        text = (
            f"torchao casts for fp8 mxfp8 by a CUDA kernel; on {cluster.backend} use tensorwise or"
            " rowwise"
        )
        yield "fp8-backend", text
    yield from _fp8_sizes(recipe, problem)
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        text = (
            f"{recipe.schedule} splits the backward pass, and torchao computes both gradients of a"
            " product at once"
        )
        yield "fp8-split-backward", text
    if recipe.async_tensor_parallel:
        yield "fp8-async", "async_tensor_parallel overlaps products in bf16; choose one of both"


def _fp8_sizes(recipe: Recipe, problem: Problem) -> Refusals:
    """What torchao multiplies divides evenly; those of the gradients of weights add over a rank's
    tokens.
    """
    model, tp, multiple = problem.model, recipe.tensor_parallel, FP8_MULTIPLES[recipe.fp8]
    tokens = (
        recipe.micro_batch_seqs
        * (problem.sequence_length // recipe.context_parallel)
        // recipe.feed_forward_tiles
    )
    kv = model.attention.head_dim * max(1, model.attention.kv_heads // tp)
    sizes = {
        "hidden": model.hidden,
        "width of queries": model.attention.q_hidden // tp,
        "width of keys": kv,
    }
    if model.mixture is None:
        sizes["ffn_hidden"] = model.feed_forward.ffn_hidden // tp
    elif model.mixture.shared_experts:
        sizes["width of shared experts"] = model.mixture.shared_width // tp
    if model.dense is not None:
        sizes["dense_ffn_hidden"] = model.dense.ffn_hidden // tp
    if isinstance(model.attention, LatentAttention):
        sizes |= {
            "key_value_rank": model.attention.key_value_rank,
            "query_rank": model.attention.query_rank or 0,
            "rotary_width": model.attention.rotated_width,
        }
    if uneven := [
        f"{name} {size}" for name, size in (sizes | {"tokens": tokens}).items() if size % multiple
    ]:
        text = (
            f"fp8 {recipe.fp8} multiplies matrices of multiples of {multiple}; a rank has"
            f" {', '.join(uneven)}"
        )
        yield "fp8-divides", text


def _torch_layers(recipe: Recipe, problem: Problem) -> Refusals:
    """A compiled layer is one piece, which nothing looks into; a rank's positions make equal
    pieces.
    """
    is_selective = recipe.recompute == "selective"
    if recipe.replication == "ddp" and problem.precision != "fp32":
        yield (
            "ddp-precision",
            f"replication ddp casts no parameters to {problem.precision}; use replicate",
        )
    if recipe.secondary_partition > 1:
        yield (
            "torch-secondary",
            "the torch engine has no secondary partition; use hybrid-K or engine deepspeed",
        )
    if recipe.compile and recipe.recompute == "full" and recipe.tensor_parallel > 1:
        text = (
            "torch 2.13 raises where a compiled tensor-parallel layer is to be recomputed: use"
            " recompute none"
        )
        yield "compile-recompute-tensor", text
    needed = {"compile": recipe.compile, "sequence_parallel": recipe.sequence_parallel}
    needed["a cuda device"] = problem.cluster.backend == "cuda"
    if recipe.async_tensor_parallel and not all(needed.values()):
        text = (
            "async_tensor_parallel needs"
            f" {', '.join(name for name, is_there in needed.items() if not is_there)}"
        )
        yield "async-tensor-parallel", text
    if recipe.compile and recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        text = (
            f"{recipe.schedule} splits the backward pass, and a compiled layer's backward is one"
            " piece"
        )
        yield "compile-split-backward", text
    shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
    held = problem.sequence_length // (recipe.context_parallel * shards)
    for name, count in (
        ("loss_chunks", recipe.loss_chunks),
        ("feed_forward_tiles", recipe.feed_forward_tiles),
    ):
        if held % count:
            yield (
                "pieces-divide",
                f"{name} {count} does not divide the {held} positions that a rank holds",
            )
    if recipe.feed_forward_tiles > 1 and is_selective:
        yield (
            "tiles-selective",
            "selective recompute keeps the matrix products' outputs that feed_forward_tiles frees",
        )


def _torch_memory(recipe: Recipe, problem: Problem) -> Refusals:
    """Offload needs another memory and a time without the data; gradients are reduced early only if
    they could wait.
    """
    p, g, o = recipe.sharding.degrees
    if recipe.offload not in ("none", "optimizer+parameters"):
        yield (
            "torch-offload",
            f"the torch engine offloads optimizer+parameters or none, not {recipe.offload}",
        )
    if (recipe.activation_offload or recipe.offload != "none") and problem.cluster.backend == "cpu":
        yield (
            "offload-cpu",
            "a cpu device computes in the host's memory: there is no other to offload to",
        )
    if recipe.offload != "none" and (p == 1 or p < o) and recipe.copies > 1:
        why = f"offload {recipe.offload} brings parameters to the device for each use"
        yield (
            "offload-sharding",
            f"{why}: it needs zero-3 or hybrid sharding, not {recipe.sharding_name}",
        )
    if recipe.gradient_sync == "last":
        return
    code = "gradient-sync-sharding"
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        text = f"{recipe.schedule} finishes weight gradients out of order: reduce at the last"
        yield "gradient-sync-split-backward", text
    elif 1 < g < o:
        yield (
            code,
            (
                f"{recipe.sharding_name} holds gradients over {g} replicas until the last"
                " micro-batch: choose last"
            ),
        )
    elif o > 1 and not p == o < recipe.copies:
        same = "runs as zero-2" if g == 1 else "is what it does at any rate"
        yield code, f"{recipe.sharding_name} with gradient_sync each {same}: choose last"


def _deepspeed_parallel(recipe: Recipe, _: Problem) -> Refusals:
    """The deepspeed engine has replicas, tensor ranks and stages, numbered in one order."""
    engine = "the deepspeed engine"
    if recipe.context_parallel > 1:
        yield "deepspeed-context", f"{engine} has no context parallelism; use engine torch"
    if recipe.replication != "replicate":
        yield (
            "deepspeed-replication",
            f"{engine} keeps replicas itself, not by {recipe.replication}",
        )
    if recipe.rank_order != "tp-dp-pp":
        yield "deepspeed-rank-order", f"{engine} numbers ranks as tp-dp-pp, not {recipe.rank_order}"


def _deepspeed_tensor(recipe: Recipe, problem: Problem) -> Refusals:
    """The built-in trainer's layers under DeepSpeed's AutoTP, which cuts whole heads."""
    tp, kv_heads, engine = (
        recipe.tensor_parallel,
        problem.model.attention.kv_heads,
        "the deepspeed engine",
    )
    if recipe.sequence_parallel:
        yield "deepspeed-sequence-parallel", f"{engine} has no sequence parallelism"
    if kv_heads % tp:
        yield "deepspeed-kv-heads", f"{engine} cannot cut {kv_heads} kv heads over {tp} ranks"
    if tp > 1 and problem.model.attention.sinks:
        yield (
            "deepspeed-sinks",
            f"{engine} does not split attention_sinks over the ranks that split the heads",
        )
    if tp > 1 and problem.model.attention.qk_norm:
        text = (
            f"{engine} does not sum the gradients of qk_norm over its ranks, each of which has"
            " other heads"
        )
        yield "deepspeed-qk-norm", f"wrong gradients: {text}"
    if tp > 1 and recipe.pipeline_parallel == 1 and recipe.recompute == "selective":
        kept = (
            "the very tensors that selective recompute keeps, and sums them again; use recompute"
            " full or none"
        )
        yield (
            "deepspeed-selective-tensor",
            f"wrong gradients: AutoTP sums over its ranks into {kept}",
        )


@universal
def _disk(recipe: Recipe, problem: Problem) -> Refusals:
    if recipe.offload == "nvme" and problem.cluster.nvme_path is None:
        yield "offload-nvme", NO_DISK


def _deepspeed_precision(recipe: Recipe, problem: Problem) -> Refusals:
    """The deepspeed engine sums bf16 gradients in fp32, counts no skipped steps, and has no
    levers.
    """
    is_whole = recipe.data_parallel > 1 and recipe.sharding.optimizer == 1
    if problem.precision == "fp16":
        yield (
            "precision-fp16",
            "the deepspeed engine does not report skipped steps yet, as fp16 needs; use bf16",
        )
    if problem.precision == "bf16" and is_whole:
        yield (
            "deepspeed-bf16",
            "DeepSpeed sums bf16 gradients in fp32 only under ZeRO 1 to 3; sharding is none",
        )
    levers = [lever for lever in recipe.words("lever") if not lever.startswith("offload=")]
    if levers:
        yield "levers-engine", f"only the torch engine has {', '.join(levers)}"


FRAME_RULES: tuple[Rules, ...] = (
    _equal_shares,
    grouped_heads,
    _equal_positions,
    _context_heads,
    _stages_and_batch,
)
IN_FRAME_RULES: tuple[Rules, ...] = (
    _shares,
    _experts_engine,
    _experts,
    _experts_layer,
    _spread_experts,
)
"""Rules of all engines, after those of the frame and before the engine's own."""
_FP8_RULES: tuple[Rules, ...] = (_fp8_engine, _fp8_devices, _fp8_torchao)
ENGINE_RULES: dict[str, tuple[Rules, ...]] = {
    "torch": (
        _torch_replicas,
        _torch_split_backward,
        v_shaped_stages,
        _torch_micro_batches,
        interleaved_rounds,
        _tied,
        _torch_layers,
        _torch_memory,
        _quantized_engine,
        *_FP8_RULES,
        grouped_products,
    ),
    "deepspeed": (
        _deepspeed_parallel,
        zero_levels,
        zero_pipeline,
        _tied,
        _deepspeed_tensor,
        _disk,
        zero_offload,
        zero_secondary,
        _deepspeed_precision,
        _quantized_numbers,
        zero_quantized,
        *_FP8_RULES,
    ),
}
UNKNOWN_RULE = "trainer-unknown"
"""Mark of a recipe that the built-in trainer refuses while it is not known whether the problem's
trainer runs it.
"""
ENGINE_LACKS = frozenset({
    "deepspeed-context", "deepspeed-rank-order", "deepspeed-replication",
    "deepspeed-sequence-parallel", "experts-engine", "fp8-engine", "latent-engine",
    "levers-engine", "quantized-engine", "sharding-levels", "torch-offload", "torch-secondary",
})  # fmt: skip
"""What an engine of the built-in trainer does not have: that says nothing about another trainer."""


def _universal_of(rules: Iterable[Rules]) -> tuple[Rules, ...]:
    return tuple(rule for rule in rules if rule in _UNIVERSAL)


_FOR_ALL_TRAINERS = _universal_of(
    dict.fromkeys((*IN_FRAME_RULES, *ENGINE_RULES["torch"], *ENGINE_RULES["deepspeed"]))
)


def rules_of(engine: str, trainer: str | None) -> tuple[Rules, ...]:
    """Return the rules behind those of the frame: of an engine of the built-in trainer, or of
    another trainer, whichever engine a recipe names.
    """
    if trainer is None:
        return (*IN_FRAME_RULES, *ENGINE_RULES[engine])
    return (*_FOR_ALL_TRAINERS, *TRAINERS[trainer].rules)


def _unsettled(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Yield what the built-in trainer refuses of a legal recipe while it is not known whether the
    problem's trainer does.
    """
    if problem.trainer is None or why_illegal(recipe, problem):
        return
    known = ENGINE_LACKS | TRAINERS[problem.trainer].settled
    for rule in (*FRAME_RULES, *IN_FRAME_RULES, *ENGINE_RULES[recipe.engine]):
        for code, text in rule(recipe, problem):
            if code not in known:
                unknown = f"whether {problem.trainer} runs it is not known"
                yield Reason(UNKNOWN_RULE, f"the built-in trainer would not: {text}; {unknown}")


def marks(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Yield what a reader should know about a legal recipe: unusual, allowed, and often slow."""
    yield from _unsettled(recipe, problem)
    model, devices, per_node = (
        problem.model,
        problem.cluster.devices,
        problem.cluster.devices_per_node,
    )
    tp, cp, stages = recipe.tensor_parallel, recipe.context_parallel, recipe.stages
    apart, span = recipe.rank_strides["tp"], recipe.rank_strides["dp"]
    crosses = f"crosses nodes of {per_node} devices"
    if tp > 1 and tp * apart > per_node:
        spread = f", its ranks {apart} apart," if apart > 1 else ""
        yield Reason("tp-beyond-node", f"tensor_parallel {tp}{spread} {crosses}")
    if cp > 1 and span * cp > per_node:
        spread = f"tensor_parallel {span} x" if span == tp else f"groups of {span} ranks x"
        yield Reason("cp-beyond-node", f"{spread} context_parallel {cp} {crosses}")
    if tp > model.attention.kv_heads:
        copies = tp // model.attention.kv_heads
        yield Reason(
            "kv-replicated",
            f"each of {model.attention.kv_heads} kv heads is held by {copies} ranks",
        )
    runs_again = recipe.recompute == "full" or recipe.feed_forward_tiles > 1
    if runs_again and recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        text = (
            f"{recipe.schedule} splits the backward pass, for which torch computes the same layers"
            " again several times"
        )
        yield Reason("split-backward-recompute", text)
    if not recipe.layers_per_stage and (more := len(model.layers) % stages):
        first = f"the first {more} hold" if more > 1 else "the first holds"
        text = f"{len(model.layers)} layers over {stages} stages: {first} one more"
        yield Reason("uneven-stages", text)
    if recipe.devices < devices:
        yield Reason("idle-devices", f"{devices - recipe.devices} of {devices} devices stay idle")
