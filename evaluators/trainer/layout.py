"""Where each rank stands in the grid of parallelism, and with which ranks it shares states and sequences."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from frontrunner.evaluators.trainer.parallel.context import ContextRanks
from frontrunner.spaces.recipe import Recipe

ShardingKind = Literal["replicate", "zero-1", "zero-2", "zero-3", "hybrid", "levels"]

_DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")
# The same ranks by the sequences they work on: context ranks are neighboring copies of the model.
_SEQUENCES = ("pipeline", "replica", "context", "tensor")
# In the order in which a parameter is cut: what one dimension leaves to a rank, the next one cuts further.
_LEVELS = ("pipeline", "tensor", "parameters", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One rank's place in the grid [pipeline, replicate, shard, tensor].

    replicate * shard is the number of copies of the model: data_parallel * context_parallel. `context` are the ranks
    that share this rank's sequences; None where sequences are whole.

    `levels` numbers the same ranks by what they hold where parameters, gradients and optimizer states are spread over
    different numbers of copies: [pipeline, tensor, parameters, gradients, optimizer]. The last three have the sizes
    p, g / p and o / g of the sharding degrees (p, g, o).
    """

    mesh: DeviceMesh
    recipe: Recipe
    levels: DeviceMesh | None = None
    context: ContextRanks | None = None

    @property
    def tensor_mesh(self) -> DeviceMesh:
        """The ranks that share each layer with this one."""
        return self.mesh["tensor"]

    @property
    def data_mesh(self) -> DeviceMesh:
        """The ranks that hold the same part of the model: 2-D [replicate, shard] for hybrid sharding, else 1-D."""
        kind = sharding_kind(self.recipe)
        if kind == "hybrid":
            return self.mesh["replicate", "shard"]
        return self.mesh["replicate"] if kind == "replicate" else self.mesh["shard"]

    @property
    def pipeline_mesh(self) -> DeviceMesh:
        """The ranks that hold the other stages of this replica."""
        return self.mesh["pipeline"]

    @property
    def pipeline_rank(self) -> int:
        """This rank's number among the pipeline's ranks."""
        return int(self.mesh.get_local_rank("pipeline"))

    @property
    def replica(self) -> int:
        """This rank's number among the data_parallel replicas."""
        shard_ranks = self.mesh.size(_DIMENSIONS.index("shard"))
        copy = int(self.mesh.get_local_rank("replicate")) * shard_ranks + int(self.mesh.get_local_rank("shard"))
        return copy // self.recipe.context_parallel

    @property
    def replica_sequences(self) -> slice:
        """The part of the global batch that this rank's replica trains on."""
        size = self.recipe.micro_batch_seqs * self.recipe.accumulation
        return slice(self.replica * size, (self.replica + 1) * size)


def make_layout(recipe: Recipe, *, device_type: str) -> Layout:
    """Return the grid over all ranks of the default process group, which must have recipe.devices ranks."""
    kind = sharding_kind(recipe)
    # Of the levels FSDP2 sees the innermost only, the groups over which parameters are spread.
    shard_ranks = recipe.sharding.parameters if kind == "levels" else recipe.sharding.optimizer
    copies = (recipe.copies // shard_ranks, shard_ranks)
    mesh = DeviceMesh(device_type, rank_grid(recipe, copies), mesh_dim_names=_DIMENSIONS)
    levels = _levels(recipe, device_type) if kind == "levels" else None
    context = _context_ranks(recipe, device_type) if recipe.context_parallel > 1 else None
    return Layout(mesh=mesh, recipe=recipe, levels=levels, context=context)


def _context_ranks(recipe: Recipe, device_type: str) -> ContextRanks:
    grid = rank_grid(recipe, (recipe.data_parallel, recipe.context_parallel))
    return ContextRanks(DeviceMesh(device_type, grid, mesh_dim_names=_SEQUENCES)["context"])


def rank_grid(recipe: Recipe, copies: tuple[int, ...]) -> Tensor:
    """Return the ranks as an array [pipeline, *copies, tensor], numbered as the recipe's rank order says.

    `copies` are the sizes by which the copies of the model are cut, outermost first; together they are all of them.
    By default tensor-parallel ranks are neighbors, so that their heavy traffic stays on the fastest links.
    """
    sizes = {"pp": (recipe.pipeline_parallel,), "dp": copies, "tp": (recipe.tensor_parallel,)}
    outermost_first = recipe.rank_order.split("-")[::-1]
    shape = [size for name in outermost_first for size in sizes[name]]
    place = {name: sum(len(sizes[outer]) for outer in outermost_first[:n]) for n, name in enumerate(outermost_first)}
    wanted = [place[name] + part for name in ("pp", "dp", "tp") for part in range(len(sizes[name]))]
    return torch.arange(recipe.devices, device="cpu").view(shape).permute(wanted).contiguous()


def _levels(recipe: Recipe, device_type: str) -> DeviceMesh:
    """Return the ranks by level; copies that share parameters are neighbors, and so are those that share gradients."""
    p, g, o = recipe.sharding.parameters, recipe.sharding.gradients, recipe.sharding.optimizer
    ranks = rank_grid(recipe, (o // g, g // p, p))
    return DeviceMesh(device_type, ranks.permute(0, 4, 3, 2, 1).contiguous(), mesh_dim_names=_LEVELS)


def sharding_kind(recipe: Recipe) -> ShardingKind:
    """Return the kind of the recipe's sharding degrees over N copies of the model.

    (1, 1, 1) is plain replication, (1, 1, N) ZeRO-1, (1, N, N) ZeRO-2, (N, N, N) ZeRO-3 (arXiv 1910.02054),
    (k, k, k) with 1 < k < N hybrid sharding (arXiv 2304.11277), and any other p <= g <= o = N that divide one another
    sharding by levels (arXiv 2501.04266). Legality refuses other degrees.
    """
    kinds: dict[str, ShardingKind] = {"none": "replicate", "zero-1": "zero-1", "zero-2": "zero-2", "zero-3": "zero-3"}
    name = recipe.sharding_name
    return kinds.get(name, "hybrid" if name.startswith("hybrid") else "levels")
