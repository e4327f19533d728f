"""Attention with grouped key-value heads; plain, or with windows, capped scores and sinks."""

from typing import cast

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.parts.attention_kernels import DotProductAttention
from frontrunner.evaluators.trainer.parts.norms import make_norm
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.spaces.model.attention import GroupedAttention


class GroupedAttentionModule(nn.Module):
    """Causal self-attention in which groups of query heads share a key-value head.

    With tensor parallelism a rank has some of the heads, with context parallelism some of the
    positions, except between the two exchanges of `ContextRanks`.
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
        self.dot_product = DotProductAttention(part)
        hidden = part.hidden
        has_biases = part.biases != "none"
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
            query = self.query_norm(query)
            key = self.key_norm(key)
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
            sinks = None if sinks is None else self._context.own_heads(sinks)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if self._rotary is not None:
            query = self._rotary.rotate(query)
            key = self._rotary.rotate(key)
        mixed = self.dot_product.attend(query, key, value, sinks).transpose(1, 2)
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))


class Sinks(nn.Module):
    """One score per head, which the head's softmax counts beside the scores of the positions."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))

    def forward(self) -> Tensor:
        """Return the scores [H]."""
        return self.weight
