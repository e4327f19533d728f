"""The layers of a tensor-parallel block: each rank computes on plain tensors, with this rank's part of each weight.

Weights are DTensors, so that sharding over replicas, checkpoints and the gradient norm know what each rank holds. The
computation is not: for each operator on DTensors the host takes several times as long as for a plain one, and a step of
small kernels waits for it (docs/measurements.md has the figures).

Shapes below: B sequences, S tokens, D hidden width, t tensor-parallel ranks.
"""

from typing import cast

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional

from frontrunner.evaluators.trainer.tensor_ranks import TensorRanks


class _OnLocalWeight(nn.Module):
    """A module with one weight, of which it computes with this rank's part."""

    def __init__(self, whole: nn.Module, ranks: TensorRanks, placement: Placement) -> None:
        super().__init__()
        weight = cast("Tensor", whole.weight)
        self.weight = nn.Parameter(distribute_tensor(weight, ranks.mesh, [placement]))

    def _local_weight(self, *gradients: Placement) -> Tensor:
        """This rank's part; `gradients` says what its gradient is, if not a part like the weight's."""
        return cast("DTensor", self.weight).to_local(grad_placements=gradients or None)


class SplitLinear(_OnLocalWeight):
    """A linear layer of which this rank has some of the outputs, or of the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in or in / t] -> [..., out / t], or this rank's summand of [..., out]."""
        return functional.linear(x, self._local_weight())


class SummedLinear(SplitLinear):
    """A linear layer of which this rank has some of the inputs, and the end of a split part."""

    def __init__(self, whole: nn.Module, ranks: TensorRanks, placement: Placement) -> None:
        super().__init__(whole, ranks, placement)
        self._ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, in / t] -> [B, S or S / t, out]."""
        return self._ranks.leave(super().forward(x))


class SplitEmbedding(_OnLocalWeight):
    """A table of which this rank has some of the rows."""

    def __init__(self, whole: nn.Embedding, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, Shard(0))
        self._ranks = ranks
        rows_of_others = -(-whole.num_embeddings // ranks.size)  # the last ranks may have fewer, or none
        self._first_row = ranks.number * rows_of_others

    def forward(self, rows: Tensor) -> Tensor:
        """Numbers of rows [B, S] -> [B, S or S / t, D]."""
        weight = self._local_weight()
        numbers = rows - self._first_row
        if weight.shape[0] == 0:  # a short table over many ranks; the sum keeps the weight in the graph
            return self._ranks.leave(rows.new_zeros((*rows.shape, weight.shape[1]), dtype=weight.dtype) + weight.sum())
        elsewhere = (numbers < 0) | (numbers >= weight.shape[0])
        found = functional.embedding(numbers.masked_fill(elsewhere, 0), weight)
        return self._ranks.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))


class ReplicatedHeads(_OnLocalWeight):
    """A key or value projection for more tensor-parallel ranks than key-value heads.

    Every rank keeps the whole weight and computes the one head that its query heads use. Each rank's gradients, of
    the weight and of the input, are therefore parts of a sum over the ranks.
    """

    def __init__(self, whole: nn.Module, ranks: TensorRanks, head_rows: slice) -> None:
        super().__init__(whole, ranks, Replicate())
        self._head_rows = head_rows

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> this rank's head [B, S, head width]."""
        return functional.linear(x, self._local_weight(Partial())[self._head_rows])


class SequenceNorm(_OnLocalWeight):
    """A norm over this rank's positions; its weight's gradient is a part of a sum over the ranks."""

    def __init__(self, whole: nn.RMSNorm | nn.LayerNorm, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, Replicate())
        self._shape = list(whole.normalized_shape)
        self._epsilon = whole.eps
        self._centres = isinstance(whole, nn.LayerNorm)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S / t, D] -> the same shape."""
        weight = self._local_weight(Partial())
        if self._centres:
            return functional.layer_norm(x, self._shape, weight, None, cast("float", self._epsilon))
        return functional.rms_norm(x, self._shape, weight, self._epsilon)
