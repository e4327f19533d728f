"""Recompute: the backward pass runs a function again instead of keeping what it saved."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import SAC_IGNORED_OPS, checkpoint, create_selective_checkpoint_contexts

# Operators whose results selective recompute keeps: matrix products and attention, because they
# take most of the time, and collectives, because running them again is communication. They are
# listed by name because a build of torch has only the attention kernels of its devices.
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

# Selective recompute expects the same operators in both runs. Where FSDP2 runs a module within a
# layer again, it opens more ranges for torch's profiler than in the first run.
SAC_IGNORED_OPS.update(
    (
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    )
)

Transform = Callable[[Tensor], Tensor]


def recomputed(function: Callable[..., Tensor], *inputs: Tensor, **options: Any) -> Tensor:
    """Return `function(*inputs)` and keep only the inputs. The backward pass calls it again."""
    return cast(
        "Tensor",
        checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, **options),
    )


@cache
def kept_operators() -> tuple[torch._ops.OpOverload, ...]:
    """Return the operators whose results selective recompute keeps, if this torch has them."""
    packets = [
        getattr(getattr(torch.ops, namespace), name, None)
        for namespace, name in _KEPT_BY_SELECTIVE_RECOMPUTE
    ]
    return tuple(packet.default for packet in packets if packet is not None)


def selective_contexts() -> Callable[[], Any]:
    """Return the `context_fn` with which `recomputed` keeps the results of `kept_operators`."""
    return partial(create_selective_checkpoint_contexts, list(kept_operators()))
