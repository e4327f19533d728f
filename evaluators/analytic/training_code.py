"""What a training code does that a recipe does not state: its kernels, what it keeps, how it
communicates. `codes` has the codes that are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.kernels import (
    DROPPED_SCORE,
    KERNELS,
    SOFTMAX,
    Bytes,
    ElementwiseKernel,
    Form,
)

LayerSplit = Literal["even", "cost", "ends"]


def fitted(value: float, low: float, high: float) -> Any:
    """Declare a constant that fits search between bounds. The bounds hold for every machine, CPUs
    included.
    """
    return field(default=value, metadata={"bounds": (low, high)})


class ScoreBytes(NamedTuple):
    """Bytes per score of attention that is not one kernel: moved in each pass, and kept."""

    forward: Rows
    backward: Rows
    kept: Rows


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernel of each operation outside matrix products, as named in `kernels.KERNELS`."""

    norm: Form = "fused"
    gate: Form = "fused"
    rotary: Form = "fused"
    permutation: Form = "eager"
    """Sorting tokens by expert."""
    softmax: Literal["fused", "math", "eager"] = "fused"
    """Softmax of attention that is not one kernel."""
    fused_softmax_heads: int = 1
    """The fused softmax runs where the heads of a rank's micro-batch are a multiple of this.
    Otherwise an eager one does.
    """
    flash: int = 2
    """Version of FlashAttention."""
    cross_entropy: Literal["fused", "16-bit", "eager"] = "eager"
    """The loss: one kernel, several that keep no fp32 copy of the logits, or torch's operations."""
    compiles_loss: bool = True
    """Whether the loss is compiled together with the layers."""
    dropout: bool = False
    """Whether residuals and scores are dropped out."""
    clamps_before_gate: bool = False
    """Whether torch's kernels clamp the inputs of a fused gate."""
    weighs_in_gate: bool = False
    """Whether the fused gate multiplies by the router's weights."""
    fused_rotary_is_plain: bool = False
    """Whether the fused rotation cannot scale as well (YaRN), nor serve latent attention. Those
    rotations, the kernel `other rotary`, are then eager.
    """

    def score_bytes(self, *, eager: Flags) -> ScoreBytes:
        """Return the bytes per score; in `eager` recipes the softmax is eager, whatever the code
        prefers.
        """
        kinds = zip(SOFTMAX["eager"], SOFTMAX[self.softmax], DROPPED_SCORE, strict=True)
        found = []
        for of_eager, of_code, dropped in kinds:
            found.append(np.where(eager, of_eager, of_code) + (dropped if self.dropout else 0.0))
        return ScoreBytes(*found)

    def bytes_of(self, kernel: ElementwiseKernel) -> tuple[Bytes, Bytes]:
        """Return the bytes per 16-bit value of a kernel, compiled and not compiled."""
        if kernel == "other rotary" and not self.fused_rotary_is_plain:
            kernel = "rotary"
        forms = KERNELS["rotary" if kernel == "other rotary" else kernel]
        stated = forms[self._form_of(kernel)]
        if kernel == "other rotary":
            return stated, stated
        return forms.get("fused", stated), stated

    def _form_of(self, kernel: ElementwiseKernel) -> str:
        gate: str = self.gate
        if kernel == "clamped gate" and self.clamps_before_gate and self.gate == "fused":
            gate = "clamped before"
        permutation: str = self.permutation
        if self.weighs_in_gate and self.permutation == "eager":
            permutation = "weighed before"
        forms: Mapping[ElementwiseKernel, str] = {
            "norm": self.norm,
            "rotary": self.rotary,
            "gate": gate,
            "clamped gate": gate,
            "gelu": "fused",
            "residual": "dropout" if self.dropout else "plain",
            "permutation": permutation,
            "sorting": "fused",
        }
        return forms.get(kernel, "eager")


@dataclass(frozen=True, kw_only=True)
class ProductPolicy:
    """How matrix products run."""

    transformer_engine: bool = False
    """Products in 8 bits are Transformer Engine's. It casts experts' products too, keeps inputs and
    copies of weights in 8 bits, and gathers inputs in 8 bits. Otherwise they are torchao's.
    """
    gathers_in_8_bits: bool = False
    """Sharded parameters travel in 8 bits where products are. Transformer Engine then keeps no
    16-bit ones. Under torchao tensor-parallel ranks gather their inputs so too, if a tensor has one
    scaling factor.
    """
    fuses_accumulation: bool = False
    """Products for the gradients of weights add to the sums that they keep."""
    overlaps_tensor_traffic: bool = False
    """Sequence-parallel gathers and sums of dense layers run beside products."""
    reduces_gate_twice: bool = False
    """The two products of a gate each reduce the gradient of their input, unless sequence
    parallelism gathered that input once.
    """

    @property
    def fp8_default(self) -> str:
        """How factors are scaled to 8 bits unless stated: Transformer Engine's default is
        `DelayedScaling`.
        """
        return "delayed" if self.transformer_engine else "tensorwise"


@dataclass(frozen=True, kw_only=True)
class ActivationPolicy:
    """What the forward pass keeps for the backward pass."""

    selective: Literal["attention", "products", "alternate", "either"] = "attention"
    """What selective recompute drops: attention that is not one kernel, all but `products` and
    attention, or every second product too (`alternate`). `either` is `products` where attention is
    one kernel, since the first would change nothing, else `attention`.
    """
    keeps_gathered: bool = False
    """Inputs of products stay as sequence parallelism gathered them."""
    may_keep_gathered: bool = False
    """Whether an option of the code, which recipes do not state, decides that."""
    keeps_packed_qkv: bool = False
    """Values are a view of the joint product of queries, keys and values, which stays."""
    pads_values: bool = False
    """Latent attention's values are padded to the width of its queries."""
    copies_attention_from: float = float("inf")
    """Micro-batches of at least so many sequences keep attention's result twice."""
    fragmentation: float = 0.03
    """What the allocator loses, as a share of activations."""

    def keeps_products(self, *, fused_attention: bool) -> bool:
        """Return whether selective recompute keeps products and attention alone."""
        if self.selective == "either":
            return fused_attention
        return self.selective != "attention"


@dataclass(frozen=True, kw_only=True)
class GradientPolicy:
    """The type of gradients, and when they take memory and are reduced."""

    wide: bool = True
    """Gradients are kept and reduced in fp32."""
    narrow_in_fp16: bool = False
    """Gradients are not in fp32 where the arithmetic is fp16."""
    reduced_wide: bool = False
    """Gradients are converted to fp32 only while they are reduced."""
    reduced_whole: bool = False
    """They are all-reduced even where the optimizer's states are sharded."""
    appear_in_backward: bool = False
    """They take memory from a step's first backward pass on, not always."""
    overlaps_unsharded: bool = True
    """The reduction of unsharded gradients overlaps the backward pass."""
    overlaps_scattered: bool = True
    """The reduction of gradients to shards overlaps it."""


@dataclass(frozen=True, kw_only=True)
class ReplicaPolicy:
    """Messages and buffers of the traffic between replicas."""

    message_elements: float = float("inf")
    message_layers: float = 0.0
    """Gradients travel in messages of at least so many elements, and at least so many layers."""
    whole_bucket_elements: float = 0.0
    """Size of the buckets in which unsharded gradients are reduced; 0: as other messages."""
    bucket_elements: float = 0.0
    """Size of a bucket that is held while unsharded parameters' gradients are reduced."""
    bucket_bytes: float = 0.0
    """Bytes per parameter of a reducer's own buckets."""
    reduce_bytes_once: float = 0.0
    """Bytes per parameter of a layer while gradients are reduced once a step."""
    reduce_bytes_each: float = 0.0
    """The same where they are reduced at each micro-batch."""
    reduces_tables_apart: bool = False
    """The head's table is gathered and reduced like a layer of its own."""
    holds_only_masters: bool = False
    """Sharded parameters are held once, in fp32."""
    gathered_layers: float = 0.0
    """Whole layers that are gathered at a time."""
    gathers_per_layer: float = 1.0
    """Messages in which a layer's sharded parameters are gathered."""


@dataclass(frozen=True, kw_only=True)
class LossPolicy:
    """How embedding, head and logits are split and held."""

    splits_tables: bool = True
    """Tensor-parallel ranks share embedding and head."""
    shards_logits: bool = True
    """They share the logits too, which otherwise are gathered."""
    bytes_per_logit: float = 10.0
    """What the loss holds at its peak."""
    widens_by_rows: bool = False
    """Whole logits are converted to fp32 a few rows at a time."""


@dataclass(frozen=True, kw_only=True)
class PipelinePolicy:
    """How pipeline ranks share layers, send, and keep what they sent."""

    layer_split: LayerSplit = "even"
    """Ranks get as many layers each, as much work with the head (`cost`), or as many modules
    (`ends`: embedding, last norm and head count as layers).
    """
    sends_in_turn: bool = False
    """A boundary's two directions do not overlap, and each waits."""
    sends_singly: bool = False
    """A rank has a communicator with each of its neighbors."""
    overlaps_interleaved: bool = False
    """Virtual stages hide the transfers between ranks."""
    keeps_outputs: bool = False
    """A rank keeps the outputs of all micro-batches of a step."""
    receives_apart: bool = False
    """A rank holds a buffer for what it receives of each micro-batch of a step (torch,
    `distributed/pipelining/stage.py`).
    """


@dataclass(frozen=True, kw_only=True)
class ExpertPolicy:
    """How a mixture of experts runs."""

    dispatches_once: bool = False
    """A token goes to each node that has one of its experts, and to each rank there, as DeepEP
    sends it; otherwise to each expert by itself.
    """
    overlaps_dispatch: bool = False
    """Another micro-batch runs meanwhile."""
    sorts_received: bool = False
    """Rows that arrive are sorted by expert in a pass of its own."""
    widens_router: bool = False
    """The router's product is in fp32."""
    biases: Literal["repeated", "weighted", "singly"] = "repeated"
    """Biases of experts are repeated for their rows, those of the last product also weighted by the
    router; or this is done expert by expert (`singly`), where the first product adds its own.
    """
    host_factor: float = 1.5
    """Kernels that the host starts for a layer with experts over those of a dense layer, as torch
    dispatches them, without the experts' own: 162 over 108 in the built-in trainer, 109 over 44 in
    Megatron-core 0.16.1.
    """


@dataclass(frozen=True, kw_only=True)
class TrainingCode:
    """One training code. Its times and shares are fitted together with `machine.FITTED`; the rest
    is read off its source.
    """

    name: str
    kernels: Kernels = Kernels()
    products: ProductPolicy = ProductPolicy()
    activations: ActivationPolicy = ActivationPolicy()
    gradients: GradientPolicy = GradientPolicy()
    replicas: ReplicaPolicy = ReplicaPolicy()
    loss: LossPolicy = LossPolicy()
    pipeline: PipelinePolicy = PipelinePolicy()
    experts: ExpertPolicy = ExpertPolicy()
    cuda_graphs: Literal["none", "layers", "step"] = "none"
    """What the host starts at once: nothing, parts of each layer, or the whole step."""
    host_layer_s: float = fitted(1.12e-3, 2e-5, 2e-2)
    """The host's time to start one layer's kernels, forward or backward."""
    host_collective_s: float = fitted(48e-6, 0.0, 1e-2)
    """The host's time to start one collective."""
    gradient_overlap: float = fitted(0.30, 0.0, 1.0)
    """Share of the computation behind which the reduction of gradients can hide."""
    exchange_s: float = 0.0
    """What a micro-batch waits, beyond the transfer, between pipeline ranks on different nodes."""
    stands_for: tuple[TrainingCode, ...] = ()
    """The codes that an unknown one may be."""

    def changed(self, **values: Any) -> TrainingCode:
        """Return the code with other values; `kernels__norm` names the field of a policy."""
        own: dict[str, Any] = {}
        of_policies: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            policy, _, name = key.rpartition("__")
            if policy:
                of_policies.setdefault(policy, {})[name] = value
            else:
                own[key] = value
        own |= {
            policy: replace(getattr(self, policy), **fields)
            for policy, fields in of_policies.items()
        }
        return replace(self, **own)

    def has(self, values: Mapping[str, Any]) -> bool:
        """Return whether the code has all of these values, named as in `changed`."""
        for key, value in values.items():
            policy, _, name = key.rpartition("__")
            if getattr(getattr(self, policy) if policy else self, name) != value:
                return False
        return True

    def at_precision(self, precision: str) -> TrainingCode:
        """Return the code with the type of gradients that it has at a precision."""
        is_narrow = self.gradients.narrow_in_fp16 and precision == "fp16"
        return self.changed(
            gradients__wide=self.gradients.wide and not is_narrow, gradients__narrow_in_fp16=False
        )

    def gradient_bytes(self, bytes_per_value: float) -> float:
        """Return the bytes per gradient that is kept and reduced."""
        return 4.0 if self.gradients.wide else bytes_per_value
