"""Tensor parallelism for DeepSpeed's pipeline: Megatron-LM's column- and row-parallel layers (arXiv 1909.08053).

DeepSpeed's own (AutoTP) forms its groups over all ranks as if there were no pipeline. As with AutoTP, attention and
feed-forward are split; embedding, norms and head are whole on every rank.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from frontrunner.evaluators.trainer.model import Block, Gpt

_COLUMN_PARALLEL = (("attention", ("query", "key", "value")), ("feed_forward", ("gate", "up")))
_ROW_PARALLEL = (("attention", "output"), ("feed_forward", "down"))


class _SumGradients(torch.autograd.Function):
    """The input itself; in the backward pass the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumOutputs(torch.autograd.Function):
    """The sum of the ranks' inputs; in the backward pass the gradient itself."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _sum_gradients(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return cast("Tensor", _SumGradients.apply(x, group))  # type: ignore[no-untyped-call]


def _sum_outputs(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return cast("Tensor", _SumOutputs.apply(x, group))  # type: ignore[no-untyped-call]


class _Share(nn.Module):
    """This rank's share of a linear layer without bias."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup, *, dim: int) -> None:
        super().__init__()
        self._group = group
        share = whole.weight.detach().chunk(group.size(), dim)[group.rank()]
        self.weight = nn.Parameter(share.clone())
        # DeepSpeed counts parameters without this mark once, and those with it on every rank, in the gradient norm.
        cast("Any", self.weight).model_parallel = True


class ColumnParallel(_Share):
    """Holds some of the outputs."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__(whole, group, dim=0)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in], the same on all ranks -> [..., out / ranks]."""
        return functional.linear(_sum_gradients(x, self._group), self.weight)


class RowParallel(_Share):
    """Holds some of the inputs."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__(whole, group, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in / ranks] -> [..., out], the same on all ranks."""
        return _sum_outputs(functional.linear(x, self.weight), self._group)


def split_blocks(model: Gpt, group: dist.ProcessGroup) -> None:
    """Keep, in place, this rank's share of the blocks' whole and initialised weights."""
    for block in model.blocks.values():
        for part, names in _COLUMN_PARALLEL:
            module = getattr(cast("Block", block), part)
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, ColumnParallel(getattr(module, name), group))
        for part, name in _ROW_PARALLEL:
            module = getattr(cast("Block", block), part)
            setattr(module, name, RowParallel(getattr(module, name), group))
