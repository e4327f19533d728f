"""What trainers other than the built-in one refuse to run, by the source of each.

A trainer is one entry of `TRAINERS`: its rules, and which rules of the built-in trainer its source
is known not to have. Rules that several trainers get from the same library (torch, DeepSpeed,
Megatron core) are written once; `legality` takes from here those that the built-in trainer shares.

Lines are those of NVIDIA/Megatron-LM at d98e8a64, NVIDIA/TransformerEngine at d0067d0d,
pytorch/torchtitan at b5bcd76c, huggingface/nanotron at 2411b022, deepspeedai/Megatron-DeepSpeed at
4efb479d, huggingface/accelerate at 16cb6eb8, and of the packages deepspeed 0.19.8 and torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frontrunner.spaces.model.attention import GroupedAttention
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import (
    INTERLEAVED_SCHEDULES,
    V_SHAPED_SCHEDULES,
    Recipe,
)

Refusals = Iterator[tuple[str, str]]
"""Codes and texts of reasons."""
Rules = Callable[[Recipe, Problem], Refusals]

GROUPED = "experts-grouped"
"""The last of the torch engine's rules: what it refuses has no other fault."""
GROUPED_MULTIPLE = 8
"""What the sides of experts' matrices in bf16 divide by: torch's `grouped_mm` takes strides of
multiples of 16 bytes (aten/src/ATen/native/GroupedMMUtils.h).
"""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The rules of a trainer, each with its place in the source.

    `settled` are codes of the built-in trainer's rules that this trainer does not have, as its
    source shows. A recipe that breaks another rule of the built-in trainer and none of these is
    legal, with a warning that it is not known whether this trainer runs it.
    """

    rules: tuple[Rules, ...]
    settled: frozenset[str]


def micro_batches(count: int) -> str:
    """Return the number with its noun: `1 micro-batch`."""
    return f"{count} micro-batch" if count == 1 else f"{count} micro-batches"


def next_lower(degree: int, *wholes: int) -> int:
    """Return the highest common divisor of `wholes` that is at most `degree`."""
    whole = math.gcd(*wholes)
    small = [part for part in range(1, math.isqrt(whole) + 1) if whole % part == 0]
    return max(part for low in small for part in (low, whole // low) if part <= degree)


# Torch, which the built-in trainer and torchtitan use.


def v_shaped_stages(recipe: Recipe, _: Problem) -> Refusals:
    """V-shaped schedules have two stages per rank: torch/distributed/pipelining/schedules.py, lines
    3248 and 3434.
    """
    name, chunks = recipe.schedule, recipe.virtual_stages
    if name in V_SHAPED_SCHEDULES and chunks != 2:
        yield "virtual-stages", f"{name} takes virtual_stages 2, not {chunks}"


def interleaved_rounds(recipe: Recipe, _: Problem) -> Refusals:
    """Interleaved schedules run equal rounds of micro-batches:
    torch/distributed/pipelining/schedules.py, lines 2937 and 3048.
    """
    name, ranks, batches = recipe.schedule, recipe.pipeline_parallel, recipe.accumulation
    rounds = max(1, batches // ranks)
    if name in INTERLEAVED_SCHEDULES and batches % rounds:
        how = f"runs {batches} micro-batches in {rounds} rounds, which does not divide them"
        yield "interleaved-rounds", f"{name} over {ranks} ranks {how}"


def grouped_products(recipe: Recipe, problem: Problem) -> Refusals:
    """Experts' products are one kernel on CUDA and HIP devices in bf16, which takes strides of
    whole 16 bytes (aten/src/ATen/native/GroupedMMUtils.h).
    """
    model, etp, multiple = problem.model, recipe.expert_tensor_parallel, GROUPED_MULTIPLE
    is_grouped = problem.precision == "bf16" and problem.cluster.backend in ("cuda", "rocm")
    if model.mixture is None or not is_grouped:
        return
    needs = f"torch's grouped products of experts in bf16 need multiples of {multiple}"
    if model.hidden % multiple:
        yield GROUPED, f"{needs}: hidden is {model.hidden}; {_around(model.hidden, multiple)}"
    whole_width = model.mixture.ffn_hidden
    width = whole_width // etp
    if width % multiple:
        is_whole = whole_width % multiple == 0
        nearest = (
            f"expert_tensor_parallel {next_lower(etp, whole_width // multiple, etp)} does"
            if is_whole
            else _around(whole_width, multiple * etp)
        )
        share = f"ffn_hidden {whole_width}"
        if etp > 1:
            share += f" / expert_tensor_parallel {etp} = {width}"
        yield GROUPED, f"{needs}: an expert has {share}; {nearest}"


def _around(size: int, multiple: int) -> str:
    """Name the nearest sizes that `multiple` divides."""
    below = size // multiple * multiple
    return f"{below} and {below + multiple} are" if below else f"{multiple} is"


# DeepSpeed, which the built-in trainer's engine `deepspeed` and three other trainers use.


def zero_levels(recipe: Recipe, _: Problem) -> Refusals:
    """DeepSpeed has ZeRO 0 to 3 over all replicas (deepspeed/runtime/engine.py, line 2634); it
    removed MiCS, hybrid sharding (deepspeed/runtime/config.py, line 119).
    """
    n, (p, g, o) = recipe.data_parallel, recipe.sharding.degrees
    if (p, g, o) not in {(1, 1, 1), (1, 1, n), (1, n, n), (n, n, n)}:
        instead = "DeepSpeed has removed MiCS; use zero-3 with secondary_partition"
        hint = instead if p == g == o else "it has ZeRO 0 to 3"
        yield "deepspeed-sharding", f"no sharding over {p}, {g} and {o} of {n} replicas: {hint}"


def zero_pipeline(recipe: Recipe, _: Problem) -> Refusals:
    """DeepSpeed's `PipelineModule` runs 1F1B (deepspeed/runtime/pipe/schedule.py, line 189) over
    whole gradients (deepspeed/runtime/pipe/engine.py, line 76).
    """
    if recipe.pipeline_parallel > 1 and recipe.schedule != "1f1b":
        yield "deepspeed-schedule", f"DeepSpeed's pipeline runs 1f1b only, not {recipe.schedule}"
    if recipe.pipeline_parallel > 1 and recipe.sharding.gradients > 1:
        text = (
            f"DeepSpeed's pipeline takes ZeRO 0 and 1, not {recipe.sharding_name}: it keeps whole"
            " gradients"
        )
        yield "deepspeed-pipeline-sharding", text


def zero_offload(recipe: Recipe, _: Problem) -> Refusals:
    """ZeRO 1 to 3 take an offload of optimizer states, ZeRO-3 alone one of parameters
    (deepspeed/runtime/engine.py, lines 2688 and 2773).
    """
    n, offload = recipe.data_parallel, recipe.offload
    if offload != "none" and n > 1 and recipe.sharding.optimizer == 1:
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


def zero_secondary(recipe: Recipe, _: Problem) -> Refusals:
    """ZeRO++'s hpZ is a part of ZeRO-3, over equal groups of neighboring ranks
    (deepspeed/utils/groups.py, line 925).
    """
    n, k = recipe.data_parallel, recipe.secondary_partition
    if k == 1:
        return
    if recipe.sharding.parameters < n or n == 1:
        yield (
            "secondary-sharding",
            f"secondary_partition is a part of ZeRO-3; sharding is {recipe.sharding_name}",
        )
    if recipe.offload == "nvme":
        yield (
            "secondary-nvme",
            "DeepSpeed puts hpZ's second copy where the parameters are, and cannot on a disk",
        )
    if n % k or k == n:
        yield (
            "secondary-divides",
            f"secondary_partition {k} does not cut {n} replicas into groups",
        )
    if recipe.tensor_parallel > 1:
        text = "hpZ groups neighboring ranks, which under tensor parallelism hold different shares"
        yield "secondary-tensor", f"wrong parameters: {text}"


def quantized_choices(recipe: Recipe) -> str:
    """Return the names of ZeRO++'s quantized messages that the recipe has; empty for none."""
    names = {
        "quantized_weights": recipe.quantized_weights,
        "quantized_gradients": recipe.quantized_gradients,
    }
    return " and ".join(name for name, is_chosen in names.items() if is_chosen)


def zero_quantized(recipe: Recipe, problem: Problem) -> Refusals:
    """ZeRO++'s int8 gathers and int4 reductions are a part of ZeRO-3, by kernels for GPUs.

    The two hops of qgZ are a node's devices, then those of equal place in all nodes, over all ranks
    (deepspeed/utils/groups.py, line 738).
    """
    if not (what := quantized_choices(recipe)):
        return
    n, per_node = recipe.data_parallel, problem.cluster.devices_per_node
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


def _auto_experts(recipe: Recipe, problem: Problem) -> Refusals:
    """What DeepSpeed's AutoEP does not combine: deepspeed/runtime/engine.py, lines 2223 and 2226,
    and deepspeed/module_inject/auto_ep_folding.py, line 249.
    """
    if problem.model.mixture is None or recipe.expert_parallel == 1:
        return
    if recipe.sharding.parameters > 1 and recipe.quantized_gradients:
        yield "experts-sharding", "DeepSpeed's AutoEP takes no quantized_gradients under ZeRO-3"
    if recipe.sharding.parameters > 1 and recipe.secondary_partition > 1:
        yield "experts-sharding", "DeepSpeed's AutoEP takes no secondary_partition under ZeRO-3"
    if recipe.tensor_parallel > 1 and recipe.offload != "none":
        yield (
            "experts-offload",
            f"DeepSpeed's AutoEP with tensor_parallel {recipe.tensor_parallel} takes no offload",
        )


_ZERO: tuple[Rules, ...] = (zero_levels, zero_offload, zero_secondary, zero_quantized)
_ZERO_SETTLED = frozenset({"deepspeed-bf16", "precision-fp16"})
"""DeepSpeed trains in fp16, and in bf16 without ZeRO, whose gradients it then sums in bf16
(deepspeed/runtime/engine.py, line 2313).
"""


# Trainers.


def _whole_kv_heads(trainer: str) -> Rules:
    """Return the rule of trainers whose tensor ranks never share a kv head."""

    def whole_kv_heads(recipe: Recipe, problem: Problem) -> Refusals:
        tp, kv_heads = recipe.tensor_parallel, problem.model.attention.kv_heads
        if kv_heads % tp:
            yield "kv-heads", f"{trainer} needs tensor_parallel {tp} to divide kv_heads {kv_heads}"

    return whole_kv_heads


def grouped_heads(recipe: Recipe, problem: Problem) -> Refusals:
    """Ranks share kv heads, or repeat each equally often. So does Megatron core:
    megatron/core/transformer/transformer_config.py, line 1461.
    """
    tp, kv_heads = recipe.tensor_parallel, problem.model.attention.kv_heads
    if kv_heads % tp and tp % kv_heads:
        yield (
            "kv-heads",
            f"tensor_parallel {tp} neither divides kv_heads {kv_heads} nor is a multiple",
        )


def _megatron_degrees(recipe: Recipe, problem: Problem) -> Refusals:
    """Context ranks take two slices of a sequence each (megatron/training/arguments.py, line 1336),
    and experts under tensor parallelism need sequence parallelism
    (megatron/core/transformer/moe/moe_layer.py, line 636).
    """
    cp, length = recipe.context_parallel, problem.sequence_length
    if cp > 1 and length % (2 * cp):
        cut = f"{length} positions into 2 x context_parallel {cp} equal slices"
        yield "context-halves", f"Megatron core cuts {cut}"
    if problem.model.mixture and recipe.tensor_parallel > 1 and not recipe.sequence_parallel:
        yield (
            "experts-tensor",
            (
                f"Megatron core trains experts with tensor_parallel {recipe.tensor_parallel} only"
                " with sequence_parallel"
            ),
        )


def _megatron_pipeline(recipe: Recipe, _: Problem) -> Refusals:
    """Interleaved micro-batches go in rounds of all ranks:
    megatron/core/pipeline_parallel/schedules.py, lines 1161 and 1173.
    """
    ranks, batches = recipe.pipeline_parallel, recipe.accumulation
    if recipe.virtual_stages > 1 and batches % ranks:
        rounds = f"rounds of pipeline_parallel {ranks}, which does not divide {batches}"
        yield "interleaved-rounds", f"Megatron core runs interleaved micro-batches in {rounds}"


def _transformer_engine_sizes(recipe: Recipe, problem: Problem) -> Refusals:
    """Sides of a product in 8 bits: transformer_engine/pytorch/module/linear.py, line 376, and
    transformer_engine/pytorch/utils.py, line 618.
    """
    if recipe.fp8 == "none":
        return
    model, tp = problem.model, recipe.tensor_parallel
    widths = {"hidden": model.hidden}
    if model.mixture is None:
        widths["ffn_hidden"] = model.feed_forward.ffn_hidden // tp
    if isinstance(model.attention, GroupedAttention):
        widths["width of queries"] = model.attention.q_hidden // tp
    uneven = [f"{name} {size}, not a multiple of 16" for name, size in widths.items() if size % 16]
    shares = recipe.context_parallel * (tp if recipe.sequence_parallel else 1)
    tokens = recipe.micro_batch_seqs * problem.sequence_length // shares
    if tokens % 8:
        uneven.append(f"tokens {tokens}, not a multiple of 8")
    if uneven:
        yield "fp8-divides", f"Transformer Engine in 8 bits: a rank has {'; '.join(uneven)}"


def _torchtitan_degrees(recipe: Recipe, problem: Problem) -> Refusals:
    """Tokens of a micro-batch, and ranks that share experts: torchtitan/trainer.py, line 302, and
    torchtitan/distributed/parallel_dims.py, line 188.
    """
    tp, cp, ep = recipe.tensor_parallel, recipe.context_parallel, recipe.expert_parallel
    tokens = recipe.micro_batch_seqs * problem.sequence_length
    parts = (tp if recipe.sequence_parallel else 1) * 2 * cp
    if cp > 1 and tokens % parts:
        yield (
            "context-halves",
            f"torchtitan cuts a micro-batch into {parts} equal slices, which do not divide its"
            f" {tokens} tokens",
        )
    sharing = max(recipe.sharding.optimizer, cp) * tp
    if problem.model.mixture and sharing % ep:
        text = (
            f"torchtitan spreads experts over the {sharing} ranks of a shard and its tensor ranks,"
            f" which expert_parallel {ep} does not divide"
        )
        yield "experts-ranks", text


def _torchtitan_pipeline(recipe: Recipe, problem: Problem) -> Refusals:
    """Tied embeddings need one stage (torchtitan/models/common/decoder.py, line 168). torch needs a
    micro-batch for each stage of two schedules (torch/distributed/pipelining/schedules.py, lines
    1020 and 3439).
    """
    name, stages, batches = recipe.schedule, recipe.stages, recipe.accumulation
    if problem.model.head.tied and recipe.pipeline_parallel > 1:
        yield "tied-pipeline", "torchtitan has no tied embeddings with pipeline_parallel > 1"
    if name in ("1f1b", "dualpipev") and batches < stages:
        yield (
            "micro-batches",
            f"{micro_batches(batches)}; torch's {name} over {stages} stages needs {stages}",
        )


def _nanotron_pipeline(recipe: Recipe, _: Problem) -> Refusals:
    """A rank of 1F1B starts as many micro-batches as stages follow it:
    src/nanotron/parallel/pipeline_parallel/engine.py, line 252.
    """
    needed, batches = recipe.pipeline_parallel - 1, recipe.accumulation
    if recipe.schedule == "1f1b" and batches < needed:
        text = f"{micro_batches(batches)}; nanotron's 1f1b over {needed + 1} stages needs {needed}"
        yield "micro-batches", text


def _native_experts(recipe: Recipe, problem: Problem) -> Refusals:
    """DeepSpeed's own layer of experts, which Megatron-DeepSpeed builds:
    deepspeed/runtime/engine.py, line 2215.
    """
    if problem.model.mixture and recipe.sharding.parameters > 1:
        text = f"Megatron-DeepSpeed has experts with ZeRO 0 to 2, not {recipe.sharding_name}"
        yield "experts-sharding", text


def _accelerate(recipe: Recipe, problem: Problem) -> Refusals:
    """ZeRO-1, and what was read from a DeepSpeed configuration, runs by DeepSpeed. Elsewhere tensor
    and context parallelism need FSDP within them: src/accelerate/parallelism_config.py, line 336.
    """
    if recipe.engine == "deepspeed" or recipe.sharding_name == "zero-1":
        for rule in _ZERO:
            yield from rule(recipe, problem)
        return
    tp, cp, replicas = recipe.tensor_parallel, recipe.context_parallel, recipe.data_parallel
    if max(tp, cp) > 1 and replicas > 1 and recipe.sharding.optimizer <= cp:
        yield (
            "sharding-replicas",
            f"Accelerate has tensor and context parallelism over {replicas} replicas only where"
            f" these share states, not with sharding {recipe.sharding_name}",
        )


_MEGATRON = Trainer(
    rules=(grouped_heads, _megatron_degrees, _megatron_pipeline, _transformer_engine_sizes),
    settled=frozenset({
        # Keys and values go around the context ranks (--cp-comm-type p2p, the default:
        # megatron/core/extensions/transformer_engine.py, line 2142).
        "context-parallel-heads",
        # Sequence parallelism is enough (megatron/core/transformer/moe/moe_layer.py, line 636).
        "experts-tensor",
        # A warm-up is as short as the micro-batches are few
        # (megatron/core/pipeline_parallel/schedules.py, lines 976 and 2278).
        "micro-batches",
        # The first and the last stage sum the gradients of tied embeddings
        # (megatron/core/distributed/finalize_model_grads.py, line 164).
        "tied-pipeline",
    }),
)  # fmt: skip

TRAINERS: dict[str, Trainer] = {
    "megatron-lm": _MEGATRON,
    "nemo": _MEGATRON,  # Megatron-Bridge trains by Megatron core
    "megatron-deepspeed": Trainer(
        # megatron/model/transformer.py, line 566
        rules=(_whole_kv_heads("Megatron-DeepSpeed"), zero_pipeline, *_ZERO, _native_experts),
        settled=_ZERO_SETTLED | {
            # Megatron's own layers are cut over tensor ranks, not DeepSpeed's AutoTP.
            "deepspeed-selective-tensor",
            # A stage has at most as many buffers as micro-batches
            # (deepspeed/runtime/pipe/schedule.py, line 255).
            "micro-batches",
            # `TiedLayerSpec` of the embedding (megatron/model/gpt_model.py, lines 362 and 424).
            "tied-pipeline",
        },
    ),
    "deepspeed": Trainer(
        rules=(*_ZERO, _auto_experts),
        settled=_ZERO_SETTLED | {
            # Allowed without tensor ranks (deepspeed/module_inject/auto_ep_folding.py, line 249).
            "experts-offload",
            # Its own rule is `zero_offload`.
            "offload-sharding",
        },
    ),
    "torchtitan": Trainer(
        rules=(
            # torchtitan/models/common/decoder.py, line 195
            _whole_kv_heads("torchtitan"),
            _torchtitan_degrees,
            _torchtitan_pipeline,
            v_shaped_stages,
            interleaved_rounds,
            grouped_products,  # torchtitan/models/common/moe.py, line 120
        ),
        settled=frozenset({
            # Context ranks gather keys and values (torchtitan/models/common/decoder_sharding.py,
            # line 283).
            "context-parallel-heads",
            # Replicas of shards lie outside of what experts are spread over
            # (torchtitan/config/configs.py, line 289).
            "experts-sharding",
            # Tensor ranks may hold different experts (torchtitan/distributed/parallel_dims.py,
            # line 187).
            "experts-tensor",
            # Other schedules than two warn of few micro-batches
            # (torchtitan/distributed/pipeline_parallel.py, line 305).
            "micro-batches",
        }),
    ),
    "nanotron": Trainer(
        # src/nanotron/models/llama.py, line 351, and src/nanotron/config/config.py, line 543
        rules=(_whole_kv_heads("nanotron"), _nanotron_pipeline),
        settled=frozenset({
            # 1F1B needs one less (src/nanotron/parallel/pipeline_parallel/engine.py, line 252).
            "micro-batches",
            # Both stages hold the tied weights (src/nanotron/models/llama.py, line 1143).
            "tied-pipeline",
        }),
    ),
    "accelerate": Trainer(
        rules=(_accelerate,),
        settled=_ZERO_SETTLED | {
            # Torch's ring of context ranks (src/accelerate/accelerator.py, line 1665).
            "context-parallel-heads",
        },
    ),
}  # fmt: skip
