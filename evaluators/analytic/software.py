"""Training codes: what a recipe does not state, such as the kernels, what is kept, and the host's
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from frontrunner.evaluators.analytic.workload import FP8_SCALINGS, Flags, Rows, Split, Workload
from frontrunner.spaces.problem import Problem, SoftwareSettings

Kernel = Literal["fused", "eager", "fp32"]
Softmax = Literal["fused", "math", "eager"]


def fitted(value: float, low: float, high: float) -> Any:
    """Declare a constant that fits search between bounds, which hold for any machine, CPUs
    included.
    """
    return field(default=value, metadata={"bounds": (low, high)})


class Bytes(NamedTuple):
    """Bytes that kernels move per value in a forward and a backward pass, and that they keep in
    between.
    """

    forward: float
    backward: float
    kept: float


KERNELS: Mapping[str, Mapping[str, Bytes]] = {
    "norm": {"fused": Bytes(4, 10, 2), "eager": Bytes(36, 76, 6)},
    "rotary": {"fused": Bytes(4, 4, 0), "eager": Bytes(20, 30, 0), "fp32": Bytes(48, 48, 2)},
    "gate": {"fused": Bytes(6, 10, 6), "eager": Bytes(10, 18, 8)},
    "clamped gate": {
        "fused": Bytes(6, 10, 6),
        "clamped before": Bytes(22, 30, 10),
        "eager": Bytes(32, 52, 14),
    },
    "expert bias": {"eager": Bytes(8, 4, 0)},
    "weighted bias": {"eager": Bytes(12, 16, 0), "fp32": Bytes(28, 40, 0)},
    "gelu": {"fused": Bytes(4, 8, 4), "eager": Bytes(4, 8, 4)},
    "residual": {"plain": Bytes(6, 6, 0), "dropout": Bytes(7, 13, 1)},
    "reshape": {"eager": Bytes(4, 8, 0)},
    "permutation": {
        "fused": Bytes(4, 4, 2),
        "weighed before": Bytes(10, 10, 2),
        "eager": Bytes(14, 20, 4),
    },
    "sorting": {"fused": Bytes(8, 8, 0)},
    "softmax": {"fused": Bytes(8, 14, 2), "math": Bytes(8, 14, 4), "eager": Bytes(33, 41, 6)},
    "dropout of scores": {"eager": Bytes(5, 5, 3)},
}
"""Bytes per 16-bit value (twice as many in fp32): an operation reads inputs from memory and writes
its result there.

A fused kernel reads and writes once; its backward pass reads input and gradient and writes one, and
a norm's reads both again for the gradient of its weight. An eager RMSNorm casts to fp32 (2 + 4),
squares (8), averages (4), multiplies (8), casts back (6), multiplies by the weight (4); backward
these take 12, 6, 24, 16, 12 for the sum of both gradients, 6; it keeps the fp32 copy and the
normalized value. An eager rotation negates a half and joins them (6), multiplies by cosine and sine
(8), adds (6); backward also two slices (8) and the sums of three gradients (12); `fp32` is the
project's own. `silu(x) * gate` in two kernels writes, reads and keeps what lies between; gpt-oss's
form clamps both (8), multiplies (4), takes the sigmoid (4), multiplies by it (6), adds 1 (4) and
multiplies (6); clamped before a fused kernel, both halves are clamped (8) and joined (8), and
backward clamped (12) and joined (8). An expert's bias is repeated for its rows (2) and added (6),
and its gradient summed (4). One that the router's weight multiplies is so (2), added (6) and joined
with those of other experts (4); backward its gradient and that of the weight are multiplied and
summed (6 each), and the rows' joined (4). With weights in fp32 these are 4, 10 and 8, and 6 to
convert; backward 12 each, 4, and 12 to convert. A gradient that two branches share is added (6), a
bias's reads its gradient again (2). Scores: the product writes them, softmax reads and writes them,
the next product reads them; an eager softmax casts to fp32 (6), masks (9), normalizes (8), casts
back (6), and keeps both. Each of a token's experts gathers its row (4), puts what it finds back in
order (4), weighs it (4) and adds it (2); it keeps the row and what was found. Where the gate has
weighed it, it is added to what is there (6), backward too, and not kept. Fused, a token's row is
read once and written for each expert, and what these found, weighed with the gate, is read for each
and written once. Received rows are sorted by expert, and back.
"""
FLASH_SPEED = {1: 0.53, 2: 1.0, 3: 1.75}
"""FlashAttention's rate by version: 25-40 % of an A100's peak against 50-73 % (arXiv 2307.08691,
abstract), and 1.5 to 2 times that of version 2 on H100 (2407.08608, abstract).
"""


@dataclass(frozen=True, kw_only=True)
class Software:
    """One training code; shares and times are fitted, together with `machine.FITTED`, the rest is
    read off its source.

    `norm`, `gate` and `rotary` name kernels of `KERNELS`, `softmax` that of attention that is not
    fused, which runs on multiples of `softmax_multiple` heads of a micro-batch, others by an eager
    one; `flash` is the version of one that is; its result is kept twice where micro-batches have
    `copies_attention_from` sequences. `wide_gradients` are fp32 unless they are `narrow_in_fp16`;
    where `reduces_wide` they are so on their way alone, and `reduces_whole` ones are all-reduced
    even where the optimizer's states are sharded. `selective` recompute is of `attention` that is
    not fused, or of all but `products` and attention, or of `alternate` products as well; a code
    that may do `either` does the second where attention is fused, since the first would change
    nothing. `compiles_loss` goes with compiled layers. `keeps_gathered` keeps what sequence
    parallelism gathered, `may_keep_gathered` has an option for it. `shards_only_masters` holds
    sharded parameters once, with `gathered_layers` whole layers; `reduce_bytes` per parameter of a
    layer are held while gradients are reduced, once a step, or at each micro-batch, through buckets
    of `bucket_elements`. `bytes_per_logit` is the loss's peak, but where it `widens_logits_by_rows`
    of whole logits: the logits and their gradient. Gradients take memory from the first backward
    pass on where `gradients_appear`, else always; they travel in messages of `message_elements` or
    `message_layers`, unsharded ones of `whole_bucket_elements` if it is not 0. `gradient_overlap`
    is the share of computation that hides them: unsharded ones where `overlaps_unsharded`,
    scattered ones where `overlaps_scattered`. A gate's two products reduce their input's gradient
    each by itself where `reduces_gate_twice`, unless sequence parallelism gathered it once.
    `exchange_s` is what a micro-batch waits, beyond the transfer, between pipeline ranks on
    different nodes; where code `sends_in_turn` a boundary's two directions do not overlap, and each
    waits. Sharded parameters come in `gathers_per_layer`. `host_layer_s` and `host_collective_s`
    are the host's time to issue one; `fragmentation` is the allocator's loss, a share of
    activations.

    Latent attention's values are padded to the width of its queries where code `pads_values`. Where
    attention `keeps_packed`, its values are a view of the joint product of queries, keys and
    values, which stays. A reducer's own buckets hold `reducer_bytes` per parameter.
    `pipeline_split` gives ranks as many layers each, or as much work with the head (`cost`), or as
    many modules (`ends`: embedding, last norm and head count as layers). Code that `sends_singly`
    has a communicator with each pipeline neighbor. A `cross_entropy` in 16 bits keeps no fp32 copy
    of the logits, nor does a fused one, which reads them fewer times. Products in 8 bits are
    `transformer_engine`'s, of experts too, which keeps their inputs and copies of weights in 8
    bits, and gathers inputs so; or else torchao's. Where it `gathers_in_8_bits`, parameters travel
    so, and Transformer Engine has no others; under torchao tensor-parallel ranks gather so too, if
    a tensor has one factor. An unknown code may be any that it `stands_for`.

    A token goes to each of its experts by itself, or to each node, and each rank there, where code
    `dispatches_once`, as DeepEP does; `overlaps_dispatch` runs another micro-batch meanwhile. Rows
    that arrive are sorted by expert in a pass of its own where it `sorts_received`.
    Sequence-parallel gathers and sums run beside the products of dense layers where code
    `overlaps_tensor`; virtual stages hide transfers between ranks where it `overlaps_interleaved`.
    Gradients are added by the products that compute them where it `fuses_accumulation`. CUDA
    `graphs` hold parts of each layer, or the whole step, which the host then starts at once. It
    starts `host_of_experts` times as many kernels for a layer with experts: the trainer 162
    operations for 108, Megatron-core 0.16.1 109 for 44, but for the experts' own, as torch
    dispatches them. Biases of experts are `repeated` for their rows; `weighted` ones of the last
    product also by the router; or `singly`, where that is done expert by expert, and the first
    product adds its own. Routers are multiplied in fp32 where code `widens_router`. Code that
    `clamps_before` a fused gate does so in kernels of torch. Its
    fused rotation is for plain ones alone where it `rotates_plainly`: not for YaRN's, nor for
    latent attention's. Its fused gate also `weighs_before` the last product what experts find. A
    pipeline's rank keeps the outputs of a step's micro-batches where code `keeps_outputs`, and
    where it `receives_apart` buffers for what each of them receives (torch,
    `distributed/pipelining/stage.py`).
    """

    name: str
    wide_gradients: bool
    dropout: bool
    norm: Kernel = "fused"
    gate: Kernel = "fused"
    rotary: Kernel = "fused"
    softmax: Softmax = "fused"
    softmax_multiple: int = 1
    flash: int = 2
    cross_entropy: Literal["fused", "16-bit", "eager"] = "eager"
    copies_attention_from: float = float("inf")
    keeps_packed: bool = False
    pads_values: bool = False
    narrow_in_fp16: bool = False
    reduces_wide: bool = False
    reduces_whole: bool = False
    reduces_gate_twice: bool = False
    exchange_s: float = 0.0
    sends_in_turn: bool = False
    gathers_per_layer: float = 1.0
    selective: Literal["attention", "products", "alternate", "either"] = "attention"
    compiles_loss: bool = True
    keeps_gathered: bool = False
    may_keep_gathered: bool = False
    shards_only_masters: bool = False
    gathered_layers: float = 0.0
    reduce_bytes: tuple[float, float] = (0.0, 0.0)
    reduces_tables_apart: bool = False
    bytes_per_logit: float = 10.0
    widens_logits_by_rows: bool = False
    sharded_logits: bool = True
    splits_tables: bool = True
    bucket_elements: float = 0.0
    gradients_appear: bool = False
    message_elements: float = float("inf")
    message_layers: float = 0.0
    whole_bucket_elements: float = 0.0
    pipeline_split: Split = "even"
    permutation: Kernel = "eager"
    sorts_received: bool = False
    dispatches_once: bool = False
    overlaps_dispatch: bool = False
    overlaps_tensor: bool = False
    overlaps_interleaved: bool = False
    host_of_experts: float = 1.5
    expert_biases: Literal["repeated", "weighted", "singly"] = "repeated"
    clamps_before: bool = False
    widens_router: bool = False
    rotates_plainly: bool = False
    weighs_before: bool = False
    keeps_outputs: bool = False
    receives_apart: bool = False
    fuses_accumulation: bool = False
    graphs: Literal["none", "layers", "step"] = "none"
    sends_singly: bool = False
    reducer_bytes: float = 0.0
    overlaps_unsharded: bool = True
    overlaps_scattered: bool = True
    host_layer_s: float = fitted(1.12e-3, 2e-5, 2e-2)
    host_collective_s: float = fitted(48e-6, 0.0, 1e-2)
    gradient_overlap: float = fitted(0.30, 0.0, 1.0)
    fragmentation: float = 0.03
    transformer_engine: bool = False
    gathers_in_8_bits: bool = False
    stands_for: tuple[Software, ...] = ()

    def share_sent(self, work: Workload) -> Rows:
        """Return the share of a layer's tensor-parallel traffic in 16 bits that is left: gathers in
        8 bits are half.
        """
        narrow = (work.fp8 > 0) if self.transformer_engine else self.gathers_so(work)
        share: Rows = np.where(narrow & work.sequence_parallel, 0.75, 1.0)
        return share

    def gathers_so(self, work: Workload) -> Flags:
        """Return whether parameters are gathered in 8 bits: by torchao with one factor a tensor,
        else but as MXFP8.
        """
        narrow = [name for name in FP8_SCALINGS[1:] if name not in ("rowwise", "mxfp8")]
        names = narrow if self.transformer_engine else ["tensorwise"]
        found: Flags = self.gathers_in_8_bits & np.isin(
            work.fp8, [FP8_SCALINGS.index(name) for name in names]
        )
        return found

    @property
    def fp8_default(self) -> str:
        """How factors are scaled to 8 bits unless stated: Transformer Engine's default is
        `DelayedScaling`.
        """
        return "delayed" if self.transformer_engine else "tensorwise"

    def has_feed_forward_in_8_bits(self, work: Workload) -> Flags:
        """Return whether the feed-forward part's products are in 8 bits too, where a recipe has
        such products.
        """
        dense: Flags = work.experts == 0
        return dense | self.transformer_engine

    def _bias_bytes(self, work: Workload, of: int) -> Rows:
        """Return the bytes of experts' biases per token and value of the hidden size."""
        repeated, weighted = KERNELS["expert bias"]["eager"][of], KERNELS["weighted bias"]
        inner = repeated * (work.ffn_matrices - 1) * work.ffn_hidden / work.hidden
        kind = "fp32" if self.dispatches_once else "eager"
        last = repeated if self.expert_biases == "repeated" else weighted[kind][of]
        found: Rows = work.experts_per_token * (
            (0.0 if self.expert_biases == "singly" else inner) + last
        )
        return found

    def elementwise_bytes(self, work: Workload, of: int, imbalance: Rows | float = 1.0) -> Rows:
        """Return one layer's bytes per token outside products and attention, of the field `of` of
        `Bytes`.

        A rank has `imbalance` times as many tokens for its experts as the mean.
        """

        def each(operation: str, kernel: str) -> Rows:
            kinds = KERNELS[operation]
            return np.where(work.compile, kinds.get("fused", kinds[kernel])[of], kinds[kernel][of])

        norm, residual = (
            each("norm", self.norm),
            KERNELS["residual"]["dropout" if self.dropout else "plain"][of],
        )
        between = work.norms * norm + 2 * residual
        if of == 2 and self.norm == "fused":  # two norms keep one input
            between = between - np.where(work.parallel_residual, norm, 0.0)
        reshaped, rotation = KERNELS["reshape"]["eager"][of], each("rotary", self.rotary)
        if self.rotates_plainly:
            rotation = np.where(
                self.rotates_eagerly(work), KERNELS["rotary"]["eager"][of], rotation
            )
        turned = np.where(work.rotary, rotation, 0.0)
        clamped = "clamped before" if self.clamps_before and self.gate == "fused" else self.gate
        gate = np.where(work.clamped_gate, each("clamped gate", clamped), each("gate", self.gate))
        feed_forward = np.where(work.ffn_matrices == 3, gate, each("gelu", "fused"))
        inside = reshaped * (work.q_hidden + work.kv_hidden) + turned * work.rotated_hidden
        if work.experts.any():
            routed = (
                work.experts_per_token * np.where(work.experts > 0, imbalance, 1.0)
                + work.shared_experts
            )
            feed_forward = feed_forward * routed
        inside = inside + feed_forward * work.ffn_hidden
        inside = inside + norm * work.normed_heads
        # Half is the row's, which ranks that share each expert hold of all of them.
        rows = work.experts_per_token * (1 + work.expert_tensor_parallel) / 2
        found = (
            "weighed before"
            if self.weighs_before and self.permutation == "eager"
            else self.permutation
        )
        permuted = each("permutation", found) * rows
        if self.sorts_received and not self.dispatches_once:
            permuted = permuted + KERNELS["sorting"]["fused"][of] * work.experts_per_token
        if work.expert_biases.any():
            permuted = permuted + np.where(work.expert_biases, self._bias_bytes(work, of), 0.0)
        permuted = np.where(work.experts > 0, permuted, 0.0) * imbalance
        between = (between + permuted) * work.hidden / work.sequence_shards
        between = between + norm * (work.query_rank + work.key_value_rank)
        return (between + inside / work.tensor_parallel) * work.bytes_per_value / 2

    def rotates_eagerly(self, work: Workload) -> Flags:
        """Return whether a fused rotation is none for a model's."""
        found: Flags = (work.stretched_rotary | (work.key_value_rank > 0)) & self.rotates_plainly
        return found

    def lacks_fused_softmax(self, work: Workload) -> Flags:
        """Return whether a fused softmax does not run on a rank's heads of a micro-batch, so that
        an eager one does.
        """
        heads: Rows = work.micro_batch_seqs * work.heads / work.tensor_parallel
        lacks: Flags = ~work.fused_attention & (heads % self.softmax_multiple != 0)
        return lacks

    def keeps_products(self, work: Workload) -> Flags:
        """Return whether selective recompute keeps products and attention alone."""
        found: Flags = (
            work.fused_attention
            if self.selective == "either"
            else np.array([self.selective != "attention"])
        )
        return found

    def fuses_loss(self, work: Workload) -> Flags:
        """Return whether the loss is compiled in one piece."""
        found: Flags = work.compile & (work.loss_chunks == 1) & self.compiles_loss
        return found

    def score_bytes(self, work: Workload, of: int) -> Rows:
        """Return the bytes per score of attention that is not fused, of the field `of` of
        `Bytes`.
        """
        kinds = KERNELS["softmax"]
        each = np.where(self.lacks_fused_softmax(work), kinds["eager"][of], kinds[self.softmax][of])
        if self.dropout:
            each = each + KERNELS["dropout of scores"]["eager"][of]
        return each * work.bytes_per_value / 2


FRONTRUNNER = Software(
    name="frontrunner",
    wide_gradients=True,
    gate="eager",
    rotary="fp32",
    softmax="math",
    copies_attention_from=1,
    dropout=False,
    selective="products",
    keeps_gathered=True,
    pads_values=True,
    widens_router=True,
    bytes_per_logit=16.0,
    shards_only_masters=True,
    widens_logits_by_rows=True,
    gathered_layers=2.0,
    reduce_bytes=(6.0, 5.0),
    reduces_tables_apart=True,
    gradients_appear=True,
    message_elements=0.0,
    message_layers=1.0,
    whole_bucket_elements=25 * 2**20 / 4,
    receives_apart=True,
)
"""The project's own trainer, as its dry runs show it: FSDP2 reduces in fp32, layer by layer, plain
replicas in buckets of 25 MiB. Sharded logits are there four times in fp32 while torch's parallel
loss runs backward.
"""

DEEPSPEED = Software(
    name="deepspeed",
    wide_gradients=True,
    gate="eager",
    rotary="fp32",
    softmax="math",
    copies_attention_from=1,
    dropout=False,
    selective="products",
    gathered_layers=2.0,
    widens_logits_by_rows=True,
    reduce_bytes=(0.0, 8.0),
    sharded_logits=False,
    splits_tables=False,
    bucket_elements=5e8,
    message_elements=5e8,
    overlaps_unsharded=False,
)
"""DeepSpeed as `deepspeed_engine.py` sets it; AutoTP leaves embedding and head whole. Not
validated.
"""

ENGINES = {"torch": FRONTRUNNER, "deepspeed": DEEPSPEED}

LLM_FOUNDRY = Software(
    name="llm-foundry",
    wide_gradients=True,
    dropout=False,
    shards_only_masters=True,
    gathered_layers=3.4,
    reduce_bytes=(20.0, 5.0),
    cross_entropy="16-bit",
    message_elements=0.0,
    message_layers=1.0,
    transformer_engine=True,
)
"""MPT models under torch's first FSDP, with flash attention and flash-attn's cross entropy in 16
bits; its published step times are nearer to a loss of several kernels than to one (8.2 against 10.0
% off).
"""

MEGATRON_GPT = Software(
    name="megatron-lm-fp16",
    wide_gradients=False,
    dropout=True,
    softmax_multiple=4,
    overlaps_unsharded=False,
)
"""Megatron-LM and Megatron-DeepSpeed in fp16: gradients reduced after the last backward pass (arXiv
2104.04473). The fused softmax runs on multiples of four heads (`core/fusions/fused_softmax.py`,
`is_kernel_available`).
"""

MEGATRON = Software(
    name="megatron-lm",
    wide_gradients=True,
    narrow_in_fp16=True,
    dropout=False,
    softmax_multiple=4,
    bytes_per_logit=6.0,
    flash=3,
    overlaps_interleaved=True,
    host_of_experts=2.5,
    expert_biases="singly",
    clamps_before=True,
    rotates_plainly=True,
    weighs_before=True,
    sorts_received=True,
    fuses_accumulation=True,
    transformer_engine=True,
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

MEGATRON_DEEPSPEED = Software(
    name="megatron-deepspeed",
    wide_gradients=True,
    narrow_in_fp16=True,
    softmax_multiple=4,
    gate="eager",
    rotary="eager",
    dropout=False,
    sends_in_turn=True,
    sends_singly=True,
    gathers_per_layer=4.0,
    overlaps_unsharded=False,
)
"""Megatron-DeepSpeed and GPT-NeoX: a rank sends to its pipeline neighbor and receives from it one
after the other (DeepSpeed's `runtime/pipe/schedule.py`, `TrainSchedule`), where Megatron-LM does
both at once. ZeRO-3 gathers a matrix at a time: by default it prefetches 5e7 elements, less than
one (`runtime/zero/partitioned_param_coordinator.py`). `F.silu(x[0]) * x[1]` and the rotation are
torch's operations (`megatron/model/transformer.py`).
"""

NANOTRON = Software(
    name="nanotron",
    wide_gradients=True,
    gate="eager",
    copies_attention_from=2,
    keeps_packed=True,
    may_keep_gathered=True,
    reducer_bytes=2.0,
    sends_singly=True,
    dropout=False,
    exchange_s=0.025,
    sends_in_turn=True,
    message_elements=25 * 2**20 / 2,
    message_layers=0.25,
    pipeline_split="cost",
    overlaps_scattered=False,
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

ALEPH_ALPHA = Software(
    name="aleph-alpha-scaling",
    wide_gradients=False,
    dropout=False,
    norm="eager",
    gate="eager",
    rotary="eager",
    softmax="eager",
    flash=1,
    reduces_wide=True,
    reduces_whole=True,
    reduces_gate_twice=True,
    overlaps_unsharded=False,
    overlaps_scattered=False,
    message_elements=5e8,
    keeps_gathered=True,
    keeps_packed=True,
    copies_attention_from=2,
    sends_singly=True,
    sends_in_turn=True,
    pipeline_split="ends",
    bytes_per_logit=18.0,
    sharded_logits=False,
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

TRANSFORMERS = Software(
    name="accelerate",
    wide_gradients=False,
    norm="eager",
    gate="eager",
    rotary="eager",
    softmax="eager",
    dropout=False,
    shards_only_masters=True,
    gathered_layers=2.0,
    bytes_per_logit=14.0,
    sharded_logits=False,
    message_elements=0.0,
    message_layers=1.0,
    whole_bucket_elements=25 * 2**20 / 4,
)
"""Models of transformers under Accelerate's FSDP2, which reduces in the computation's type. Norm,
gate, rotation and an unfused softmax are torch's operations (`models/llama/modeling_llama.py`); the
loss holds 16- and 32-bit logits, log-softmax and gradient.
"""

TORCHTITAN = replace(
    FRONTRUNNER,
    name="torchtitan",
    gathers_in_8_bits=True,
    selective="alternate",
    bytes_per_logit=14.0,
    widens_logits_by_rows=False,
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
UNKNOWN = Software(
    name="unknown",
    wide_gradients=True,
    gate="eager",
    rotary="eager",
    dropout=False,
    selective="either",
    exchange_s=1e-3,
    bytes_per_logit=6.0,
    transformer_engine=True,
    stands_for=KNOWN,
)
"""What lies in the middle of the known codes' step times and memory, with a loss that works in
place as Megatron-LM's: a recipe that is refused wrongly costs more than one that fails. It may wait
between pipeline ranks on different nodes: half of what a code takes by count that sends the shape
of a tensor before it (nanotron).
"""
NEMO = replace(
    MEGATRON, name="nemo", permutation="fused", overlaps_tensor=True, gathers_in_8_bits=True
)
CODES = {
    code.name: code
    for code in (
        *KNOWN,
        NEMO,
        replace(NEMO, name="nemo-benchmark", wide_gradients=False, cross_entropy="fused"),
        TORCHTITAN,
        replace(TORCHTITAN, name="torchtitan-2024", compiles_loss=False, keeps_outputs=True),
        replace(
            FRONTRUNNER,
            name="nemo-automodel",
            flash=3,
            transformer_engine=True,
            norm="fused",
            gate="fused",
            rotary="fused",
            permutation="fused",
            expert_biases="weighted",
            dispatches_once=True,
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
        {f"flash-{version}": {"flash": version} for version in FLASH_SPEED}
        | {
            "fused-softmax": {"softmax": "fused"},
            "math": {"softmax": "math"},
            "eager": {"softmax": "eager"},
        }
    ),
    "norm": {kind: {"norm": kind} for kind in _KERNEL},
    "activation": {kind: {"gate": kind} for kind in _KERNEL},
    "rotary": {kind: {"rotary": kind} for kind in (*_KERNEL, "fp32")},
    "cross_entropy": {kind: {"cross_entropy": kind} for kind in ("fused", "16-bit", "eager")},
    "dropout": {value: {"dropout": value} for value in (True, False)},
    "permutation": {kind: {"permutation": kind} for kind in _KERNEL},
    "dispatcher": {"alltoall": {"dispatches_once": False}, "deepep": {"dispatches_once": True}},
    "dispatch_overlap": {value: {"overlaps_dispatch": value} for value in (True, False)},
    "tensor_overlap": {value: {"overlaps_tensor": value} for value in (True, False)},
    "cuda_graphs": {kind: {"graphs": kind} for kind in ("none", "layers", "step")},
    "gradients": {
        "fp32": {"wide_gradients": True, "narrow_in_fp16": False},
        "fp32-reduced": {"wide_gradients": False, "narrow_in_fp16": False, "reduces_wide": True},
        "16-bit": {"wide_gradients": False, "narrow_in_fp16": False, "reduces_wide": False},
    },
    "selective": {value: {"selective": value} for value in ("attention", "products", "alternate")},
    "reduction": {"scattered": {"reduces_whole": False}, "whole": {"reduces_whole": True}},
    "overlap": {
        "all": {"overlaps_unsharded": True, "overlaps_scattered": True},
        "sharded": {"overlaps_unsharded": False, "overlaps_scattered": True},
        "unsharded": {"overlaps_unsharded": True, "overlaps_scattered": False},
        "none": {"overlaps_unsharded": False, "overlaps_scattered": False},
    },
}
"""What each value of a key of `SoftwareSettings` sets of a code."""


def with_traits(code: Software, stated: SoftwareSettings) -> Software:
    """Return a code, or all that an unknown one stands for, with the traits that are stated."""
    own: dict[str, Any] = {}
    for key, kinds in TRAITS.items():
        if (value := getattr(stated, key)) is not None:
            own |= kinds[value]
    return (
        replace(code, **own, stands_for=tuple(replace(one, **own) for one in code.stands_for))
        if own
        else code
    )


def coded(stated: SoftwareSettings, engine: str = "torch") -> Software:
    """Return the code that settings name, by default the engine's; a name that is not known is an
    unknown code's.
    """
    found = ENGINES[engine] if stated.code is None else CODES.get(stated.code, UNKNOWN)
    return with_traits(found, stated)


def at_precision(code: Software, precision: str) -> Software:
    """Return a code with the type of gradients that it has at a precision."""
    is_narrow = code.narrow_in_fp16 and precision == "fp16"
    return replace(code, wide_gradients=code.wide_gradients and not is_narrow, narrow_in_fp16=False)


def known_as(code: Software) -> str:
    """Return the name under which constants are fitted to a code's steps: of an unknown one with
    its stated traits.
    """
    stated = (
        f"{key.replace('_', '-')} {value}"
        for key, kinds in (TRAITS if code.stands_for else {}).items()
        for value, own in kinds.items()
        if _has(code, own) and not _has(UNKNOWN, own)
    )
    return ", ".join([code.name, *stated])


def _has(code: Software, traits: Mapping[str, Any]) -> bool:
    return all(getattr(code, name) == value for name, value in traits.items())


def described(problem: Problem, engine: str) -> SoftwareSettings:
    """Return every trait that a problem's estimates assume; of an unknown code only those that are
    stated.
    """
    code = at_precision(coded(problem.software, engine), problem.precision)
    if code.stands_for:
        return replace(problem.software, code=code.name)
    found: dict[str, Any] = {}
    for key, kinds in TRAITS.items():
        fitting = (value for value, own in kinds.items() if _has(code, own))
        found[key] = next(fitting)
    if not problem.has_fused_attention:
        found["attention"] = "fused-softmax" if code.softmax == "fused" else code.softmax
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
