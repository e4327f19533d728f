"""The tied output projection, and the loss that is computed from the logits."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from frontrunner.evaluators.trainer.parts.embedding import EmbeddingModule

# Logits that are converted to fp32 at a time, 64 MiB. More would add to the step's peak memory.
_LOGITS_IN_FP32 = 2**24


class TiedHead(nn.Module):
    """The output projection that uses the token embedding's weight; it has no parameter itself."""

    def __init__(self, embedding: EmbeddingModule) -> None:
        super().__init__()
        # In a tuple, so that the embedding is not registered twice and its weight keeps one name.
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]."""
        return functional.linear(x, self._embedding[0].tokens.weight)


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all tokens, in fp32.

    A large number of logits is converted to fp32 piece by piece, unless the loss is compiled.

    Args:
        logits: [B, S, V]. If they are split over the vocabulary, this function and the backward
            pass must run under `loss_parallel`.
        targets: Token ids [B, S].
    """
    is_whole = isinstance(logits, DTensor) or torch.compiler.is_compiling()
    if logits.numel() > _LOGITS_IN_FP32 and not is_whole:
        return cast(
            "Tensor",
            _PiecewiseCrossEntropy.apply(logits.flatten(0, 1), targets.flatten()),  # type: ignore[no-untyped-call]
        )
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


class _PiecewiseCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy in pieces of some rows.

    Besides the logits and their gradient in the logits' type, it needs fp32 values of one piece.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        rows = max(1, _LOGITS_IN_FP32 // logits.shape[1])
        pieces = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
        sums = [
            functional.cross_entropy(piece.float(), target, reduction="sum")
            for piece, target in pieces
        ]
        return torch.stack(sums).sum() / len(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        logits_gradient = torch.empty_like(logits)
        rows = max(1, _LOGITS_IN_FP32 // logits.shape[1])
        scale = gradients[0] / len(targets)
        pieces = (torch.split(tensor, rows) for tensor in (logits, targets, logits_gradient))
        for piece, target, piece_gradient in zip(*pieces, strict=True):
            # The gradient is softmax minus 1 at the target.
            values = torch.softmax(piece, dim=-1, dtype=torch.float32)
            values.scatter_add_(1, target[:, None], values.new_full((len(target), 1), -1.0))
            piece_gradient.copy_(values.mul_(scale))
        return logits_gradient, None
