"""Grouped attention."""

from typing import cast

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.parts.attention_kernels import Mixer
from frontrunner.evaluators.trainer.parts.norms import make_norm
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.spaces.model.attention import GroupedAttention


class GroupedAttentionModule(nn.Module):
    """Causal self-attention with grouped key-value heads, of which a tensor-parallel rank holds
    some.
    """

    def __init__(
        self,
        part: GroupedAttention,
        rotary: RotaryTable | None,
        context: ContextRanks | None,
    ) -> None:
        super().__init__()
        self._head_width = part.head_dim
        self._rotary = rotary
        self._context = context
        self.mixer = Mixer(part)
        hidden, has_biases = part.hidden, part.biases != "none"
        self.query = nn.Linear(hidden, part.q_hidden, bias=has_biases)
        self.key = nn.Linear(hidden, part.kv_hidden, bias=has_biases)
        self.value = nn.Linear(hidden, part.kv_hidden, bias=has_biases)
        self.query_norm = make_norm(part.norm, part.head_dim) if part.qk_norm else None
        self.key_norm = make_norm(part.norm, part.head_dim) if part.qk_norm else None
        self.sinks = Sinks(part.heads) if part.sinks else None
        self.output = nn.Linear(part.q_hidden, hidden, bias=part.biases == "all")

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        sinks = None if self.sinks is None else self.sinks()
        projected = (project(x) for project in (self.query, self.key, self.value))
        query, key, value = (
            heads.view(x.shape[0], heads.shape[1], -1, self._head_width) for heads in projected
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
            sinks = None if sinks is None else self._context.own_heads(sinks)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if self._rotary is not None:
            query, key = self._rotary.rotate(query), self._rotary.rotate(key)
        mixed = self.mixer.mix(query, key, value, sinks).transpose(1, 2)
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))


class Sinks(nn.Module):
    """A score of each head that its softmax counts beside those of positions."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))

    def forward(self) -> Tensor:
        """Return the scores [H]."""
        return self.weight
