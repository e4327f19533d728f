"""Token embedding, with learned positions where the model has them."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from frontrunner.spaces.model.tables import Embedding


class EmbeddingModule(nn.Module):
    """Embedding of tokens, to which learned positions are added if the model has them.

    With context parallelism, the first token of this rank has the position `first_position`.
    """

    def __init__(self, part: Embedding, *, sequence_length: int, first_position: int) -> None:
        super().__init__()
        self._first_position = first_position
        self._scale = math.sqrt(part.hidden) if part.scaled else None
        self.tokens = nn.Embedding(part.padded_vocabulary, part.hidden)
        self.positions = (
            nn.Embedding(sequence_length, part.hidden) if part.has_learned_positions else None
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [B, S] -> [B, S, D]."""
        x = self.tokens(tokens)
        if self._scale is not None:
            x = x * self._scale
        if self.positions is not None:
            positions = self._first_position + torch.arange(tokens.shape[1], device=tokens.device)
            if isinstance(self.positions.weight, DTensor):
                # A tensor-parallel embedding shards its output along S, the second dimension.
                positions = positions.expand_as(tokens)
            x = x + self.positions(positions)
        return cast("Tensor", x)
