"""A pre-norm GPT, whole or one pipeline stage of it, in plain torch modules.

The same class is the full model and, given fewer layers, one stage of it. Names of parameters are those of the whole
model in both cases (`blocks.7.attention.query.weight`), so that seeding and checkpoints do not depend on the stages.
Shapes below: B sequences, S tokens, D hidden width, V vocabulary.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from frontrunner.evaluators.trainer.blocks import NEUTRAL, Block, Levers, Transform, make_norm
from frontrunner.evaluators.trainer.loss import mean_cross_entropy
from frontrunner.evaluators.trainer.recompute import recomputed
from frontrunner.evaluators.trainer.rotary import RotaryTable
from frontrunner.spaces.model import Model


class Embedding(nn.Module):
    """Token embedding, plus learned positions where the model has them; the tokens given start at `first_position`."""

    def __init__(self, shape: Model, *, sequence_length: int, first_position: int = 0) -> None:
        super().__init__()
        self._first_position = first_position
        self.tokens = nn.Embedding(shape.padded_vocabulary, shape.hidden)
        self.positions = nn.Embedding(sequence_length, shape.hidden) if shape.positions == "learned" else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [B, S] -> [B, S, D]."""
        x = self.tokens(tokens)
        if self.positions is not None:
            numbers = self._first_position + torch.arange(tokens.shape[1], device=tokens.device)
            if isinstance(self.positions.weight, DTensor):
                numbers = numbers.expand_as(tokens)  # a tensor-parallel embedding shards its output along S
            x = x + self.positions(numbers)
        return cast("Tensor", x)


class TiedHead(nn.Module):
    """The output projection that uses the token embedding's weight; it owns no parameter itself."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        # In a tuple, so that the embedding is not registered twice and its weight keeps one name.
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]."""
        return functional.linear(x, self._embedding[0].tokens.weight)


class Gpt(nn.Module):
    """The blocks `layers`, with the embedding before them where `first` and the norm and head after them where `last`.

    Raises:
        ValueError: the embeddings are tied and the model is only one of several stages.
    """

    def __init__(self, shape: Model, *, sequence_length: int, layers: range, levers: Levers = NEUTRAL) -> None:
        super().__init__()
        self._levers = levers
        first, last = layers.start == 0, layers.stop == shape.layers
        if shape.tied_embeddings and not (first and last):
            raise ValueError("tied embeddings need the first and the last layer in the same pipeline stage")
        rotary = None
        if shape.positions == "rotary":
            rotary = RotaryTable(sequence_length=sequence_length, head_width=shape.head_dim)
        self._rotary = rotary
        held = levers.context.positions(sequence_length) if levers.context is not None else slice(0, sequence_length)
        self.embedding = Embedding(shape, sequence_length=sequence_length, first_position=held.start) if first else None
        self.blocks = nn.ModuleDict({str(layer): Block(shape, rotary, levers) for layer in layers})
        self.norm = make_norm(shape) if last else None
        self.head = _head(shape, self.embedding) if last else None

    def compile_blocks(self, compiled: Callable[[Transform], Transform], device: torch.device) -> None:
        """Run each block as `compiled` makes it from now on, on `device`."""
        if self._rotary is not None:
            self._rotary.on(device)  # torch.compile takes no function that changes what lies outside it
        for block in self.blocks.values():
            cast("Block", block).compile_with(compiled)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Token ids [B, S], or the previous stage's [B, S, D] -> [B, S, D], or logits [B, S, V] where last.

        Given `targets`, token ids [B, S], the last stage computes its loss in pieces instead: a scalar, see
        `mean_cross_entropy`.
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.head is None:
            return x
        return self._logits(x) if targets is None else self._chunked_loss(x, targets)

    def _logits(self, x: Tensor) -> Tensor:
        if self.norm is None or self.head is None:
            raise RuntimeError("only the last stage computes logits")
        return cast("Tensor", self.head(self.norm(x)))

    def _chunked_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean over equal pieces of x [B, S / shards, D] along the sequence, each run again when backward."""
        chunks = self._levers.loss_chunks
        # Gathering piece i of every shard puts those pieces side by side, which are apart in the sequence.
        pieces = targets.view(targets.shape[0], self._levers.sequence_shards, chunks, -1)
        losses = [
            recomputed(self._piece_loss, part, pieces[:, :, number].flatten(1))
            for number, part in enumerate(x.chunk(chunks, dim=1))
        ]
        return torch.stack(losses).mean()

    def _piece_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(self._logits(x), targets)


def _head(shape: Model, embedding: Embedding | None) -> nn.Module:
    if shape.tied_embeddings and embedding is not None:
        return TiedHead(embedding)
    return nn.Linear(shape.hidden, shape.padded_vocabulary, bias=False)
