"""The training codes that are known, as their sources have them, and what `[software]` states of
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from frontrunner.evaluators.analytic.kernels import FLASH_SPEED
from frontrunner.evaluators.analytic.training_code import (
    ActivationPolicy,
    ExpertPolicy,
    GradientPolicy,
    Kernels,
    LossPolicy,
    PipelinePolicy,
    ProductPolicy,
    ReplicaPolicy,
    TrainingCode,
)
from frontrunner.spaces.problem import Problem, SoftwareSettings

FRONTRUNNER = TrainingCode(
    name="frontrunner",
    kernels=Kernels(gate="eager", rotary="fp32", softmax="math", dropout=False),
    activations=ActivationPolicy(
        copies_attention_from=1, selective="products", keeps_gathered=True, pads_values=True
    ),
    gradients=GradientPolicy(wide=True, appear_in_backward=True),
    replicas=ReplicaPolicy(
        holds_only_masters=True,
        gathered_layers=2.0,
        reduce_bytes_once=6.0,
        reduce_bytes_each=5.0,
        reduces_tables_apart=True,
        message_elements=0.0,
        message_layers=1.0,
        whole_bucket_elements=25 * 2**20 / 4,
    ),
    loss=LossPolicy(bytes_per_logit=16.0, widens_by_rows=True),
    pipeline=PipelinePolicy(receives_apart=True),
    experts=ExpertPolicy(widens_router=True),
)
"""The project's own trainer, as its dry runs show it: FSDP2 reduces in fp32, layer by layer, plain
replicas in buckets of 25 MiB. Sharded logits are there four times in fp32 while torch's parallel
loss runs backward.
"""

DEEPSPEED = TrainingCode(
    name="deepspeed",
    kernels=Kernels(gate="eager", rotary="fp32", softmax="math", dropout=False),
    activations=ActivationPolicy(copies_attention_from=1, selective="products"),
    gradients=GradientPolicy(wide=True, overlaps_unsharded=False),
    replicas=ReplicaPolicy(
        gathered_layers=2.0,
        reduce_bytes_once=0.0,
        reduce_bytes_each=8.0,
        bucket_elements=500000000.0,
        message_elements=500000000.0,
    ),
    loss=LossPolicy(widens_by_rows=True, shards_logits=False, splits_tables=False),
)
"""DeepSpeed as `deepspeed_engine.py` sets it; AutoTP leaves embedding and head whole. Not
validated.
"""

ENGINES = {"torch": FRONTRUNNER, "deepspeed": DEEPSPEED}

LLM_FOUNDRY = TrainingCode(
    name="llm-foundry",
    kernels=Kernels(dropout=False, cross_entropy="16-bit"),
    products=ProductPolicy(transformer_engine=True),
    gradients=GradientPolicy(wide=True),
    replicas=ReplicaPolicy(
        holds_only_masters=True,
        gathered_layers=3.4,
        reduce_bytes_once=20.0,
        reduce_bytes_each=5.0,
        message_elements=0.0,
        message_layers=1.0,
    ),
)
"""MPT models under torch's first FSDP, with flash attention and flash-attn's cross entropy in 16
bits; its published step times are nearer to a loss of several kernels than to one (8.2 against 10.0
% off).
"""

MEGATRON_GPT = TrainingCode(
    name="megatron-lm-fp16",
    kernels=Kernels(dropout=True, fused_softmax_heads=4),
    gradients=GradientPolicy(wide=False, overlaps_unsharded=False),
)
"""Megatron-LM and Megatron-DeepSpeed in fp16: gradients reduced after the last backward pass (arXiv
2104.04473). The fused softmax runs on multiples of four heads (`core/fusions/fused_softmax.py`,
`is_kernel_available`).
"""

MEGATRON = TrainingCode(
    name="megatron-lm",
    kernels=Kernels(
        dropout=False,
        fused_softmax_heads=4,
        flash=3,
        clamps_before_gate=True,
        fused_rotary_is_plain=True,
        weighs_in_gate=True,
    ),
    products=ProductPolicy(fuses_accumulation=True, transformer_engine=True),
    gradients=GradientPolicy(wide=True, narrow_in_fp16=True),
    loss=LossPolicy(bytes_per_logit=6.0),
    pipeline=PipelinePolicy(overlaps_interleaved=True),
    experts=ExpertPolicy(host_factor=2.5, biases="singly", sorts_received=True),
)
"""Megatron-LM, as it is exported, and what was made after it: gradients are accumulated in fp32,
unless the arithmetic is fp16 (`--accumulate-allreduce-grads-in-fp32` goes with bf16), and reduced
during the backward pass; norm, gate, rotation and softmax are fused, cross entropy is not unless
`--cross-entropy-loss-fusion` is given: it works in place on an fp32 copy
(`core/tensor_parallel/cross_entropy.py`). Its fused rotation neither scales nor interleaves
(`core/models/common/embeddings/rope_utils.py`, `apply_rotary_pos_emb`). On Hopper Transformer
Engine prefers cuDNN's attention, which is as fast as FlashAttention 3
(`pytorch/attention/dot_product_attention/utils.py`).
"""

MEGATRON_DEEPSPEED = TrainingCode(
    name="megatron-deepspeed",
    kernels=Kernels(fused_softmax_heads=4, gate="eager", rotary="eager", dropout=False),
    gradients=GradientPolicy(wide=True, narrow_in_fp16=True, overlaps_unsharded=False),
    replicas=ReplicaPolicy(gathers_per_layer=4.0),
    pipeline=PipelinePolicy(sends_in_turn=True, sends_singly=True),
)
"""Megatron-DeepSpeed and GPT-NeoX: a rank sends to its pipeline neighbor and receives from it one
after the other (DeepSpeed's `runtime/pipe/schedule.py`, `TrainSchedule`), where Megatron-LM does
both at once. ZeRO-3 gathers a matrix at a time: by default it prefetches 5e7 elements, less than
one (`runtime/zero/partitioned_param_coordinator.py`). `F.silu(x[0]) * x[1]` and the rotation are
torch's operations (`megatron/model/transformer.py`).
"""

NANOTRON = TrainingCode(
    name="nanotron",
    kernels=Kernels(gate="eager", dropout=False),
    activations=ActivationPolicy(
        copies_attention_from=2, keeps_packed_qkv=True, may_keep_gathered=True
    ),
    gradients=GradientPolicy(wide=True, overlaps_scattered=False),
    replicas=ReplicaPolicy(bucket_bytes=2.0, message_elements=25 * 2**20 / 2, message_layers=0.25),
    pipeline=PipelinePolicy(sends_singly=True, sends_in_turn=True, layer_split="cost"),
    exchange_s=0.025,
)
"""Gradients in fp32, reduced by torch's DDP in buckets of 25 MiB of 16-bit parameters or a quarter
of a layer (`optim/gradient_accumulator.py`); under ZeRO-1 nothing overlaps (`distributed.py`).
Pipelines are cut by cost (`models/base.py`). DDP's buckets hold 16-bit gradients beside the fp32
ones, and queries are a view of the joint product. Norms are Triton's, rotations flash-attn's,
`silu(x) * gate` two kernels (`models/llama.py`). A rank does one transfer at a time
(`parallel/pipeline_parallel/state.py`); two messages of metadata come before each, and the host
waits for them (`p2p.py`). By count that is 1 to 2 ms a micro-batch. Between nodes, its quick runs
take 5 to 9 ms beyond what their work explains, and others up to 1.3 s, also where a twin with
another ZeRO stage is quick: that is the cluster's, and 50 ms, which order its rows best, were
chosen on it.
"""

ALEPH_ALPHA = TrainingCode(
    name="aleph-alpha-scaling",
    kernels=Kernels(
        dropout=False, norm="eager", gate="eager", rotary="eager", softmax="eager", flash=1
    ),
    products=ProductPolicy(reduces_gate_twice=True),
    activations=ActivationPolicy(
        keeps_gathered=True, keeps_packed_qkv=True, copies_attention_from=2
    ),
    gradients=GradientPolicy(
        wide=False,
        reduced_wide=True,
        reduced_whole=True,
        overlaps_unsharded=False,
        overlaps_scattered=False,
    ),
    replicas=ReplicaPolicy(message_elements=500000000.0),
    loss=LossPolicy(bytes_per_logit=18.0, shards_logits=False),
    pipeline=PipelinePolicy(sends_singly=True, sends_in_turn=True, layer_split="ends"),
)
"""The Llama trainer of arXiv 2311.05610 (github.com/Aleph-Alpha/scaling). Its kernels are torch's
unless a row names others; gradients stay in 16 bits and are all-reduced whole, in fp32 and buckets
of 5e8, after the last backward pass, ZeRO or not (`core/optimizer/allreduce.py`). A rank sends and
receives in turn (`core/nn/pipeline_schedule/train.py`). Its gate is two parallel products, of which
each reduces its input's gradient (`core/nn/mlp.py`, `core/nn/linear/column_parallel_linear.py`),
and keep what a norm gathered. It gathers the whole vocabulary's logits, and keeps those of the
micro-batch before (`core/nn/parallel_module/buffers.py`): 2 + 2 bytes, 12 for log-softmax and two
gradients in fp32, 2 of an allocator's block that they split; gathered, 2 for the collective's
result and 2 for its pieces. Embedding, last norm and head are modules like a layer
(`core/nn/parallel_module/pipeline_partitioning.py`).
"""

TRANSFORMERS = TrainingCode(
    name="accelerate",
    kernels=Kernels(norm="eager", gate="eager", rotary="eager", softmax="eager", dropout=False),
    gradients=GradientPolicy(wide=False),
    replicas=ReplicaPolicy(
        holds_only_masters=True,
        gathered_layers=2.0,
        message_elements=0.0,
        message_layers=1.0,
        whole_bucket_elements=25 * 2**20 / 4,
    ),
    loss=LossPolicy(bytes_per_logit=14.0, shards_logits=False),
)
"""Models of transformers under Accelerate's FSDP2, which reduces in the computation's type. Norm,
gate, rotation and an unfused softmax are torch's operations (`models/llama/modeling_llama.py`); the
loss holds 16- and 32-bit logits, log-softmax and gradient.
"""

TORCHTITAN = FRONTRUNNER.changed(
    name="torchtitan",
    products__gathers_in_8_bits=True,
    activations__selective="alternate",
    loss__bytes_per_logit=14.0,
    loss__widens_by_rows=False,
)
"""FSDP2 as the project's own trainer has it. Selective recompute saves every second of a layer's
products (`distributed/activation_checkpoint.py`). The loss reads an fp32 copy of the logits
(`components/loss.py`), and holds that copy, its log-softmax, their gradient, and that in 16 bits,
unless it is compiled, as it was not in December 2024 (commit e8977b0).
"""

KNOWN = (
    FRONTRUNNER, DEEPSPEED, MEGATRON, MEGATRON_GPT, MEGATRON_DEEPSPEED, LLM_FOUNDRY, NANOTRON,
    TRANSFORMERS,
    ALEPH_ALPHA,
)  # fmt: skip
UNKNOWN = TrainingCode(
    name="unknown",
    kernels=Kernels(gate="eager", rotary="eager", dropout=False),
    products=ProductPolicy(transformer_engine=True),
    activations=ActivationPolicy(selective="either"),
    gradients=GradientPolicy(wide=True),
    loss=LossPolicy(bytes_per_logit=6.0),
    exchange_s=0.001,
    stands_for=KNOWN,
)
"""What lies in the middle of the known codes' step times and memory, with a loss that works in
place as Megatron-LM's: a recipe that is refused wrongly costs more than one that fails. It may wait
between pipeline ranks on different nodes: half of what a code takes by count that sends the shape
of a tensor before it (nanotron).
"""
NEMO = MEGATRON.changed(
    name="nemo",
    kernels__permutation="fused",
    products__overlaps_tensor_traffic=True,
    products__gathers_in_8_bits=True,
)
CODES = {
    code.name: code
    for code in (
        *KNOWN,
        NEMO,
        NEMO.changed(
            name="nemo-benchmark",
            gradients__wide=False,
            kernels__cross_entropy="fused",
        ),
        TORCHTITAN,
        TORCHTITAN.changed(
            name="torchtitan-2024",
            kernels__compiles_loss=False,
            pipeline__keeps_outputs=True,
        ),
        FRONTRUNNER.changed(
            name="nemo-automodel",
            kernels__flash=3,
            products__transformer_engine=True,
            kernels__norm="fused",
            kernels__gate="fused",
            kernels__rotary="fused",
            kernels__permutation="fused",
            experts__biases="weighted",
            experts__dispatches_once=True,
        ),
        UNKNOWN,
    )
}
"""Training codes by the names that campaign files use. NeMo and Megatron Bridge are Megatron's with
`moe_permute_fusion` and, where no layer has experts, `tp_comm_overlap`; their performance recipes
also have gradients in bf16 and a fused loss (Megatron Bridge's `perf_recipes/_common.py`,
`_benchmark_common`); NeMo AutoModel has FSDP2 and selective recompute as the project's own trainer
has, with Transformer Engine's kernels and DeepEP. Until 2025 torch's pipelines kept every stage's
outputs (github.com/pytorch/pytorch, pull request 153383 and issue 159251).
"""

_KERNEL = ("fused", "eager")
TRAITS: Mapping[str, Mapping[Any, Mapping[str, Any]]] = {
    "attention": (
        {f"flash-{version}": {"kernels__flash": version} for version in FLASH_SPEED}
        | {
            "fused-softmax": {"kernels__softmax": "fused"},
            "math": {"kernels__softmax": "math"},
            "eager": {"kernels__softmax": "eager"},
        }
    ),
    "norm": {kind: {"kernels__norm": kind} for kind in _KERNEL},
    "activation": {kind: {"kernels__gate": kind} for kind in _KERNEL},
    "rotary": {kind: {"kernels__rotary": kind} for kind in (*_KERNEL, "fp32")},
    "cross_entropy": {
        kind: {"kernels__cross_entropy": kind} for kind in ("fused", "16-bit", "eager")
    },
    "dropout": {value: {"kernels__dropout": value} for value in (True, False)},
    "permutation": {kind: {"kernels__permutation": kind} for kind in _KERNEL},
    "dispatcher": {
        "alltoall": {"experts__dispatches_once": False},
        "deepep": {"experts__dispatches_once": True},
    },
    "dispatch_overlap": {value: {"experts__overlaps_dispatch": value} for value in (True, False)},
    "tensor_overlap": {
        value: {"products__overlaps_tensor_traffic": value} for value in (True, False)
    },
    "cuda_graphs": {kind: {"cuda_graphs": kind} for kind in ("none", "layers", "step")},
    "gradients": {
        "fp32": {"gradients__wide": True, "gradients__narrow_in_fp16": False},
        "fp32-reduced": {
            "gradients__wide": False,
            "gradients__narrow_in_fp16": False,
            "gradients__reduced_wide": True,
        },
        "16-bit": {
            "gradients__wide": False,
            "gradients__narrow_in_fp16": False,
            "gradients__reduced_wide": False,
        },
    },
    "selective": {
        value: {"activations__selective": value} for value in ("attention", "products", "alternate")
    },
    "reduction": {
        "scattered": {"gradients__reduced_whole": False},
        "whole": {"gradients__reduced_whole": True},
    },
    "overlap": {
        "all": {"gradients__overlaps_unsharded": True, "gradients__overlaps_scattered": True},
        "sharded": {"gradients__overlaps_unsharded": False, "gradients__overlaps_scattered": True},
        "unsharded": {
            "gradients__overlaps_unsharded": True,
            "gradients__overlaps_scattered": False,
        },
        "none": {"gradients__overlaps_unsharded": False, "gradients__overlaps_scattered": False},
    },
}
"""What each value of a key of `SoftwareSettings` sets of a code."""


def with_traits(code: TrainingCode, stated: SoftwareSettings) -> TrainingCode:
    """Return a code, or all that an unknown one stands for, with the traits that are stated."""
    own: dict[str, Any] = {}
    for key, kinds in TRAITS.items():
        if (value := getattr(stated, key)) is not None:
            own |= kinds[value]
    if not own:
        return code
    stands_for = tuple(other.changed(**own) for other in code.stands_for)
    return code.changed(**own, stands_for=stands_for)


def coded(stated: SoftwareSettings, engine: str = "torch") -> TrainingCode:
    """Return the code that settings name, by default the engine's; a name that is not known is an
    unknown code's.
    """
    found = ENGINES[engine] if stated.code is None else CODES.get(stated.code, UNKNOWN)
    return with_traits(found, stated)


def known_as(code: TrainingCode) -> str:
    """Return the name under which constants are fitted to a code's steps: of an unknown one with
    its stated traits.
    """
    stated = (
        f"{key.replace('_', '-')} {value}"
        for key, kinds in (TRAITS if code.stands_for else {}).items()
        for value, own in kinds.items()
        if code.has(own) and not UNKNOWN.has(own)
    )
    return ", ".join([code.name, *stated])


def described(problem: Problem, engine: str) -> SoftwareSettings:
    """Return every trait that a problem's estimates assume; of an unknown code only those that are
    stated.
    """
    code = coded(problem.software, engine).at_precision(problem.precision)
    if code.stands_for:
        return replace(problem.software, code=code.name)
    found: dict[str, Any] = {}
    for key, kinds in TRAITS.items():
        fitting = (value for value, own in kinds.items() if code.has(own))
        found[key] = next(fitting)
    if not problem.has_fused_attention:
        found["attention"] = (
            "fused-softmax" if code.kernels.softmax == "fused" else code.kernels.softmax
        )
    if problem.precision == "fp32":
        found["gradients"] = "fp32"
    absent = {
        "rotary": problem.model.embedding.positions != "rotary",
        "activation": problem.model.feed_forward.matrices == 2,
    }
    absent |= dict.fromkeys(
        ("permutation", "dispatcher", "dispatch_overlap"), problem.model.mixture is None
    )
    return SoftwareSettings(
        code=code.name, **found | {key: None for key, is_absent in absent.items() if is_absent}
    )
