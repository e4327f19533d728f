"""Training codes: what a recipe does not state, such as fused kernels, what is kept, and the host's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def fitted(value: float, low: float, high: float) -> Any:
    """Declare a constant that fits search between bounds, which hold for any machine, CPUs included."""
    return field(default=value, metadata={"bounds": (low, high)})


@dataclass(frozen=True, kw_only=True)
class Software:
    """One training code; shares and times are fitted, together with `machine.FITTED`, the rest is read off its source.

    `wide_gradients` are fp32 whatever the precision. Kernels that are not fused keep their results too where
    `keeps_between_kernels`. Selective recompute keeps products and attention where `selective_keeps_products`, else all
    but attention's; `keeps_gathered` keeps what sequence parallelism gathered. `shards_only_masters` holds sharded
    parameters once, with `gathered_layers` whole layers; `reduce_bytes` per parameter of a layer are held while
    gradients are reduced, once a step, or at each micro-batch, through buckets of `bucket_elements`. `bytes_per_logit`
    is the loss's peak, but where it `widens_logits_by_rows` of whole logits: the logits and their gradient. Gradients
    take memory from the first backward pass on where `gradients_appear`, else always;
    they travel in messages of `message_elements` or `message_layers`, unsharded ones of `whole_bucket_elements` if it
    is not 0. `gradient_overlap` is the share of computation that hides them: unsharded ones where `overlaps_unsharded`,
    scattered ones where `overlaps_scattered`. `host_layer_s` and `host_collective_s` are the host's time to issue one;
    `fragmentation` is the allocator's loss.
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
    widens_logits_by_rows: bool = False
    sharded_logits: bool = True
    splits_tables: bool = True
    bucket_elements: float = 0.0
    gradients_appear: bool = False
    message_elements: float = float("inf")
    message_layers: float = 0.0
    whole_bucket_elements: float = 0.0
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
    widens_logits_by_rows=True,
    gathered_layers=3.4,
    reduce_bytes=(20.0, 5.0),
    gradients_appear=True,
    message_elements=0.0,
    message_layers=1.0,
    whole_bucket_elements=25 * 2**20 / 4,
)
"""The project's own trainer, as its dry runs show it: FSDP2 reduces in fp32, layer by layer, plain replicas in
buckets of 25 MiB."""

DEEPSPEED = Software(
    name="deepspeed",
    wide_gradients=True,
    fused_kernels=False,
    dropout=False,
    selective_keeps_products=True,
    gathered_layers=2.0,
    widens_logits_by_rows=True,
    reduce_bytes=(0.0, 8.0),
    sharded_logits=False,
    splits_tables=False,
    bucket_elements=5e8,
    message_elements=5e8,
    overlaps_unsharded=False,
)
"""DeepSpeed as `deepspeed_engine.py` sets it; AutoTP leaves embedding and head whole. Not validated."""

ENGINES = {"torch": FRONTRUNNER, "deepspeed": DEEPSPEED}

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
"""MPT models under torch's first FSDP, with flash attention and flash-attn's cross entropy in 16 bits."""

MEGATRON_GPT = Software(
    name="megatron-gpt", wide_gradients=False, fused_kernels=True, dropout=True, overlaps_unsharded=False
)
"""Megatron-LM and Megatron-DeepSpeed in fp16: gradients reduced after the last backward pass (arXiv 2104.04473)."""

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
"""Gradients in fp32, reduced by torch's DDP in buckets of 25 MiB of 16-bit parameters or a quarter of a layer
(`optim/gradient_accumulator.py`); under ZeRO-1 nothing overlaps (`distributed.py`). Pipelines are cut by cost
(`models/base.py`)."""

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
"""The Llama trainer of arXiv 2311.05610, which gathers the whole vocabulary's logits: 28 bytes each in its loss. What
its kernels and its sequence parallelism keep was chosen for its failures."""
