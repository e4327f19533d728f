"""Multi-head latent attention, as in DeepSeek-V2 and V3."""

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
    """Causal self-attention whose keys and values come from a narrow vector per position.

    The vector is the latent one of arXiv 2405.04434; queries may come from a latent vector of their
    own. Each query has a rotated part beside the part without positions. The keys have a rotated
    part too, which all heads share.
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
        self._rotary = rotary
        self._context = context
        self._first_position = first_position
        self._rotary_width = part.rotated_width
        self._plain_width = part.plain_width  # of the part without positions
        self._value_width = part.value_dim
        self._latent_width = part.key_value_rank
        scaling = part.rotary.scaling
        factor = 1.0 if scaling is None else scaling.score_factor
        self._scale = factor * part.head_dim**-0.5
        self._only_math = part.kernel == "math"
        linear = partial(nn.Linear, bias=False)
        hidden = part.hidden
        query_rank = part.query_rank
        self.query_down = linear(hidden, query_rank) if query_rank else None
        self.query_norm = make_norm(part.norm, query_rank) if query_rank else None
        self.query = linear(query_rank or hidden, part.q_hidden)
        self.key_value_down = linear(hidden, self._latent_width + self._rotary_width)
        self.key_value_norm = make_norm(part.norm, self._latent_width)
        self.key_value = linear(
            self._latent_width, part.heads * (self._plain_width + self._value_width)
        )
        self.output = linear(part.mixed_hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        query_input = x
        if self.query_down is not None and self.query_norm is not None:
            query_input = self.query_norm(self.query_down(x))
        query = self.query(query_input).unflatten(2, (-1, self._plain_width + self._rotary_width))
        latent, shared_key = self.key_value_down(x).split_with_sizes(
            (self._latent_width, self._rotary_width), dim=2
        )
        key_value = self.key_value(self.key_value_norm(latent)).unflatten(
            2, (-1, self._plain_width + self._value_width)
        )
        key, value = key_value.split_with_sizes((self._plain_width, self._value_width), dim=3)
        query, rotated = query.split_with_sizes((self._plain_width, self._rotary_width), dim=3)
        query = torch.cat((query, self._rotate(rotated)), dim=3)
        shared_key = self._rotate(shared_key.unsqueeze(2))
        key = torch.cat((key, shared_key.expand(-1, -1, key.shape[2], -1)), dim=3)
        if self._context is not None or not self._only_math:
            # Flash attention takes values of the queries' width only.
            value = functional.pad(value, (0, query.shape[3] - self._value_width))
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        with sdpa_kernel(SDPBackend.MATH) if self._only_math else nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._scale
            )
        mixed = mixed.transpose(1, 2)[..., : self._value_width]
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))

    def _rotate(self, heads: Tensor) -> Tensor:
        """[B, S, H, rotary width] -> the same shape."""
        rotated = self._rotary.rotate(heads.transpose(1, 2), start=self._first_position)
        return rotated.transpose(1, 2)
