"""Rotary position embedding, with the scaled forms for long contexts."""

import math

import torch
from torch import Tensor

from frontrunner.spaces.model.positions import RotaryPositions


class RotaryTable:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864).

    The table is not a module, so that data-parallel wrappers and checkpoints do not handle it as a
    part of the model.
    """

    def __init__(self, rotary: RotaryPositions, width: int, *, sequence_length: int) -> None:
        self._rotary = rotary
        self._width = width
        self._sequence_length = sequence_length
        self._table: tuple[Tensor, Tensor] | None = None

    def rotate(self, heads: Tensor, *, start: int = 0) -> Tensor:
        """Rotate heads by their positions, in fp32.

        The first `rotary width` values of each head are rotated: value i of their first half
        together with value i of their second half. The rest of the head stays as it is.

        Args:
            heads: [B, H, S, d].
            start: Position of the first token.

        Returns:
            [B, H, S, d] in the type of `heads`.
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
        """Return cosines and sines on `device`, [S, rotary width / 2] each.

        They are computed at the first call for a device.
        """
        if self._table is None or self._table[0].device != device:
            positions = torch.arange(self._sequence_length, device=device, dtype=torch.float32)
            angles = positions[:, None] * self._frequencies(device)[None, :]
            scaling = self._rotary.scaling
            magnitude = 1.0 if scaling is None else scaling.magnitude
            self._table = magnitude * angles.cos(), magnitude * angles.sin()
        return self._table

    def _frequencies(self, device: torch.device) -> Tensor:
        """Return the radians per position of each pair of values, [rotary width / 2].

        Scaling stretches the angles to contexts longer than the original one. It divides the
        frequencies that turn few times over the original context by its factor, keeps those that
        turn many times, and blends the two for those in between.
        """
        width = self._width
        scaling = self._rotary.scaling
        evens = torch.arange(0, width, 2, device=device, dtype=torch.float32)
        frequencies = 1.0 / self._rotary.theta ** (evens / width)
        if scaling is None:
            return frequencies
        positions = scaling.original_positions
        kept_share = torch.zeros_like(frequencies)
        if scaling.kind == "llama3":
            fewest = scaling.low_frequency_factor
            turns = frequencies * (positions / (2 * math.pi))
            kept_share = (turns - fewest) / (scaling.high_frequency_factor - fewest)
            kept_share = kept_share.clamp(0.0, 1.0)
        elif scaling.kind == "yarn":
            base = 2 * math.log(self._rotary.theta)
            # Numbers of the pairs that turn so many times over the original context.
            low, high = (
                width * math.log(positions / (2 * math.pi * turns)) / base
                for turns in (scaling.beta_fast, scaling.beta_slow)
            )
            if scaling.truncate:
                low = math.floor(low)
                high = math.ceil(high)
            low = max(low, 0)
            high = min(high, width - 1)
            kept_share = 1 - ((evens / 2 - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
        return frequencies * (kept_share + (1 - kept_share) / scaling.factor)
