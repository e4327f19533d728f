"""How activations pass between the whole and the split parts of a layer on tensor-parallel ranks.

Shapes below: B sequences, S tokens, D hidden width, t tensor-parallel ranks.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import DeviceMesh


class TensorRanks:
    """The ranks that share a layer.

    Without sequence parallelism activations are whole on every rank between the parts (arXiv 1909.08053); with it each
    rank holds S / t neighbouring positions there (arXiv 2205.05198).
    """

    def __init__(self, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
        """Take the ranks of the 1-D `mesh`."""
        self.mesh = mesh
        self.size = mesh.size()
        self.number = int(mesh.get_local_rank())
        self._group_name: str = mesh.get_group().group_name
        self._sequence_parallel = sequence_parallel

    def enter(self, x: Tensor) -> Tensor:
        """[B, S or S / t, D] between parts -> [B, S, D] for a part; backward the sum of the ranks' gradients."""
        return cast("Tensor", _Enter.apply(x, self))  # type: ignore[no-untyped-call]

    def leave(self, x: Tensor) -> Tensor:
        """[B, S, D], each rank's summand -> their sum, [B, S or S / t, D]."""
        return cast("Tensor", _Leave.apply(x, self))  # type: ignore[no-untyped-call]

    def whole(self, x: Tensor) -> Tensor:
        """What a part works on: all positions, [B, S or S / t, D] -> [B, S, D]."""
        if not self._sequence_parallel:
            return x.view_as(x)
        operator = torch.ops._c10d_functional.all_gather_into_tensor
        parts = _waited(operator(x.contiguous(), self.size, self._group_name))
        return torch.unflatten(parts, 0, (self.size, -1)).transpose(0, 1).flatten(1, 2)

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the ranks, of which this one has all or its positions: [B, S, D] -> [B, S or S / t, D]."""
        if not self._sequence_parallel:
            return _waited(torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", self._group_name))
        parts = torch.unflatten(x, 1, (self.size, -1)).transpose(0, 1).flatten(0, 1).contiguous()
        return _waited(torch.ops._c10d_functional.reduce_scatter_tensor(parts, "sum", self.size, self._group_name))


def _waited(tensor: Tensor) -> Tensor:
    return cast("Tensor", torch.ops._c10d_functional.wait_tensor(tensor))


class _Enter(torch.autograd.Function):
    """Each is the other's gradient: what is whole forward is summed backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, ranks: TensorRanks) -> Tensor:
        ctx.ranks = ranks  # type: ignore[attr-defined]
        return ranks.whole(x)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> tuple[Tensor, None]:
        return ctx.ranks.summed(gradients[0]), None  # type: ignore[attr-defined]


class _Leave(torch.autograd.Function):
    """See `_Enter`."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, ranks: TensorRanks) -> Tensor:
        ctx.ranks = ranks  # type: ignore[attr-defined]
        return ranks.summed(x)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> tuple[Tensor, None]:
        return ctx.ranks.whole(gradients[0]), None  # type: ignore[attr-defined]
