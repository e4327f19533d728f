"""Training codes: what a recipe does not state, such as fused kernels, what is kept, and the host's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def fitted(value: float, low: float, high: float) -> Any:
    """Declare a constant that fits search between bounds, which hold for any machine, CPUs included."""
    return field(default=value, metadata={"bounds": (low, high)})


@dataclass(frozen=True, kw_only=True)
class Software:
    """One training code.

    `wide_gradients` keeps and reduces gradients in fp32 whatever the precision. `fused_kernels` runs activation and
    rotation as one kernel each. Where they are several and `keeps_between_kernels`, their results are kept with their
    inputs. `dropout` is applied to attention and between blocks.
    Selective recompute keeps the outputs of matrix products and of attention where `selective_keeps_products`, else all
    but what attention keeps. Under sequence parallelism `keeps_gathered` keeps what was gathered for first products,
    where others gather it again. Parameters sharded as far as the optimizer's states are held as those alone where
    `shards_only_masters`; `gathered_layers` whole layers come on top of the shards. `reduce_bytes` are held for each
    parameter of one layer while gradients are reduced, once a step, or at each micro-batch. `bytes_per_logit` is what
    the loss holds for each logit at its peak, and `sharded_logits` says that it does so for the rank's share of the
    vocabulary, `splits_tables` that tensor parallelism cuts embedding and head. Where `gradients_appear` they take
    memory from a step's first backward pass on, else always; with one micro-batch a layer's are reduced as soon as they
    exist. Gradients of unsharded parameters are reduced through a buffer of at most `bucket_elements` in fp32. Once
    a step they travel in messages of `message_elements`, or of `message_layers` layers where those have more; each
    passes the latency of its collective.
    `gradient_overlap` is the share of the computation that overlaps with gradients and parameters; gradients of
    unsharded parameters do so where `overlaps_unsharded`, and while they are scattered over shards of the optimizer
    where `overlaps_scattered` as well. `balances_head` cuts pipelines by the cost of layers and head together, where
    others give each rank as many layers. `host_layer_s` is what the host needs to issue one pass, forward or backward,
    of one layer, `host_collective_s` what it needs for a collective. `fragmentation` is the share of activations and
    parameters that the allocator loses.

    The shares and times are fitted, together with `machine.FITTED`; the rest is read off the code named.
    """

    name: str
    wide_gradients: bool
    fused_kernels: bool
    dropout: bool
    keeps_between_kernels: bool = True
    selective_keeps_products: bool = False
    keeps_gathered: bool = False
    shards_only_masters: bool = False
    gathered_layers: float = 0.0
    reduce_bytes: tuple[float, float] = (0.0, 0.0)
    bytes_per_logit: float = 10.0
    sharded_logits: bool = True
    splits_tables: bool = True
    bucket_elements: float = 0.0
    gradients_appear: bool = False
    message_elements: float = float("inf")
    message_layers: float = 0.0
    balances_head: bool = False
    overlaps_unsharded: bool = True
    overlaps_scattered: bool = True
    host_layer_s: float = fitted(1.12e-3, 2e-5, 2e-2)
    host_collective_s: float = fitted(48e-6, 0.0, 1e-2)
    gradient_overlap: float = fitted(0.30, 0.0, 1.0)
    fragmentation: float = 0.03


FRONTRUNNER = Software(
    name="frontrunner",
    wide_gradients=True,
    fused_kernels=False,
    dropout=False,
    selective_keeps_products=True,
    keeps_gathered=True,
    shards_only_masters=True,
    gathered_layers=3.4,
    reduce_bytes=(20.0, 5.0),
    gradients_appear=True,
    message_elements=0.0,
    message_layers=1.0,
)
"""The project's own trainer, as its dry runs show it: FSDP2 reduces in fp32, layer by layer; every operation is a
kernel."""

DEEPSPEED = Software(
    name="deepspeed",
    wide_gradients=True,
    fused_kernels=False,
    dropout=False,
    selective_keeps_products=True,
    gathered_layers=2.0,
    reduce_bytes=(0.0, 8.0),
    sharded_logits=False,
    splits_tables=False,
    bucket_elements=5e8,
    message_elements=5e8,
    overlaps_unsharded=False,
)
"""The project's model under DeepSpeed, read off its settings (`deepspeed_engine.py`): fp32 sums, buckets
of 5e8 elements, ZeRO-3 with one layer at work and one prefetched, no overlap_comm below ZeRO-3, and AutoTP, which
leaves embedding and head whole. No measurement or trace has validated it."""

ENGINES = {"torch": FRONTRUNNER, "deepspeed": DEEPSPEED}
"""The software of each of the project's engines."""

LLM_FOUNDRY = Software(
    name="llm-foundry",
    wide_gradients=True,
    fused_kernels=True,
    dropout=False,
    shards_only_masters=True,
    gathered_layers=3.4,
    reduce_bytes=(20.0, 5.0),
    bytes_per_logit=4.0,
    message_elements=0.0,
    message_layers=1.0,
)
"""MPT models under torch's first FSDP: flash attention on one product's slices, and flash-attn's cross entropy, the
default of llm-foundry, which keeps the logits in 16 bits and their gradient."""

MEGATRON_GPT = Software(
    name="megatron-gpt", wide_gradients=False, fused_kernels=True, dropout=True, overlaps_unsharded=False
)
"""Megatron-LM and Megatron-DeepSpeed in fp16: gradients in fp16, reduced after the last backward pass, fused kernels,
dropout (arXiv 2104.04473)."""

MEGATRON_LLAMA = Software(name="megatron-llama", wide_gradients=True, fused_kernels=True, dropout=False)
"""Megatron-LM in bf16, which accumulates gradients in fp32, and what was made after it."""

NANOTRON = Software(
    name="nanotron",
    wide_gradients=True,
    fused_kernels=False,
    dropout=False,
    message_elements=25 * 2**20 / 2,
    message_layers=0.25,
    balances_head=True,
    overlaps_scattered=False,
)
"""nanotron, as its code shows it: gradients are added up in fp32 and reduced by torch's DDP, in buckets of 25 MiB of
16-bit parameters or of one matrix, a quarter of a layer (`optim/gradient_accumulator.py`), during the last backward
pass; under ZeRO-1 that pass itself copies each bucket first, rank by rank (`distributed.py`,
`reduce_scatter_coalesced`), and nothing is taken to be hidden. The activation is torch's own operations.
Ranks of a pipeline get equal costs, the head among them (`models/base.py`, `build_model`)."""

WIDE_LOGITS_LLAMA = Software(
    name="wide-logits-llama",
    wide_gradients=False,
    fused_kernels=False,
    dropout=False,
    keeps_between_kernels=False,
    keeps_gathered=True,
    bytes_per_logit=28.0,
    sharded_logits=False,
)
"""The Llama trainer of arXiv 2311.05610, which gathers the whole vocabulary's logits. Of a logit its loss holds 28
bytes: itself in 16 bits, in fp32, shifted by a token, its logarithmic softmax, the gradients of the last three, and in
16 bits again. These bytes, and what its kernels and its sequence parallelism keep, were chosen for its failures, of
which other choices predict fewer, and refuse more runs."""
