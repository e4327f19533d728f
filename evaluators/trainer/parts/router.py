"""The router of a mixture of experts: a linear layer that computes in fp32."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Router(nn.Linear):
    """The linear layer whose outputs rank the experts for each token."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, E] in fp32."""
        return wide_product(x, self.weight, self.bias)


def wide_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a linear layer's outputs in fp32 or wider, whatever the types of its inputs.

    In 16 bits, rounding would decide between experts with nearly equal scores. `transformers`'
    DeepSeek-V3 and Megatron-LM's `--moe-router-dtype fp32` compute in the same way: the weight is
    rounded as mixed precision rounds it, and converted to fp32.

    Args:
        x: [N, in].
        weight: [out, in].
        bias: [out], or None.

    Returns:
        [N, out].
    """
    if x.dtype == torch.promote_types(x.dtype, torch.float32):
        return functional.linear(x, weight, bias)
    wide_bias = None if bias is None else bias.detach().float()
    outputs = functional.linear(x.detach().float(), weight.detach().float(), wide_bias)
    return cast("Tensor", _NarrowGradients.apply(outputs, x, weight, bias))  # type: ignore[no-untyped-call]


class _NarrowGradients(torch.autograd.Function):
    """Outputs of a linear layer in fp32, whose inputs have a narrower type.

    Only the narrow inputs are kept for the backward pass, and gradients get their type.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient: Tensor = gradients[0]
        x_gradient = (gradient @ weight.float()).to(x.dtype)
        weight_gradient = (gradient.t() @ x.float()).to(weight.dtype)
        bias_gradient = gradient.sum(dim=0).to(weight.dtype) if ctx.has_bias else None
        return None, x_gradient, weight_gradient, bias_gradient
