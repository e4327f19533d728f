"""Where each rank stands in the grid of pipeline, data and tensor parallelism, and which states its replicas share."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from frontrunner.evaluators.trainer.job import Recipe

ShardingKind = Literal["replicate", "zero-1", "zero-2", "zero-3", "hybrid", "levels"]

# Outermost first: tensor-parallel ranks are neighbours, so that their heavy traffic stays on the fastest links.
_DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")
# In the order in which a parameter is cut: what one dimension leaves to a rank, the next one cuts further.
_LEVELS = ("pipeline", "tensor", "parameters", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One rank's place in the grid [pipeline, replicate, shard, tensor]; replicate * shard = data_parallel.

    `levels` numbers the same ranks by what they hold where parameters, gradients and optimizer states are spread over
    different numbers of replicas: [pipeline, tensor, parameters, gradients, optimizer]. The last three have the sizes
    p, g / p and o / g of the sharding degrees (p, g, o).
    """

    mesh: DeviceMesh
    recipe: Recipe
    levels: DeviceMesh | None = None

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
        return int(self.mesh.get_local_rank("replicate")) * shard_ranks + int(self.mesh.get_local_rank("shard"))

    @property
    def replica_sequences(self) -> slice:
        """The part of the global batch that this rank's replica trains on."""
        size = self.recipe.replica_batch_seqs
        return slice(self.replica * size, (self.replica + 1) * size)


def make_layout(recipe: Recipe, *, device_type: str) -> Layout:
    """The grid over all ranks of the default process group, which must have recipe.world_size ranks."""
    kind = sharding_kind(recipe)
    # Of the levels FSDP2 sees the innermost only, the groups over which parameters are spread.
    shard_ranks = recipe.sharding.parameters if kind == "levels" else recipe.sharding.optimizer
    sizes = (recipe.pipeline_parallel, recipe.data_parallel // shard_ranks, shard_ranks, recipe.tensor_parallel)
    mesh = init_device_mesh(device_type, sizes, mesh_dim_names=_DIMENSIONS)
    return Layout(mesh=mesh, recipe=recipe, levels=_levels(recipe, device_type) if kind == "levels" else None)


def _levels(recipe: Recipe, device_type: str) -> DeviceMesh:
    """The ranks by level; replicas that share parameters are neighbours, and so are those that share gradients."""
    p, g, o = recipe.sharding.parameters, recipe.sharding.gradients, recipe.sharding.optimizer
    grid = (recipe.pipeline_parallel, o // g, g // p, p, recipe.tensor_parallel)
    ranks = torch.arange(recipe.world_size, device="cpu").view(grid)
    return DeviceMesh(device_type, ranks.permute(0, 4, 3, 2, 1).contiguous(), mesh_dim_names=_LEVELS)


def sharding_kind(recipe: Recipe) -> ShardingKind:
    """The common name of the recipe's sharding degrees over N = data_parallel replicas.

    (1, 1, 1) is plain replication, (1, 1, N) ZeRO-1, (1, N, N) ZeRO-2, (N, N, N) ZeRO-3 (arXiv 1910.02054),
    (k, k, k) with 1 < k < N hybrid sharding (arXiv 2304.11277), and any other p <= g <= o = N that divide one another
    sharding by levels (arXiv 2501.04266).

    Raises:
        ValueError: the degrees are none of these.
    """
    replicas = recipe.data_parallel
    degrees = (recipe.sharding.parameters, recipe.sharding.gradients, recipe.sharding.optimizer)
    named: dict[tuple[int, int, int], ShardingKind] = {
        (replicas, replicas, replicas): "zero-3",
        (1, replicas, replicas): "zero-2",
        (1, 1, replicas): "zero-1",
        (1, 1, 1): "replicate",
    }
    if degrees in named:
        return named[degrees] if replicas > 1 else "replicate"
    degree = degrees[0]
    if len(set(degrees)) == 1 and 1 < degree < replicas and replicas % degree == 0:
        return "hybrid"
    p, g, o = degrees
    if o == replicas and p >= 1 and g > 1 and g % p == 0 and o % g == 0:
        return "levels"
    raise ValueError(
        f"sharding degrees {degrees} (parameters, gradients, optimizer) over {replicas} replicas are not supported; "
        f"use (1, 1, 1), (1, 1, {replicas}), (k, k, k) with k a divisor of {replicas}, or (p, g, {replicas}) with "
        f"p a divisor of g and g one of {replicas}"
    )
