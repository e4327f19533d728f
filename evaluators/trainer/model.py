"""A pre-norm GPT, whole or one pipeline stage of it, in plain torch modules, and its first weights.

The same class is the full model and, given fewer layers, one stage of it. Names of parameters are those of the whole
model in both cases (`blocks.7.attention.query.weight`), so that seeding and checkpoints do not depend on the stages.
Positions are rotary (arXiv 2104.09864) or learned. Shapes below: B sequences, S tokens, H heads, D hidden width, V
vocabulary.

First weights are the same under every parallel form: each parameter is drawn from a generator seeded by the job's seed
and the parameter's name in the whole model, and a rank keeps its shard of the draw. GPT-2's rule: normal with deviation
0.02, the projections that add to the residual stream scaled by 1 / sqrt(2 * layers); norms start at 1.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from frontrunner.evaluators.trainer.activations import Checkpointed, activations_on_host, recomputed
from frontrunner.evaluators.trainer.loss import mean_cross_entropy
from frontrunner.evaluators.trainer.parallel.context import ContextRanks
from frontrunner.spaces.model import Model

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


NORM_EPSILON = 1e-5

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Levers:
    """How a model of one shape runs: in pieces, and with what kept for the backward pass.

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
    """Return the norm of the model's kind over D."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.hidden, eps=NORM_EPSILON)
    return nn.LayerNorm(shape.hidden, eps=NORM_EPSILON, bias=False)


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
        """Return the mean over equal pieces of x [B, S / shards, D], each run again in the backward pass."""
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


DEVIATION = 0.02
_RESIDUAL_PROJECTIONS = ("attention.output.weight", "feed_forward.down.weight")


@torch.no_grad()
def initialize(parameters: Iterable[tuple[str, nn.Parameter]], *, seed: int, layers: int) -> None:
    """Fill the materialized `parameters`, given with their names in the whole model of `layers` layers."""
    for name, parameter in parameters:
        if "norm" in name.rsplit(".", 2)[-2]:
            parameter.fill_(1.0)
            continue
        deviation = DEVIATION
        if name.endswith(_RESIDUAL_PROJECTIONS):
            deviation /= (2 * layers) ** 0.5
        generator = torch.Generator(parameter.device).manual_seed(_seed_of(seed, name))
        whole = torch.empty(parameter.shape, device=parameter.device)
        whole.normal_(0.0, deviation, generator=generator)
        if isinstance(parameter, DTensor):
            parameter.to_local().copy_(local_part(whole, parameter))
        else:
            parameter.copy_(whole)


def local_part(whole: Tensor, like: DTensor) -> Tensor:
    """Return the part of `whole` that this rank holds of a DTensor `like` of the same shape.

    Mesh dimensions split from the outermost to the innermost, but for strided ones, which split what those have left:
    tensor parallelism is applied before FSDP2 shards, and stands further in.
    """
    part = whole
    coordinate = like.device_mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError("this rank holds no part of the tensor: it is not in the tensor's mesh")
    for dimension in sorted(range(like.device_mesh.ndim), key=lambda number: _is_strided(like.placements[number])):
        split_along = getattr(like.placements[dimension], "dim", None)
        if split_along is None:
            continue
        chunks = part.chunk(like.device_mesh.size(dimension), dim=split_along)
        index = coordinate[dimension]
        part = chunks[index] if index < len(chunks) else chunks[0].narrow(split_along, 0, 0)
    return part


def _is_strided(placement: Placement) -> bool:
    return hasattr(placement, "split_factor")


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
