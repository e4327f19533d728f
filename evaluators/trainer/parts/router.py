"""The router of a mixture of experts."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class _NarrowGradients(torch.autograd.Function):
    """Gives the outputs of a linear layer in fp32 their gradients, of narrower inputs: these alone
    are kept.
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
        of_x = (gradient @ weight.float()).to(x.dtype)
        of_weight = (gradient.t() @ x.float()).to(weight.dtype)
        of_bias = gradient.sum(dim=0).to(weight.dtype) if ctx.has_bias else None
        return None, of_x, of_weight, of_bias


def wide_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[N, in] -> [N, out] in fp32 at least, whatever the type of the tokens and the weight.

    A router computes so: in 16 bits near ties between experts would be decided by rounding
    (`transformers`' DeepSeek-V3, Megatron-LM's `--moe-router-dtype fp32`). The weight is what mixed
    precision makes of the trained one, as theirs.
    """
    if x.dtype == torch.promote_types(x.dtype, torch.float32):
        return functional.linear(x, weight, bias)
    wide_bias = None if bias is None else bias.detach().float()
    outputs = functional.linear(x.detach().float(), weight.detach().float(), wide_bias)
    return cast("Tensor", _NarrowGradients.apply(outputs, x, weight, bias))  # type: ignore[no-untyped-call]


class Router(nn.Linear):
    """The linear layer whose outputs rank a token's experts."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, E] in fp32."""
        return wide_product(x, self.weight, self.bias)
