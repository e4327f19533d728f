"""The training loss: mean cross-entropy over tokens, whole or split over the vocabulary."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

LossFunction = Callable[[Tensor, Tensor], Tensor]


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, in fp32, of logits [B, S, V] against token ids [B, S]; a scalar plain tensor.

    Logits that are split over the vocabulary must be given, and the result's backward run, in `loss_context`.
    """
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def micro_batch_loss(output: Tensor, targets: Tensor) -> Tensor:
    """The loss of one micro-batch from the last stage's output: logits, or the loss where it was chunked."""
    return mean_cross_entropy(output, targets) if output.dim() > 0 else output


def loss_context(*, tensor_parallel: int) -> AbstractContextManager[Any]:
    """Where the loss and every backward pass must run."""
    return cast("AbstractContextManager[Any]", loss_parallel()) if tensor_parallel > 1 else nullcontext()
