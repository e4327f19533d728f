"""Tensor parallelism for DeepSpeed's pipeline: Megatron-LM's column- and row-parallel layers (arXiv 1909.08053).

DeepSpeed's own (AutoTP) forms its groups over all ranks as if there were no pipeline. As with AutoTP, attention and
feed-forward are split; embedding, norms and head are whole on every rank.
"""

from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional

from frontrunner.evaluators.trainer.blocks import Block
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.tensor_ranks import TensorRanks

_COLUMN_PARALLEL = (("attention", ("query", "key", "value")), ("feed_forward", ("gate", "up")))
_ROW_PARALLEL = (("attention", "output"), ("feed_forward", "down"))


class _Share(nn.Module):
    """This rank's share of a linear layer without bias."""

    def __init__(self, whole: nn.Linear, ranks: TensorRanks, *, dim: int) -> None:
        super().__init__()
        self._ranks = ranks
        share = whole.weight.detach().chunk(ranks.size, dim)[ranks.number]
        self.weight = nn.Parameter(share.clone())
        # DeepSpeed counts parameters without this mark once, and those with it on every rank, in the gradient norm.
        cast("Any", self.weight).model_parallel = True


class ColumnParallel(_Share):
    """Holds some of the outputs."""

    def __init__(self, whole: nn.Linear, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, dim=0)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in], the same on all ranks -> [..., out / ranks]."""
        return functional.linear(self._ranks.enter(x), self.weight)


class RowParallel(_Share):
    """Holds some of the inputs."""

    def __init__(self, whole: nn.Linear, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in / ranks] -> [..., out], the same on all ranks."""
        return self._ranks.leave(functional.linear(x, self.weight))


def split_blocks(model: Gpt, ranks: TensorRanks) -> None:
    """Keep, in place, this rank's share of the blocks' whole and initialised weights."""
    for block in model.blocks.values():
        for part, names in _COLUMN_PARALLEL:
            module = getattr(cast("Block", block), part)
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, ColumnParallel(getattr(module, name), ranks))
        for part, name in _ROW_PARALLEL:
            module = getattr(cast("Block", block), part)
            setattr(module, name, RowParallel(getattr(module, name), ranks))
