"""A pre-norm GPT, whole or one pipeline stage of it, in plain torch modules, and its first weights.

Names of parameters are those of the whole model in both cases (`blocks.7.attention.query.weight`),
so that seeding and checkpoints do not depend on the stages. Shapes below: B sequences, S tokens, H
heads, D hidden width, V vocabulary.

First weights are the same under every parallel form: each parameter is drawn in blocks of rows,
from a generator that is seeded for each by the job's seed, the name and the row, and a rank draws
the blocks that it holds some of. Devices of different kinds draw different values. GPT-2's rule:
normal with deviation 0.02, the projections that add to the residual stream scaled by 1 / sqrt(2 *
layers); norms start at 1, biases and sinks at 0.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.parts.attention import GroupedAttentionModule
from frontrunner.evaluators.trainer.parts.block import Block
from frontrunner.evaluators.trainer.parts.embedding import EmbeddingModule
from frontrunner.evaluators.trainer.parts.head import TiedHead, mean_cross_entropy
from frontrunner.evaluators.trainer.parts.host_activations import HostActivations
from frontrunner.evaluators.trainer.parts.mixture import MixtureModule
from frontrunner.evaluators.trainer.parts.norms import make_norm
from frontrunner.evaluators.trainer.parts.recompute import Transform, recomputed
from frontrunner.evaluators.trainer.parts.rotary import RotaryTable
from frontrunner.spaces.model.attention import Attention
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryPositions
from frontrunner.spaces.recipe import Recipe

DEVIATION = 0.02
NEUTRAL = Recipe(micro_batch_seqs=1, accumulation=1, devices=1)
_BLOCK_ELEMENTS = 2**18
_RESIDUAL_PROJECTIONS = (
    "attention.output.weight",
    "feed_forward.down.weight",
    "experts.down.weight",
    "shared.down.weight",
)


class Gpt(nn.Module):
    """The blocks `layers`, with the embedding before the first layer and the norm and head after
    the last.
    """

    def __init__(
        self,
        shape: Model,
        *,
        sequence_length: int,
        layers: range,
        recipe: Recipe = NEUTRAL,
        context: ContextRanks | None = None,
    ) -> None:
        super().__init__()
        self._loss_chunks = recipe.loss_chunks
        self._sequence_shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
        first, last = layers.start == 0, layers.stop == len(shape.layers)
        if shape.head.tied and not (first and last):
            raise ValueError(
                "tied embeddings need the first and the last layer in the same pipeline stage"
            )
        self._sequence_length, self._softcap = sequence_length, shape.head.softcap
        self._tables: dict[tuple[RotaryPositions, int], RotaryTable] = {}
        tables = [self._table(shape.layers[number].attention) for number in layers]
        start = 0 if context is None else context.positions(sequence_length).start
        self.embedding = (
            EmbeddingModule(shape.embedding, sequence_length=sequence_length, first_position=start)
            if first
            else None
        )
        on_host = HostActivations() if recipe.activation_offload else None
        self.blocks = nn.ModuleDict(
            {
                str(number): Block(
                    shape.layers[number],
                    table,
                    recipe,
                    context,
                    on_host,
                    first_position=start,
                )
                for number, table in zip(layers, tables, strict=True)
            }
        )
        self.norm = make_norm(shape.norm, shape.hidden) if last else None
        self.head: nn.Module | None = None
        if shape.head.tied and self.embedding is not None:
            self.head = TiedHead(self.embedding)
        elif last:
            self.head = nn.Linear(shape.hidden, shape.head.rows, bias=False)

    def _table(self, attention: Attention) -> RotaryTable | None:
        """Return the rotary table of an attention; those that rotate alike share it."""
        if attention.rotary is None:
            return None
        key = attention.rotary, attention.rotated_width
        if key not in self._tables:
            self._tables[key] = RotaryTable(*key, sequence_length=self._sequence_length)
        return self._tables[key]

    @property
    def mixtures(self) -> dict[str, MixtureModule]:
        """The mixtures of experts, by their blocks' names."""
        parts = {
            f"blocks.{layer}": cast("Block", block).feed_forward
            for layer, block in self.blocks.items()
        }
        return {name: part for name, part in parts.items() if isinstance(part, MixtureModule)}

    def compile_blocks(
        self, compiled: Callable[[Transform], Transform], device: torch.device
    ) -> None:
        """Run each block, of one with experts its attention, as `compiled` makes it from now on, on
        `device`.
        """
        for table in self._tables.values():
            table.on(device)  # torch.compile takes no function that changes what lies outside it
        # What is to be computed again is compiled with the rest: around a compiled function torch's
        # checkpoint fails.
        for block in cast("Iterable[Block]", self.blocks.values()):
            if device.type == "cuda" and isinstance(block.attention, GroupedAttentionModule):
                block.attention.mixer.prepare(self._sequence_length, device)
            if isinstance(
                block.feed_forward, MixtureModule
            ):  # whose shapes change with every micro-batch
                block.attend = compiled(block.attend)
            else:
                block.run = compiled(block.run)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Token ids [B, S], or the previous stage's [B, S, D] -> [B, S, D], or logits [B, S, V] in
        the last stage.

        Given `targets`, token ids [B, S], the last stage computes its loss in pieces instead, a
        scalar.
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.head is None:
            return x
        return self._logits(x) if targets is None else self._chunked_loss(x, targets)

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = cast("nn.Module", self.head)(cast("nn.Module", self.norm)(x))
        return (
            logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)
        )

    def _chunked_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over equal pieces of x [B, S / shards, D], each run again in the backward
        pass.
        """
        # Gathering piece i of every shard puts those pieces side by side, which are apart in the
        # sequence.
        pieces = targets.view(targets.shape[0], self._sequence_shards, self._loss_chunks, -1)
        losses = [
            recomputed(self._piece_loss, part, pieces[:, :, number].flatten(1))
            for number, part in enumerate(x.chunk(self._loss_chunks, dim=1))
        ]
        return torch.stack(losses).mean()

    def _piece_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(self._logits(x), targets)


@torch.no_grad()
def initialize(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    seed: int,
    layers: int,
    device: torch.device | None = None,
) -> None:
    """Fill the materialized `parameters`, given with their names in the whole model of `layers`
    layers.

    Values are drawn on `device`, which is where a parameter lies unless stated.
    """
    for name, parameter in parameters:
        is_bias = name.endswith((".bias", "sinks.weight"))
        if is_bias or "norm" in name.rsplit(".", 2)[-2]:
            parameter.fill_(0.0 if is_bias else 1.0)
            continue
        deviation = (
            DEVIATION / (2 * layers) ** 0.5 if name.endswith(_RESIDUAL_PROJECTIONS) else DEVIATION
        )
        generator = torch.Generator(device or parameter.device)
        (held, columns), (height, width) = _held(parameter), parameter.shape
        part = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        rows = max(1, _BLOCK_ELEMENTS // width)
        drawn = torch.empty(min(rows, height), width, device=generator.device)
        for start in range(held.start - held.start % rows, held.stop, rows):
            digest = hashlib.sha256(f"{seed}:{name}:{start}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            block = drawn[: height - start].normal_(0.0, deviation, generator=generator)
            ours = range(max(start, held.start), min(start + rows, held.stop))
            part[ours.start - held.start : ours.stop - held.start] = block[
                ours.start - start : ours.stop - start, columns.start : columns.stop
            ]


def _held(parameter: nn.Parameter) -> list[range]:
    """Return, for each dimension of the whole parameter, what this rank holds of it."""
    held = [range(size) for size in parameter.shape]
    if isinstance(parameter, DTensor):
        # Mesh dimensions split from the outermost to the innermost, but for strided ones, which
        # split what those have left: tensor parallelism is applied before FSDP2 shards, and stands
        # further in.
        mesh, placements = parameter.device_mesh, parameter.placements
        for number in sorted(
            range(mesh.ndim), key=lambda number: hasattr(placements[number], "split_factor")
        ):
            along = getattr(placements[number], "dim", None)
            if along is not None:  # as torch.chunk splits
                size, index = -(-len(held[along]) // mesh.size(number)), mesh.get_local_rank(number)
                held[along] = held[along][index * size : (index + 1) * size]
    return held
