"""A pre-norm GPT, the whole model or one pipeline stage of it, and its first weights.

Parameters of a stage have their names in the whole model (`blocks.7.attention.query.weight`), so
that first weights and checkpoints do not depend on the stages. Shapes in the docstrings are those
of `parts`.

First weights are the same under every form of parallelism: each parameter is drawn in groups of
rows, from a generator that is seeded by the job's seed, the parameter's name and the first row, and
a rank draws the groups that hold some of its rows. Devices of different kinds draw different
values. GPT-2's rule applies: values are normal with deviation 0.02; projections that add to the
residual stream are scaled by 1 / sqrt(2 * layers); norms start at 1, biases and sinks at 0.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.optimizer import local
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
# Values that are drawn from one seed. Changing it changes the first weights.
_VALUES_PER_SEED = 2**18
_RESIDUAL_PROJECTIONS = (
    "attention.output.weight",
    "feed_forward.down.weight",
    "experts.down.weight",
    "shared.down.weight",
)


class Gpt(nn.Module):
    """The layers `layers` of the model, as blocks.

    The stage with the first layer also has the embedding, and the stage with the last layer also
    has the last norm and the head.
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
        self._sequence_length = sequence_length
        self._softcap = shape.head.softcap
        is_first = layers.start == 0
        is_last = layers.stop == len(shape.layers)
        if shape.head.tied and not (is_first and is_last):
            raise ValueError(
                "tied embeddings need the first and the last layer in the same pipeline stage"
            )
        self._tables: dict[tuple[RotaryPositions, int], RotaryTable] = {}
        first_position = 0 if context is None else context.positions(sequence_length).start
        self.embedding = (
            EmbeddingModule(
                shape.embedding, sequence_length=sequence_length, first_position=first_position
            )
            if is_first
            else None
        )
        host_activations = HostActivations() if recipe.activation_offload else None
        self.blocks = nn.ModuleDict()
        for number in layers:
            layer = shape.layers[number]
            self.blocks[str(number)] = Block(
                layer,
                self._rotary_table(layer.attention),
                recipe,
                context,
                host_activations,
                first_position=first_position,
            )
        self.norm = make_norm(shape.norm, shape.hidden) if is_last else None
        self.head: nn.Module | None = None
        if shape.head.tied and self.embedding is not None:
            self.head = TiedHead(self.embedding)
        elif is_last:
            self.head = nn.Linear(shape.hidden, shape.head.rows, bias=False)

    def _rotary_table(self, attention: Attention) -> RotaryTable | None:
        """Return the rotary table of a layer's attention, or None if it does not rotate.

        Layers that rotate in the same way share a table.
        """
        if attention.rotary is None:
            return None
        key = attention.rotary, attention.rotated_width
        if key not in self._tables:
            self._tables[key] = RotaryTable(*key, sequence_length=self._sequence_length)
        return self._tables[key]

    @property
    def mixtures(self) -> dict[str, MixtureModule]:
        """The mixtures of experts, by the names of their blocks."""
        feed_forwards = {
            f"blocks.{layer}": cast("Block", block).feed_forward
            for layer, block in self.blocks.items()
        }
        return {
            name: part for name, part in feed_forwards.items() if isinstance(part, MixtureModule)
        }

    def compile_blocks(
        self, compiled: Callable[[Transform], Transform], device: torch.device
    ) -> None:
        """Compile each block, or the attention of a block with experts.

        Args:
            compiled: Returns a function in compiled form.
            device: The device that the model runs on.
        """
        # torch.compile takes no function that changes an object, so caches are filled before.
        for table in self._tables.values():
            table.on(device)
        for block in cast("Iterable[Block]", self.blocks.values()):
            if device.type == "cuda" and isinstance(block.attention, GroupedAttentionModule):
                block.attention.dot_product.prepare(self._sequence_length, device)
            # Recompute is compiled with the layer: torch's checkpoint fails around a compiled
            # function.
            if isinstance(block.feed_forward, MixtureModule):
                # The experts' shapes change with every micro-batch.
                block.attend = compiled(block.attend)
            else:
                block.run = compiled(block.run)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Run the stage.

        Args:
            x: Token ids [B, S] in the first stage, else the previous stage's output [B, S, D].
            targets: Token ids [B, S], with which the last stage computes its loss in chunks.

        Returns:
            [B, S, D]; in the last stage logits [B, S, V], or the loss if there are `targets`.
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
        if self._softcap is None:
            return logits
        return self._softcap * torch.tanh(logits / self._softcap)

    def _chunked_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over equal chunks of the positions, which are recomputed.

        Args:
            x: [B, S / sequence-parallel ranks, D].
            targets: Token ids [B, S].
        """
        # The head gathers chunk i of every sequence-parallel rank. Those chunks lie side by side
        # then, but apart in the sequence.
        chunks = targets.view(targets.shape[0], self._sequence_shards, self._loss_chunks, -1)
        losses = [
            recomputed(self._chunk_loss, chunk, chunks[:, :, number].flatten(1))
            for number, chunk in enumerate(x.chunk(self._loss_chunks, dim=1))
        ]
        return torch.stack(losses).mean()

    def _chunk_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(self._logits(x), targets)


@torch.no_grad()
def initialize(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    seed: int,
    layers: int,
    device: torch.device | None = None,
) -> None:
    """Fill parameters with their first weights.

    Args:
        parameters: Materialized parameters, with their names in the whole model.
        seed: The job's seed.
        layers: Layers of the whole model.
        device: Where values are drawn; by default where the parameter lies.
    """
    for name, parameter in parameters:
        is_zero = name.endswith((".bias", "sinks.weight"))
        if is_zero or "norm" in name.rsplit(".", 2)[-2]:
            parameter.fill_(0.0 if is_zero else 1.0)
            continue
        deviation = DEVIATION
        if name.endswith(_RESIDUAL_PROJECTIONS):
            deviation = DEVIATION / (2 * layers) ** 0.5
        generator = torch.Generator(device or parameter.device)
        local_rows, local_columns = _local_ranges(parameter)
        height, width = parameter.shape
        local_part = local(parameter)
        group_rows = max(1, _VALUES_PER_SEED // width)
        buffer = torch.empty(min(group_rows, height), width, device=generator.device)
        first_group = local_rows.start - local_rows.start % group_rows
        for start in range(first_group, local_rows.stop, group_rows):
            digest = hashlib.sha256(f"{seed}:{name}:{start}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            values = buffer[: height - start].normal_(0.0, deviation, generator=generator)
            first = max(start, local_rows.start)
            end = min(start + group_rows, local_rows.stop)
            local_part[first - local_rows.start : end - local_rows.start] = values[
                first - start : end - start, local_columns.start : local_columns.stop
            ]


def _local_ranges(parameter: nn.Parameter) -> list[range]:
    """Return the range of this rank's part in each dimension of the whole parameter."""
    ranges = [range(size) for size in parameter.shape]
    if not isinstance(parameter, DTensor):
        return ranges
    # The dimensions of a mesh split a parameter from the outermost to the innermost. Strided ones
    # come last: tensor parallelism is applied before FSDP2 shards, and its dimension lies further
    # in, so FSDP2's dimension splits what tensor parallelism has left.
    mesh = parameter.device_mesh
    is_strided = [hasattr(placement, "split_factor") for placement in parameter.placements]
    for number in sorted(range(mesh.ndim), key=is_strided.__getitem__):
        dimension = getattr(parameter.placements[number], "dim", None)
        if dimension is not None:
            whole = ranges[dimension]
            size = -(-len(whole) // mesh.size(number))  # as torch.chunk splits
            index = mesh.get_local_rank(number)
            ranges[dimension] = whole[index * size : (index + 1) * size]
    return ranges
