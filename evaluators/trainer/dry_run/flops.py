"""Floating-point operations of single operators: torch's own formulas, and one for what they leave out."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

Formula = Callable[..., int]

_FLASH_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def flops(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> tuple[int, int]:
    """(FLOPs, those of them that compute something again) of one call of an operator; a multiply-add is two.

    Attention is counted over the whole sequence, without credit for the causal mask. The backward pass of flash
    attention computes the scores a second time: one of its five matrix products (arXiv 2205.14135, algorithm 4).
    """
    packet = operator._overloadpacket
    if packet is _FLASH_FORWARD:
        return _attention(*arguments[:3]), 0
    if packet is _FLASH_BACKWARD:
        products = _attention(*arguments[1:4]) // 2
        return 5 * products, products
    formula: Formula | None = flop_registry.get(packet)
    return (0, 0) if formula is None else (formula(*arguments, **options, out_val=output), 0)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """The two matrix products of attention's forward pass."""
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]
