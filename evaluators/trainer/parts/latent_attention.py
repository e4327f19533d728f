"""Multi-head latent attention."""

from contextlib import nullcontext
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.parts.norms import make_norm
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.spaces.model.attention import LatentAttention


class LatentAttentionModule(nn.Module):
    """Causal self-attention whose keys and values come from one narrow vector per position (arXiv
    2405.04434).

    Queries may come from another one. A part of each query is rotated, and so is the part of the
    keys that all heads share. Flash attention takes values of the queries' width only: they are
    padded for it.
    """

    def __init__(
        self,
        part: LatentAttention,
        rotary: RotaryTable,
        context: ContextRanks | None,
        *,
        first_position: int,
    ) -> None:
        super().__init__()
        self._rotary, self._context, self._start = rotary, context, first_position
        self._rotated, self._plain = part.rotated_width, part.plain_width
        self._value, self._rank = part.value_dim, part.key_value_rank
        scaling = part.rotary.scaling
        factor = 1.0 if scaling is None else scaling.score_factor
        self._scale = factor * part.head_dim**-0.5
        self._only_math = part.kernel == "math"
        linear, hidden, query_rank = partial(nn.Linear, bias=False), part.hidden, part.query_rank
        self.query_down = linear(hidden, query_rank) if query_rank else None
        self.query_norm = make_norm(part.norm, query_rank) if query_rank else None
        self.query = linear(query_rank or hidden, part.q_hidden)
        self.key_value_down = linear(hidden, self._rank + self._rotated)
        self.key_value_norm = make_norm(part.norm, self._rank)
        self.key_value = linear(self._rank, part.heads * (self._plain + self._value))
        self.output = linear(part.mixed_hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        latent = x
        if self.query_down is not None and self.query_norm is not None:
            latent = self.query_norm(self.query_down(x))
        query = self.query(latent).unflatten(2, (-1, self._plain + self._rotated))
        latent, shared = self.key_value_down(x).split_with_sizes((self._rank, self._rotated), dim=2)
        heads = self.key_value(self.key_value_norm(latent)).unflatten(
            2, (-1, self._plain + self._value)
        )
        key, value = heads.split_with_sizes((self._plain, self._value), dim=3)
        query, rotated = query.split_with_sizes((self._plain, self._rotated), dim=3)
        query = torch.cat((query, self._rotate(rotated)), dim=3)
        key = torch.cat(
            (key, self._rotate(shared.unsqueeze(2)).expand(-1, -1, key.shape[2], -1)), dim=3
        )
        if self._context is not None or not self._only_math:
            value = functional.pad(value, (0, query.shape[3] - self._value))
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        with sdpa_kernel(SDPBackend.MATH) if self._only_math else nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._scale
            )
        mixed = mixed.transpose(1, 2)[..., : self._value]
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))

    def _rotate(self, heads: Tensor) -> Tensor:
        return self._rotary.rotate(heads.transpose(1, 2), start=self._start).transpose(1, 2)
