"""Rotary position embedding (arXiv 2104.09864). Shapes: B sequences, S tokens, H heads."""

import torch
from torch import Tensor

ROTARY_BASE = 10_000.0


class RotaryTable:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864), shared by the blocks of a stage.

    Not a module: the table follows from the shape alone, so no wrapper should shard, cast or store it.
    """

    def __init__(self, *, sequence_length: int, head_width: int) -> None:
        self._sequence_length = sequence_length
        self._head_width = head_width
        self._table: tuple[Tensor, Tensor] | None = None

    def rotate(self, heads: Tensor) -> Tensor:
        """Rotate the halves of each head of [B, H, S, head width] by its position, in fp32."""
        cosines, sines = self.on(heads.device)
        first, second = heads.float().chunk(2, dim=-1)
        rotated = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
        return rotated.to(heads.dtype)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines [S, head width / 2] on `device`, built at the first call."""
        if self._table is None or self._table[0].device != device:
            self._table = self._build(device)
        return self._table

    def _build(self, device: torch.device) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, self._head_width, 2, device=device, dtype=torch.float32)
        frequencies = ROTARY_BASE ** (-pairs / self._head_width)
        positions = torch.arange(self._sequence_length, device=device, dtype=torch.float32)
        angles = positions[:, None] * frequencies[None, :]
        return angles.cos(), angles.sin()
