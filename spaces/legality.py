"""Which recipes are legal for a problem, and why the others are not.

A search checks every point of a space, so a refusal is a value; the first rule that refuses gives
the reason. Rules of one engine were found by running every combination against one process on torch
2.13 and DeepSpeed 0.19.8; `tests/system/test_numerics*.py` run the legal ones. Reasons that begin
with "wrong" name combinations that run at full speed with other weights than one process would
have.
"""

from __future__ import annotations

import itertools
import math
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
GROUPED_MULTIPLE = 8
"""What the sides of experts' matrices in bf16 divide by: torch's `grouped_mm` takes strides of
multiples of 16 bytes (aten/src/ATen/native/GroupedMMUtils.h).
"""
OTHER_NUMBERS = 'trains with other numbers: set problem.tolerance = "quantized" to accept that'
GROUPED = "experts-grouped"
"""The last of the torch engine's rules: what it refuses has no other fault."""
NO_DISK = "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path"
Refusals = Iterator[tuple[str, str]]
"""Codes and texts of reasons."""
Rules = Callable[[Recipe, Problem], Refusals]


def why_illegal(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first reason for which `recipe` cannot solve `problem`, or None where it is
    legal.
    """
    return why_no_frame(recipe, problem) or why_illegal_in_frame(recipe, problem)


def why_no_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first reason in degrees, devices, schedule and batch alone: one for all points
    that share these.
    """
    frame = _frame if problem.trainer is None else _for_others(_frame)
    return next(itertools.starmap(Reason, frame(recipe, problem)), None)


def why_illegal_in_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first of the other reasons."""
    rules = rules_of(recipe.engine, problem.trainer)
    return next((Reason(*found) for of_kind in rules for found in of_kind(recipe, problem)), None)


def _frame(recipe: Recipe, problem: Problem) -> Refusals:  # noqa: C901, PLR0912 - a list of rules
    """Equal shares of the model for every rank, a stage for every layer, and the problem's
    batch.
    """
    model, length, schedule = problem.model, problem.sequence_length, recipe.schedule
    tp, pp, cp = recipe.tensor_parallel, recipe.pipeline_parallel, recipe.context_parallel
    chunks = recipe.virtual_stages
    if recipe.devices > problem.cluster.devices:
        yield "devices", f"{recipe.devices} devices of {problem.cluster.devices} in the cluster"
    parts = (
        ("heads", model.heads),
        ("ffn_hidden", model.ffn_hidden),
        ("dense_ffn_hidden", model.dense_ffn_hidden or 0),
        ("padded vocabulary", model.padded_vocabulary),
    )
    for part, size in parts:
        if size % tp:
            yield "tensor-parallel-divides", f"tensor_parallel {tp} does not divide {part} {size}"
    if model.kv_heads % tp and tp % model.kv_heads:
        yield (
            "kv-heads",
            f"tensor_parallel {tp} neither divides kv_heads {model.kv_heads} nor is a multiple",
        )
    if length % cp:
        yield (
            "context-parallel-divides",
            f"context_parallel {cp} does not divide sequence_length {length}",
        )
    heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
    code, of_rank = "context-parallel-heads", "heads of a tensor-parallel rank"
    if heads % cp:
        yield code, f"context_parallel {cp} does not divide the {heads} {of_rank}"
    if kv_heads % cp and cp % kv_heads:
        yield (
            code,
            f"context_parallel {cp} neither divides the {kv_heads} kv {of_rank} nor is a multiple",
        )
    if recipe.stages > model.layers:
        yield "too-many-stages", f"{recipe.stages} pipeline stages for {model.layers} layers"
    if recipe.layers_per_stage and sum(recipe.layers_per_stage) != model.layers:
        yield "layers-per-stage", f"stages of {recipe.layers_name} layers for {model.layers} layers"
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


def _experts(recipe: Recipe, problem: Problem) -> Refusals:  # noqa: C901 - a list of rules
    """Ranks of a stage share whole experts, and each routes positions of its own."""
    model, e, tp = problem.model, recipe.expert_parallel, recipe.tensor_parallel
    etp, sharing = recipe.expert_tensor_parallel, recipe.expert_ranks
    experts = model.experts
    if model.key_value_rank is not None and recipe.engine != "torch":
        yield (
            "latent-engine",
            f"the {recipe.engine} engine trains no latent attention; use engine torch",
        )
    if not experts:
        if sharing > 1:
            key, degree = ("expert_parallel", e) if e > 1 else ("expert_tensor_parallel", etp)
            yield "experts-none", f"{key} {degree} for a model without experts"
        return
    ranks = tp * recipe.copies
    if recipe.engine != "torch":
        yield (
            "experts-engine",
            f"the {recipe.engine} engine trains no mixture of experts; use engine torch",
        )
    if experts % e:
        text = f"expert_parallel {e} does not divide the {experts} experts"
        yield "experts-divide", f"{text}; {_next_lower(e, experts)} does"
    if model.ffn_hidden % etp:
        text = (
            f"expert_tensor_parallel {etp} does not divide ffn_hidden {model.ffn_hidden} of an"
            " expert"
        )
        yield "experts-width", f"{text}; {_next_lower(etp, model.ffn_hidden)} does"
    if ranks % sharing:
        degrees = (
            f"expert_parallel {e}"
            if etp == 1
            else f"expert_parallel {e} x expert_tensor_parallel {etp}"
        )
        text = f"{degrees} does not divide the {ranks} ranks of a pipeline stage"
        if ranks % etp == 0:
            text = f"{text}; expert_parallel {_next_lower(e, experts, ranks // etp)} does"
        yield "experts-ranks", text
    if tp > 1 and not (recipe.sequence_parallel and sharing > 1):
        needed = "sequence_parallel, and expert_parallel or expert_tensor_parallel > 1"
        yield "experts-tensor", f"with experts, tensor_parallel {tp} needs {needed}"
    if model.balancing == "loss" and recipe.feed_forward_tiles > 1:
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


def _next_lower(degree: int, *wholes: int) -> int:
    whole = math.gcd(*wholes)
    small = [part for part in range(1, math.isqrt(whole) + 1) if whole % part == 0]
    return max(part for low in small for part in (low, whole // low) if part <= degree)


def _spread_experts(recipe: Recipe, problem: Problem) -> Refusals:
    """Experts are averaged over other ranks than the rest."""
    p, g, o = recipe.sharding.degrees
    if recipe.expert_ranks == 1 or not problem.model.experts:
        return
    key = "expert_parallel" if recipe.expert_parallel > 1 else "expert_tensor_parallel"
    if problem.model.biases == "all" and recipe.expert_tensor_parallel > 1:
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
    if problem.model.tied_embeddings and recipe.pipeline_parallel > 1:
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


def _torch_pipeline(recipe: Recipe, _: Problem) -> Refusals:
    """Enough micro-batches in equal rounds; a split backward pass finds its weights by identity,
    whole.
    """
    name, ranks, stages, batches = (
        recipe.schedule,
        recipe.pipeline_parallel,
        recipe.stages,
        recipe.accumulation,
    )
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
    if name in V_SHAPED_SCHEDULES and recipe.virtual_stages != 2:
        yield "virtual-stages", f"{name} takes virtual_stages 2, not {recipe.virtual_stages}"
    needed = stages if name == "dualpipev" else ranks
    if name not in ("none", "gpipe") and batches < needed:
        yield (
            "micro-batches",
            f"{_micro_batches(batches)}; {name} over {stages} stages needs {needed}",
        )
    rounds = max(1, batches // ranks)
    if name in INTERLEAVED_SCHEDULES and batches % rounds:  # raises when torch builds the schedule
        how = f"runs {batches} micro-batches in {rounds} rounds, which does not divide them"
        yield "interleaved-rounds", f"{name} over {ranks} ranks {how}"


def _micro_batches(count: int) -> str:
    return f"{count} micro-batch" if count == 1 else f"{count} micro-batches"


def _quantized(recipe: Recipe, problem: Problem) -> Refusals:
    """ZeRO++'s int8 gathers and int4 reductions: of ZeRO-3, by kernels for GPUs, with other numbers
    than one process.

    The two hops of qgZ are DeepSpeed's: a node's devices, then those of equal place in all nodes,
    over all ranks.
    """
    names = {
        "quantized_weights": recipe.quantized_weights,
        "quantized_gradients": recipe.quantized_gradients,
    }
    if not (chosen := [name for name, is_chosen in names.items() if is_chosen]):
        return
    what, n, per_node = " and ".join(chosen), recipe.data_parallel, problem.cluster.devices_per_node
    if recipe.engine != "deepspeed":
        yield "quantized-engine", f"only the deepspeed engine has {what}"
    if problem.tolerance != "quantized":
        yield "quantized-tolerance", f"{what} {OTHER_NUMBERS}"
    if problem.cluster.backend not in ("cuda", "rocm"):
        text = (
            f"{what} runs in DeepSpeed's CUDA and HIP kernels, which {problem.cluster.backend}"
            " devices do not have"
        )
        yield "quantized-backend", text
    if n == 1 or recipe.sharding.parameters < n:
        yield (
            "quantized-sharding",
            f"{what} is a part of ZeRO-3; sharding is {recipe.sharding_name}",
        )
    if recipe.quantized_gradients and recipe.tensor_parallel > 1:
        text = "qgZ sums over all ranks, which under tensor parallelism hold different shares"
        yield "quantized-tensor", f"wrong gradients: {text}"
    if recipe.quantized_gradients and (recipe.devices % per_node or recipe.devices == per_node):
        text = (
            f"quantized_gradients needs several whole nodes of {per_node} devices, not"
            f" {recipe.devices} devices"
        )
        yield "quantized-nodes", text


def _fp8(recipe: Recipe, problem: Problem) -> Refusals:  # noqa: C901 - a list of rules
    """Torchao's products in 8 bits: on devices that have them, with other numbers."""
    if recipe.fp8 == "none":
        return
    cluster, what = problem.cluster, f"fp8 {recipe.fp8}"
    if recipe.engine != "torch":
        yield "fp8-engine", f"only the torch engine has {what}; use fp8 none"
    if problem.precision != "bf16":
        text = (
            f"{what} goes with what else is in bf16: problem.precision is {problem.precision}; use"
            " fp8 none"
        )
        yield "fp8-precision", text
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
    elif recipe.fp8 == "mxfp8" and cluster.backend != "cuda":
        text = (
            f"torchao casts for {what} by a CUDA kernel; on {cluster.backend} use tensorwise or"
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
    kv = model.head_dim * max(1, model.kv_heads // tp)
    sizes = {"hidden": model.hidden, "width of queries": model.q_hidden // tp, "width of keys": kv}
    if not model.experts:
        sizes["ffn_hidden"] = model.ffn_hidden // tp
    if model.shared_experts:
        sizes["width of shared experts"] = model.shared_experts * model.ffn_hidden // tp
    if model.dense_ffn_hidden:
        sizes["dense_ffn_hidden"] = model.dense_ffn_hidden // tp
    if model.key_value_rank:
        sizes |= {
            "key_value_rank": model.key_value_rank,
            "query_rank": model.query_rank or 0,
            "rotary_width": model.rotary_width,
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


def _grouped_products(recipe: Recipe, problem: Problem) -> Refusals:
    """Experts' products are one kernel on CUDA and HIP devices in bf16, for even strides alone."""
    model, etp, multiple = problem.model, recipe.expert_tensor_parallel, GROUPED_MULTIPLE
    is_grouped = problem.precision == "bf16" and problem.cluster.backend in ("cuda", "rocm")
    if not model.experts or not is_grouped:
        return
    needs = f"torch's grouped products of experts in bf16 need multiples of {multiple}"
    if model.hidden % multiple:
        yield GROUPED, f"{needs}: hidden is {model.hidden}; {_around(model.hidden, multiple)}"
    width = model.ffn_hidden // etp
    if width % multiple:
        is_whole = model.ffn_hidden % multiple == 0
        nearest = (
            f"expert_tensor_parallel {_next_lower(etp, model.ffn_hidden // multiple, etp)} does"
            if is_whole
            else _around(model.ffn_hidden, multiple * etp)
        )
        share = f"ffn_hidden {model.ffn_hidden}"
        if etp > 1:
            share += f" / expert_tensor_parallel {etp} = {width}"
        yield GROUPED, f"{needs}: an expert has {share}; {nearest}"


def _around(size: int, multiple: int) -> str:
    """Name the nearest sizes that `multiple` divides."""
    below = size // multiple * multiple
    return f"{below} and {below + multiple} are" if below else f"{multiple} is"


def _deepspeed_parallel(recipe: Recipe, _: Problem) -> Refusals:
    """DeepSpeed has ZeRO 0 to 3 over all replicas (it removed MiCS, hybrid sharding), and 1F1B over
    whole gradients.
    """
    engine = "the deepspeed engine"
    n, (p, g, o) = recipe.data_parallel, recipe.sharding.degrees
    if recipe.context_parallel > 1:
        yield "deepspeed-context", f"{engine} has no context parallelism; use engine torch"
    if recipe.replication != "replicate":
        yield (
            "deepspeed-replication",
            f"{engine} keeps replicas itself, not by {recipe.replication}",
        )
    if recipe.rank_order != "tp-dp-pp":
        yield "deepspeed-rank-order", f"{engine} numbers ranks as tp-dp-pp, not {recipe.rank_order}"
    if (p, g, o) not in {(1, 1, 1), (1, 1, n), (1, n, n), (n, n, n)}:
        instead = "DeepSpeed has removed MiCS; use zero-3 with secondary_partition"
        hint = instead if p == g == o else "it has ZeRO 0 to 3"
        yield "deepspeed-sharding", f"no sharding over {p}, {g} and {o} of {n} replicas: {hint}"
    if recipe.pipeline_parallel > 1 and recipe.schedule != "1f1b":
        yield "deepspeed-schedule", f"DeepSpeed's pipeline runs 1f1b only, not {recipe.schedule}"
    if recipe.pipeline_parallel > 1 and g > 1:
        text = (
            f"DeepSpeed's pipeline takes ZeRO 0 and 1, not {recipe.sharding_name}: it keeps whole"
            " gradients"
        )
        yield "deepspeed-pipeline-sharding", text


def _deepspeed_options(recipe: Recipe, problem: Problem) -> Refusals:  # noqa: C901, PLR0912 - a list of rules
    """Shares are whole heads; offload, hpZ and sums of bf16 gradients in fp32 are parts of ZeRO."""
    tp, n, k, offload = (
        recipe.tensor_parallel,
        recipe.data_parallel,
        recipe.secondary_partition,
        recipe.offload,
    )
    kv_heads, engine = problem.model.kv_heads, "the deepspeed engine"
    is_whole = n > 1 and recipe.sharding.optimizer == 1
    if recipe.sequence_parallel:
        yield "deepspeed-sequence-parallel", f"{engine} has no sequence parallelism"
    if kv_heads % tp:
        yield "deepspeed-kv-heads", f"{engine} cannot cut {kv_heads} kv heads over {tp} ranks"
    if tp > 1 and problem.model.attention_sinks:
        yield (
            "deepspeed-sinks",
            f"{engine} does not split attention_sinks over the ranks that split the heads",
        )
    if tp > 1 and problem.model.qk_norm:
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
    if offload == "nvme" and problem.cluster.nvme_path is None:
        yield "offload-nvme", NO_DISK
    if offload != "none" and is_whole:
        yield (
            "offload-sharding",
            f"offload is a part of ZeRO 1 to 3; sharding is {recipe.sharding_name}",
        )
    if offload in ("optimizer+parameters", "nvme"):
        by = "parameters are offloaded by ZeRO-3"  # which gathers each for its use
        if recipe.pipeline_parallel > 1:
            yield "offload-pipeline", f"{by}, which DeepSpeed's pipeline does not take"
        if recipe.sharding.parameters < n:
            yield "offload-parameters", f"{by}; sharding is {recipe.sharding_name}"
    if k > 1:
        if recipe.sharding.parameters < n or n == 1:
            yield (
                "secondary-sharding",
                f"secondary_partition is a part of ZeRO-3; sharding is {recipe.sharding_name}",
            )
        if offload == "nvme":
            yield (
                "secondary-nvme",
                "DeepSpeed puts hpZ's second copy where the parameters are, and cannot on a disk",
            )
        if n % k or k == n:
            yield (
                "secondary-divides",
                f"secondary_partition {k} does not cut {n} replicas into groups",
            )
        if tp > 1:
            text = (
                "hpZ groups neighboring ranks, which under tensor parallelism hold different shares"
            )
            yield "secondary-tensor", f"wrong parameters: {text}"
    if problem.precision == "fp16":
        yield (
            "precision-fp16",
            f"{engine} does not report skipped steps yet, as fp16 needs; use bf16",
        )
    if problem.precision == "bf16" and is_whole:
        yield (
            "deepspeed-bf16",
            "DeepSpeed sums bf16 gradients in fp32 only under ZeRO 1 to 3; sharding is none",
        )
    levers = [lever for lever in recipe.words("lever") if not lever.startswith("offload=")]
    if levers:
        yield "levers-engine", f"only the torch engine has {', '.join(levers)}"


IN_FRAME_RULES: tuple[Rules, ...] = (_shares, _experts, _spread_experts)
"""Of all engines, behind those of the frame and before the engine's own."""
ENGINE_RULES: dict[str, tuple[Rules, ...]] = {
    "torch": (
        _torch_replicas,
        _torch_pipeline,
        _tied,
        _torch_layers,
        _torch_memory,
        _quantized,
        _fp8,
        _grouped_products,
    ),
    "deepspeed": (_deepspeed_parallel, _tied, _deepspeed_options, _quantized, _fp8),
}


BUILT_IN_CODES = frozenset({
    "compile-recompute-tensor", "context-parallel-heads", "deepspeed-bf16", "deepspeed-kv-heads",
    "deepspeed-qk-norm", "deepspeed-selective-tensor", "deepspeed-sequence-parallel",
    "deepspeed-sinks", "experts-biases", "experts-compile", "experts-engine", "experts-offload",
    "experts-sharding", "experts-tensor", "latent-engine", "micro-batches", "precision-fp16",
    "tied-pipeline",
})  # fmt: skip
"""Rules of the built-in trainer's own code: another trainer has its own."""


def _titan(recipe: Recipe, problem: Problem) -> Refusals:
    """Tied embeddings need one stage: torchtitan/models/common/decoder.py, line 168, of
    pytorch/torchtitan at b5bcd76c.
    """
    if problem.model.tied_embeddings and recipe.pipeline_parallel > 1:
        yield "tied-pipeline", "torchtitan has no tied embeddings with pipeline_parallel > 1"


def _nanotron(recipe: Recipe, problem: Problem) -> Refusals:
    """A rank of 1F1B starts as many micro-batches as stages follow it
    (src/nanotron/parallel/pipeline_parallel/engine.py, line 252), and kv heads are not repeated
    (src/nanotron/config/config.py, line 543; huggingface/nanotron at 2411b022).
    """
    needed, batches = recipe.pipeline_parallel - 1, recipe.accumulation
    if recipe.schedule == "1f1b" and batches < needed:
        text = f"{_micro_batches(batches)}; nanotron's 1f1b over {needed + 1} stages needs {needed}"
        yield "micro-batches", text
    if problem.model.kv_heads < recipe.tensor_parallel:
        yield (
            "kv-heads",
            (
                f"nanotron needs tensor_parallel of at most kv_heads {problem.model.kv_heads}, not"
                f" {recipe.tensor_parallel}"
            ),
        )


def _megatron(recipe: Recipe, problem: Problem) -> Refusals:
    """With experts tensor parallelism needs sequence parallelism:
    megatron/core/transformer/moe/moe_layer.py, line 636, of NVIDIA/Megatron-LM at d98e8a64.
    """
    if problem.model.experts and recipe.tensor_parallel > 1 and not recipe.sequence_parallel:
        yield (
            "experts-tensor",
            (
                f"Megatron-LM trains experts with tensor_parallel {recipe.tensor_parallel} only"
                " with sequence_parallel"
            ),
        )


TRAINER_RULES: dict[str, tuple[Rules, ...]] = {
    "megatron-lm": (_megatron,),
    "nemo": (_megatron,),  # which trains by Megatron core
    "torchtitan": (_titan,),
    "nanotron": (_nanotron,),
}
_CORE = frozenset({"context-parallel-heads", "experts-tensor", "micro-batches", "tied-pipeline"})
UNKNOWN_RULE = "trainer-unknown"
"""Mark of a recipe that the built-in trainer refuses, and of which the problem's trainer is not
known.
"""
SETTLED: dict[str, frozenset[str]] = {
    "megatron-lm": _CORE,
    "nemo": _CORE,
    "torchtitan": frozenset({"experts-tensor", "micro-batches", "tied-pipeline"}),
    "nanotron": frozenset({"micro-batches", "tied-pipeline"}),
}
"""Rules of the built-in trainer that a trainer's source settles, by one of `TRAINER_RULES` or by
having none.

Megatron-LM at d98e8a64 sums tied embeddings over the first and last stage
(megatron/core/models/common/language_module/language_module.py, line 253), shortens the warm-up
where there are fewer micro-batches than stages (megatron/core/pipeline_parallel/schedules.py, line
957), and passes keys and values between context ranks (--cp-comm-type p2p, the default in
megatron/training/arguments.py of core_v0.16.1, line 2341). torchtitan at b5bcd76c warns of fewer
micro-batches (torchtitan/distributed/pipeline_parallel.py, line 305), and checks degrees without
experts' (torchtitan/distributed/parallel_dims.py). nanotron at 2411b022 ties embeddings over stages
(src/nanotron/models/llama.py, line 1143).
"""


def _for_others(rule: Rules) -> Rules:
    """Return a rule without what the built-in trainer's own code needs."""

    def reasons(recipe: Recipe, problem: Problem) -> Refusals:
        return (found for found in rule(recipe, problem) if found[0] not in BUILT_IN_CODES)

    return reasons


def rules_of(engine: str, trainer: str | None) -> tuple[Rules, ...]:
    """Return the rules behind those of the frame: of an engine of the built-in trainer, or of
    another one.
    """
    rules = (*IN_FRAME_RULES, *ENGINE_RULES[engine])
    if trainer is None:
        return rules
    return (*map(_for_others, rules), *TRAINER_RULES.get(trainer, ()))


def _unsettled(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Yield what the built-in trainer refuses while it is not known whether the problem's trainer
    does.
    """
    if problem.trainer is None:
        return
    settled = SETTLED.get(problem.trainer, frozenset())
    for rule in (_frame, *IN_FRAME_RULES, *ENGINE_RULES[recipe.engine]):
        for code, text in rule(recipe, problem):
            if code in BUILT_IN_CODES - settled:
                known = f"whether {problem.trainer} runs it is not known"
                yield Reason(UNKNOWN_RULE, f"the built-in trainer would not: {text}; {known}")


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
    if tp > model.kv_heads:
        copies = tp // model.kv_heads
        yield Reason(
            "kv-replicated", f"each of {model.kv_heads} kv heads is held by {copies} ranks"
        )
    runs_again = recipe.recompute == "full" or recipe.feed_forward_tiles > 1
    if runs_again and recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        text = (
            f"{recipe.schedule} splits the backward pass, for which torch computes the same layers"
            " again several times"
        )
        yield Reason("split-backward-recompute", text)
    if not recipe.layers_per_stage and (more := model.layers % stages):
        first = f"the first {more} hold" if more > 1 else "the first holds"
        text = f"{model.layers} layers over {stages} stages: {first} one more"
        yield Reason("uneven-stages", text)
    if recipe.devices < devices:
        yield Reason("idle-devices", f"{devices - recipe.devices} of {devices} devices stay idle")
