"""Where each rank stands in the grid of parallelism, and the ranks with which it shares states and
sequences.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_to_all_single
from torch.distributed.device_mesh import DeviceMesh

from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import layers_of_stages, rank_of_stage

ShardingKind = Literal["replicate", "zero-1", "zero-2", "zero-3", "hybrid", "levels"]

_DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")
# The same ranks by the sequences they work on: context ranks are neighboring copies of the model.
_SEQUENCES = ("pipeline", "replica", "context", "tensor")
# The ranks of a stage by the experts that they hold.
_EXPERTS = ("pipeline", "expert_replicas", "experts", "expert_tensor")
# In the order in which a parameter is cut: what one dimension leaves to a rank, the next one cuts
# further.
_LEVELS = ("pipeline", "tensor", "parameters", "gradients", "optimizer")


class ContextRanks:
    """Context parallelism: the ranks of one replica each hold S / c neighboring positions of its
    sequences.

    Everything but attention looks at one position at a time. For attention an all-to-all gives each
    rank whole sequences of a share of the heads, and another brings the outcome back, as in
    DeepSpeed-Ulysses (arXiv 2309.14509). Query, key and value travel in one message; with fewer
    key-value heads than ranks each head is sent to several.

    Shapes: B sequences, S tokens of a whole sequence, c context ranks, H heads of this
    tensor-parallel rank of width d.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group()
        self._number = int(mesh.get_local_rank())
        self._size = mesh.size()

    def positions(self, sequence_length: int) -> slice:
        """Return the positions of a whole sequence that this rank holds; its ranks must divide the
        length.
        """
        held = sequence_length // self._size
        return slice(self._number * held, (self._number + 1) * held)

    def whole_sequences(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's heads over all positions: [B, S / c, H, d] each -> [B, S, max(H, c) /
        c, d] each.
        """
        parts = [self._by_heads(heads) for heads in (query, key, value)]
        received = self._exchange(torch.cat(parts, dim=3))
        whole = received.transpose(0, 1).flatten(1, 2)  # part i holds the positions of rank i
        query, key, value = torch.split_with_sizes(whole, [part.shape[3] for part in parts], dim=2)
        return query, key, value

    def own_heads(self, of_heads: Tensor) -> Tensor:
        """Return the part of [H] that is of the heads which this rank works on."""
        return of_heads.chunk(self._size)[self._number]

    def own_positions(self, mixed: Tensor) -> Tensor:
        """Return all heads over this rank's positions: [B, S, H / c, d] -> [B, S / c, H, d]."""
        received = self._exchange(torch.unflatten(mixed, 1, (self._size, -1)).transpose(0, 1))
        return received.permute(1, 2, 0, 3, 4).flatten(2, 3)  # part i holds the heads of rank i

    def _by_heads(self, heads: Tensor) -> Tensor:
        """[B, S / c, H, d] -> [c, B, S / c, max(H, c) / c, d]: for each rank the heads that it
        works on.
        """
        if heads.shape[2] < self._size:
            heads = heads.repeat_interleave(self._size // heads.shape[2], dim=2)
        return torch.unflatten(heads, 2, (self._size, -1)).permute(2, 0, 1, 3, 4)

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send part i of [c, ...] to rank i; part i of the outcome is what rank i sent here."""
        return exchanged(parts, self._all_to_all, self._all_to_all)

    def _all_to_all(self, parts: Tensor) -> Tensor:
        received = all_to_all_single(parts.contiguous(), None, None, self.group)
        return received.wait() if isinstance(received, AsyncCollectiveTensor) else received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        there: Callable[[Tensor], Tensor],
        back: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.back = back  # type: ignore[attr-defined]
        return there(x)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None  # type: ignore[attr-defined]


def exchanged(
    x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return `there(x)`, whose gradient is `back` of the gradient: torch's own such collectives
    changed since 2.11.
    """
    return cast("Tensor", _Exchange.apply(x, there, back))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One rank's place in the grid [pipeline, replicate, shard, tensor], whose copies are replicate
    * shard.

    `context` are the ranks that share this rank's sequences; None where sequences are whole.
    `levels` numbers the same ranks by what they hold under sharding by levels: [pipeline, tensor,
    parameters, gradients, optimizer], the last three of the sizes p, g / p and o / g of the
    sharding degrees (p, g, o). `experts` numbers them by the experts that they hold where several
    ranks share these: [pipeline, expert_replicas, experts, expert_tensor].
    """

    mesh: DeviceMesh
    recipe: Recipe
    levels: DeviceMesh | None = None
    context: ContextRanks | None = None
    experts: DeviceMesh | None = None

    @property
    def data_mesh(self) -> DeviceMesh:
        """The ranks that hold the same part of the model: 2-D [replicate, shard] for hybrid
        sharding, else 1-D.
        """
        kind = sharding_kind(self.recipe)
        if kind == "hybrid":
            return self.mesh["replicate", "shard"]
        return self.mesh["replicate"] if kind == "replicate" else self.mesh["shard"]

    @property
    def pipeline_rank(self) -> int:
        """This rank's number among the pipeline's ranks."""
        return int(self.mesh.get_local_rank("pipeline"))

    @property
    def replica_sequences(self) -> slice:
        """The part of the global batch that this rank's replica trains on."""
        shard_ranks = self.mesh.size(_DIMENSIONS.index("shard"))
        copy = int(self.mesh.get_local_rank("replicate")) * shard_ranks + int(
            self.mesh.get_local_rank("shard")
        )
        size = self.recipe.micro_batch_seqs * self.recipe.accumulation
        first = copy // self.recipe.context_parallel * size
        return slice(first, first + size)


def make_layout(recipe: Recipe, *, device_type: str) -> Layout:
    """Return the grid over all ranks of the default process group, which must have recipe.devices
    ranks.
    """
    has_levels = sharding_kind(recipe) == "levels"
    p, g, o = recipe.sharding.parameters, recipe.sharding.gradients, recipe.sharding.optimizer
    shard_ranks = p if has_levels else o  # of the levels FSDP2 sees the innermost only
    levels = context = None
    if has_levels:
        # Copies that share parameters are neighbors, and so are those that share gradients.
        grid = rank_grid(recipe, (o // g, g // p, p)).permute(0, 4, 3, 2, 1).contiguous()
        levels = DeviceMesh(device_type, grid, mesh_dim_names=_LEVELS)
    if recipe.context_parallel > 1:
        grid = rank_grid(recipe, (recipe.data_parallel, recipe.context_parallel))
        context = ContextRanks(DeviceMesh(device_type, grid, mesh_dim_names=_SEQUENCES)["context"])
    experts = None
    if recipe.expert_ranks > 1:
        # In rising order, as torch numbers the ranks of a group; any ranks of a stage may share
        # experts.
        of_stages = rank_grid(recipe, (recipe.copies,)).flatten(1).sort(dim=1).values
        degrees = recipe.expert_parallel, recipe.expert_tensor_parallel
        grid = of_stages.view(recipe.pipeline_parallel, -1, *degrees)
        experts = DeviceMesh(device_type, grid, mesh_dim_names=_EXPERTS)
    grid = rank_grid(recipe, (recipe.copies // shard_ranks, shard_ranks))
    mesh = DeviceMesh(device_type, grid, mesh_dim_names=_DIMENSIONS)
    return Layout(mesh=mesh, recipe=recipe, levels=levels, context=context, experts=experts)


def rank_grid(recipe: Recipe, copies: tuple[int, ...]) -> Tensor:
    """Return the ranks as [pipeline, *copies, tensor], in the recipe's order; `copies` are sizes,
    outermost first.
    """
    sizes = {"pp": (recipe.pipeline_parallel,), "dp": copies, "tp": (recipe.tensor_parallel,)}
    outermost_first = recipe.rank_order.split("-")[::-1]
    axes = [(name, part) for name in outermost_first for part in range(len(sizes[name]))]
    wanted = [axes.index((name, part)) for name in sizes for part in range(len(sizes[name]))]
    shape = [sizes[name][part] for name, part in axes]
    return torch.arange(recipe.devices, device="cpu").view(shape).permute(wanted).contiguous()


def sharding_kind(recipe: Recipe) -> ShardingKind:
    """Return the kind of the recipe's sharding degrees over N copies of the model.

    (1, 1, 1) is plain replication, (1, 1, N) ZeRO-1, (1, N, N) ZeRO-2, (N, N, N) ZeRO-3 (arXiv
    1910.02054), (k, k, k) with 1 < k < N hybrid sharding (arXiv 2304.11277), and any other p <= g
    <= o = N that divide one another sharding by levels (arXiv 2501.04266). Legality refuses other
    degrees.
    """
    kinds: dict[str, ShardingKind] = {
        "none": "replicate",
        "zero-1": "zero-1",
        "zero-2": "zero-2",
        "zero-3": "zero-3",
    }
    name = recipe.sharding_name
    return kinds.get(name, "hybrid" if name.startswith("hybrid") else "levels")


def stage_layers(layers: int, recipe: Recipe) -> list[range]:
    """Return the layers of each stage: as many as the recipe says, else as even as possible."""
    counts = layers_of_stages(recipe, layers)
    ends = itertools.accumulate(counts)
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def stages_of_rank(recipe: Recipe, pipeline_rank: int) -> list[int]:
    """Return the numbers of the stages that one rank of the pipeline holds, in ascending order."""
    return [
        stage for stage in range(recipe.stages) if rank_of_stage(recipe, stage) == pipeline_rank
    ]
