"""How far each kind of group reaches: within a node, or over several, and by which link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Reach:
    """One kind of group: `ranks` ranks each, over at most `nodes` nodes."""

    kind: str
    ranks: int
    nodes: int
    exchange: str
    gb_per_s: float | None

    @property
    def words(self) -> str:
        """Where such a group lies, and how fast the link there is, where the cluster says so."""
        where = "within a node" if self.nodes == 1 else f"over {self.nodes} nodes"
        return where if self.gb_per_s is None else f"{where}, {self.gb_per_s:g} GB/s a {self._end}"

    @property
    def _end(self) -> str:
        """What has that bandwidth."""
        return "device" if self.nodes == 1 else "network port"


def reaches(recipe: Recipe, cluster: Cluster) -> tuple[Reach, ...]:
    """The kinds of groups that have more than one rank, in the order in which a model is cut."""
    strides, links = recipe.rank_strides, cluster.links
    kinds = (
        ("tensor-parallel group", recipe.tensor_parallel, strides["tp"], "activations, in every layer"),
        ("pipeline", recipe.pipeline_parallel, strides["pp"], "activations, between stages"),
        ("context-parallel group", recipe.context_parallel, strides["dp"], "keys, values and queries, in every layer"),
        ("replicas", recipe.data_parallel, strides["dp"] * recipe.context_parallel, "gradients, once a step"),
    )
    found = []
    for kind, ranks, stride, exchange in kinds:
        if ranks > 1:
            nodes = nodes_of_groups(recipe.devices, cluster.devices_per_node, ranks=ranks, stride=stride)
            rate = links.node_gb_per_s if nodes == 1 else links.nic_gb_per_s
            found.append(Reach(kind=kind, ranks=ranks, nodes=nodes, exchange=exchange, gb_per_s=rate))
    return tuple(found)


def nodes_of_groups(devices: int, devices_per_node: int, *, ranks: int, stride: int) -> int:
    """The most nodes that one group touches; a group has `ranks` ranks, each `stride` after the one before."""
    every = np.arange(devices)
    first = every[every // stride % ranks == 0]
    nodes = (first[:, None] + stride * np.arange(ranks)) // devices_per_node
    return int(1 + np.count_nonzero(np.diff(nodes, axis=1), axis=1).max())
