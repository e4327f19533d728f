"""The tied output projection, and the loss."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from frontrunner.evaluators.trainer.parts.embedding import EmbeddingModule

_WIDENED_LOGITS = 2**24


class TiedHead(nn.Module):
    """The output projection that uses the token embedding's weight; it owns no parameter itself."""

    def __init__(self, embedding: EmbeddingModule) -> None:
        super().__init__()
        # In a tuple, so that the embedding is not registered twice and its weight keeps one name.
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]."""
        return functional.linear(x, self._embedding[0].tokens.weight)


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all tokens, in fp32, of logits [B, S, V] against token ids [B, S].

    Logits that are split over the vocabulary need `loss_parallel`, here and in the backward pass.
    Many of them are widened some rows at a time, unless the loss is compiled.
    """
    is_special = isinstance(logits, DTensor) or torch.compiler.is_compiling()
    if logits.numel() > _WIDENED_LOGITS and not is_special:
        return cast("Tensor", _RowsCrossEntropy.apply(logits.flatten(0, 1), targets.flatten()))  # type: ignore[no-untyped-call]
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


class _RowsCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy, of which no more than the logits and their gradient in the same type are
    held at a time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        rows = max(1, _WIDENED_LOGITS // logits.shape[1])
        pieces = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
        sums = [
            functional.cross_entropy(piece.float(), target, reduction="sum")
            for piece, target in pieces
        ]
        return torch.stack(sums).sum() / len(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        found, rows = torch.empty_like(logits), max(1, _WIDENED_LOGITS // logits.shape[1])
        scale = gradients[0] / len(targets)
        split = (torch.split(one, rows) for one in (logits, targets, found))
        for piece, target, out in zip(*split, strict=True):
            wide = torch.softmax(piece, dim=-1, dtype=torch.float32)
            wide.scatter_add_(1, target[:, None], wide.new_full((len(target), 1), -1.0))
            out.copy_(wide.mul_(scale))
        return found, None
