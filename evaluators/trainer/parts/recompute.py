"""Recomputing in the backward pass what a layer's forward pass does not keep."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import SAC_IGNORED_OPS, checkpoint, create_selective_checkpoint_contexts

# Matrix products and attention are the costly ones; the collectives are kept because recomputing is
# communication. Names, because a build of torch has only the attention kernels of its devices.
_KEPT_BY_SELECTIVE_RECOMPUTE = (
    ("aten", "mm"),
    ("aten", "addmm"),
    ("aten", "_grouped_mm"),
    ("aten", "_scaled_dot_product_flash_attention"),
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
    ("aten", "_scaled_dot_product_efficient_attention"),
    ("aten", "_scaled_dot_product_cudnn_attention"),
    ("aten", "_scaled_dot_product_fused_attention_overrideable"),
    ("_c10d_functional", "reduce_scatter_tensor"),
    ("_c10d_functional", "all_to_all_single"),
)

# Where FSDP2 runs a module within a layer again it opens more ranges for torch's profiler than the
# first time.
SAC_IGNORED_OPS.update(
    (
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    )
)

Transform = Callable[[Tensor], Tensor]


def recomputed(function: Callable[..., Tensor], *inputs: Tensor, **options: Any) -> Tensor:
    """Return `function(*inputs)`, of which only the inputs are kept: the backward pass calls the
    function again.
    """
    return cast(
        "Tensor",
        checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, **options),
    )


@cache
def kept_operators() -> tuple[torch._ops.OpOverload, ...]:
    """Return the operators whose results selective recompute keeps, of those that torch has."""
    packets = [
        getattr(getattr(torch.ops, space), name, None)
        for space, name in _KEPT_BY_SELECTIVE_RECOMPUTE
    ]
    return tuple(packet.default for packet in packets if packet is not None)


def recomputing(recompute: str) -> Callable[[Transform, Tensor], Tensor] | None:
    """Return how to run a block so that it keeps only what `recompute` says; None keeps
    everything.
    """
    if recompute != "selective":
        return None if recompute == "none" else recomputed
    kept = list(kept_operators())
    return partial(recomputed, context_fn=partial(create_selective_checkpoint_contexts, kept))
