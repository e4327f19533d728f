"""Context parallelism: the ranks of one replica each hold a slice of its sequences' positions.

Everything but attention looks at one position at a time and runs on the slice. For attention an all-to-all gives each
rank whole sequences of a share of the heads, and another brings the outcome back to the slices, as in
DeepSpeed-Ulysses (arXiv 2309.14509). Query, key and value travel in one message, so a layer has two all-to-alls forward
and two backward; with fewer key-value heads than ranks each head is sent to several.

Shapes below: B sequences, S tokens of a whole sequence, c context ranks, H heads of this tensor-parallel rank, d the
head's width.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_to_all_single
from torch.distributed.device_mesh import DeviceMesh


class ContextRanks:
    """The ranks that share the sequences of this rank's replica; each holds S / c neighboring positions."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """Take the ranks of the 1-D `mesh`, in the order of their positions."""
        self._group = mesh.get_group()
        self._number = int(mesh.get_local_rank())
        self._size = mesh.size()

    def positions(self, sequence_length: int) -> slice:
        """Return the positions of a whole sequence that this rank holds; its ranks must divide the length."""
        held = sequence_length // self._size
        return slice(self._number * held, (self._number + 1) * held)

    def whole_sequences(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's heads over all positions: [B, S / c, H, d] each -> [B, S, max(H, c) / c, d] each.

        The ranks must divide the query's heads, and divide or be a multiple of those of key and value.
        """
        parts = [self._by_heads(heads) for heads in (query, key, value)]
        received = self._exchange(torch.cat(parts, dim=3))
        whole = received.transpose(0, 1).flatten(1, 2)  # part i holds the positions of rank i
        query, key, value = torch.split_with_sizes(whole, [part.shape[3] for part in parts], dim=2)
        return query, key, value

    def own_positions(self, mixed: Tensor) -> Tensor:
        """Return all heads over this rank's positions: [B, S, H / c, d] -> [B, S / c, H, d]."""
        received = self._exchange(torch.unflatten(mixed, 1, (self._size, -1)).transpose(0, 1))
        return received.permute(1, 2, 0, 3, 4).flatten(2, 3)  # part i holds the heads of rank i

    def _by_heads(self, heads: Tensor) -> Tensor:
        """[B, S / c, H, d] -> [c, B, S / c, max(H, c) / c, d]: for each rank the heads that it works on."""
        if heads.shape[2] < self._size:
            heads = heads.repeat_interleave(self._size // heads.shape[2], dim=2)
        return torch.unflatten(heads, 2, (self._size, -1)).permute(2, 0, 1, 3, 4)

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send part i of [c, ...] to rank i; part i of the outcome is what rank i sent here."""
        return cast("Tensor", _AllToAll.apply(parts, self._group))  # type: ignore[no-untyped-call]


class _AllToAll(torch.autograd.Function):
    """An all-to-all whose gradient is the all-to-all back.

    torch's own collective with a gradient is named and built differently from torch 2.11 to 2.13.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Exchange the parts along the first dimension over `group`."""
        ctx.group = group  # type: ignore[attr-defined]
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> tuple[Tensor, None]:
        """Send each part's gradient to where the part came from."""
        return _all_to_all(gradients[0], ctx.group), None  # type: ignore[attr-defined]


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = all_to_all_single(parts.contiguous(), None, None, group)
    return received.wait() if isinstance(received, AsyncCollectiveTensor) else received
