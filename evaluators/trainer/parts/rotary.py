"""Rotary position embedding."""

import math

import torch
from torch import Tensor

from frontrunner.spaces.model.positions import RotaryPositions


class RotaryTable:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864); no module, which wrappers
    would store.
    """

    def __init__(self, rotary: RotaryPositions, width: int, *, sequence_length: int) -> None:
        self._rotary = rotary
        self._width = width
        self._sequence_length = sequence_length
        self._table: tuple[Tensor, Tensor] | None = None

    def rotate(self, heads: Tensor, *, start: int = 0) -> Tensor:
        """Rotate the halves of each head of [B, H, S, head width], or of its first part, in fp32.

        By its position, from `start` on.
        """
        cosines, sines = (table[start : start + heads.shape[2]] for table in self.on(heads.device))
        first, second = heads[..., : self._width].float().chunk(2, dim=-1)
        rotated = torch.cat(
            (first * cosines - second * sines, second * cosines + first * sines), dim=-1
        )
        if self._width == heads.shape[-1]:
            return rotated.to(heads.dtype)
        return torch.cat((rotated.to(heads.dtype), heads[..., self._width :]), dim=-1)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines [S, rotary width / 2] on `device`, built at the first call."""
        if self._table is None or self._table[0].device != device:
            positions = torch.arange(self._sequence_length, device=device, dtype=torch.float32)
            angles = positions[:, None] * self._frequencies(device)[None, :]
            scaling = self._rotary.scaling
            by = 1.0 if scaling is None else scaling.magnitude
            self._table = by * angles.cos(), by * angles.sin()
        return self._table

    def _frequencies(self, device: torch.device) -> Tensor:
        """Radians per position [rotary width / 2]."""
        width, scaling = self._width, self._rotary.scaling
        pairs = torch.arange(0, width, 2, device=device, dtype=torch.float32)
        frequencies = 1.0 / self._rotary.theta ** (pairs / width)
        if scaling is None:
            return frequencies
        # Turns over the original positions: few are slowed down by the factor, many are kept.
        positions, kept = scaling.original_positions, torch.zeros_like(frequencies)
        if scaling.kind == "llama3":
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            turns = frequencies * (positions / (2 * math.pi))
            kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        elif scaling.kind == "yarn":
            base = 2 * math.log(self._rotary.theta)
            ends = [
                width * math.log(positions / (2 * math.pi * turns)) / base
                for turns in (scaling.beta_fast, scaling.beta_slow)
            ]
            low, high = (math.floor(ends[0]), math.ceil(ends[1])) if scaling.truncate else ends
            low, high = max(low, 0), min(high, width - 1)
            kept = 1 - ((pairs / 2 - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
        return frequencies * (kept + (1 - kept) / scaling.factor)
