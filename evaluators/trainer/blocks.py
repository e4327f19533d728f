"""The blocks of a pre-norm GPT, attention and feed-forward, and how they run.

Shapes: B sequences, S tokens, D hidden width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from frontrunner.evaluators.trainer.context_parallel import ContextRanks
from frontrunner.evaluators.trainer.host_memory import activations_on_host
from frontrunner.evaluators.trainer.recompute import Checkpointed, recomputed
from frontrunner.evaluators.trainer.rotary import RotaryTable
from frontrunner.spaces.model import Model

NORM_EPSILON = 1e-5

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Levers:
    """How a model runs beside its shape: in pieces, and with what kept for the backward pass.

    `checkpointed` runs a block so that it keeps only a part; None keeps all. `feed_forward_tiles` and `loss_chunks`
    are the pieces of the sequence; `sequence_shards` are the ranks over which activations between blocks are split
    along the sequence. `activation_offload` moves what blocks keep into the host's memory. `context` are the ranks that
    share the sequences; None where the model is given whole ones.
    """

    checkpointed: Checkpointed | None = None
    feed_forward_tiles: int = 1
    loss_chunks: int = 1
    activation_offload: bool = False
    sequence_shards: int = 1
    context: ContextRanks | None = None


NEUTRAL = Levers()


class Attention(nn.Module):
    """Causal self-attention with grouped key-value heads.

    The number of heads is read off the projections' widths, so that the same code serves a tensor-parallel rank,
    which holds some of the heads. Given a slice of the positions, as `context` has it, it attends over whole sequences.
    """

    def __init__(self, shape: Model, rotary: RotaryTable | None, context: ContextRanks | None) -> None:
        super().__init__()
        self._head_width = shape.head_dim
        self._rotary = rotary
        self._context = context
        self._backends = [SDPBackend.MATH] if shape.attention == "math" else None
        key_value_width = shape.kv_heads * shape.head_dim
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key = nn.Linear(shape.hidden, key_value_width, bias=False)
        self.value = nn.Linear(shape.hidden, key_value_width, bias=False)
        self.output = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        query, key, value = (self._split_heads(project(x)) for project in (self.query, self.key, self.value))
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if self._rotary is not None:
            query, key = self._rotary.rotate(query), self._rotary.rotate(key)
        mixed = self._attend(query, key, value).transpose(1, 2)
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self._head_width)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grouped = query.shape[1] != key.shape[1]
        if self._backends is None:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        with sdpa_kernel(self._backends):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)


class GeluFeedForward(nn.Module):
    """D -> ffn -> GELU -> D."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.ffn_hidden, bias=False)
        self.down = nn.Linear(shape.ffn_hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return cast("Tensor", self.down(functional.gelu(self.up(x))))


class SwigluFeedForward(nn.Module):
    """D -> ffn, twice, one gating the other through SiLU -> D (arXiv 2002.05202)."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn_hidden, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn_hidden, bias=False)
        self.down = nn.Linear(shape.ffn_hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return cast("Tensor", self.down(functional.silu(self.gate(x)) * self.up(x)))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, shape: Model, rotary: RotaryTable | None, levers: Levers) -> None:
        super().__init__()
        self._checkpointed = levers.checkpointed
        self._on_host = levers.activation_offload
        self._tiles = levers.feed_forward_tiles
        self._run: Transform = self._keep_as_told
        self.attention_norm = make_norm(shape)
        self.attention = Attention(shape, rotary, levers.context)
        self.feed_forward_norm = make_norm(shape)
        self.feed_forward = SwigluFeedForward(shape) if shape.activation == "swiglu" else GeluFeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D], recomputing in the backward pass what the recipe says."""
        if self._on_host and torch.is_grad_enabled():
            with activations_on_host(self.parameters()):
                return self._run(x)
        return self._run(x)

    def compile_with(self, compiled: Callable[[Transform], Transform]) -> None:
        """Run the block as `compiled` makes it from now on."""
        # What is to be computed again is compiled with the rest: around a compiled function torch's checkpoint fails.
        self._run = compiled(self._keep_as_told)

    def _keep_as_told(self, x: Tensor) -> Tensor:
        if self._checkpointed is not None and torch.is_grad_enabled():
            return self._checkpointed(self._transform, x)
        return self._transform(x)

    def _transform(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        if self._tiles == 1:
            return x + self._normed_feed_forward(x)
        tiles = [recomputed(self._normed_feed_forward, tile) for tile in x.chunk(self._tiles, dim=1)]
        return x + torch.cat(tiles, dim=1)

    def _normed_feed_forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.feed_forward(self.feed_forward_norm(x)))


def make_norm(shape: Model) -> nn.Module:
    """The norm of the model's kind over D."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.hidden, eps=NORM_EPSILON)
    return nn.LayerNorm(shape.hidden, eps=NORM_EPSILON, bias=False)
