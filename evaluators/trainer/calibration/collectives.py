"""Collectives over the groups of each level of the machine, every group of a level at the same time.

`bytes` is the size of the whole message: what an all-reduce, broadcast or reduce works on, what an all-gather results
in, what a reduce-scatter, scatter or all-to-all begins with, and what a point-to-point transfer sends.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.calibration.clock import Cell, Operation

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""By device; ranks agree on times over gloo, so that an accelerator runs nothing but what is measured."""
MESSAGE_BYTES = {
    "cpu": tuple(2**power for power in (10, 22, 16, 19, 13, 24)),
    "other": tuple(2**power for power in (10, 25, 19, 28, 13, 22, 16)),
}
"""A small and a large message first: should time run out, there is a line through them."""
VALUE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Level:
    """This rank's group at one level, as torch knows it, and its size."""

    name: str
    group: dist.ProcessGroup
    ranks: int


def levels(ranks_per_node: int) -> list[Level]:
    """Return the levels that the ranks span: all of a node, the same place of all nodes, and neighbors in a node."""
    world = dist.get_world_size()
    nodes = world // ranks_per_node
    places: dict[str, list[list[int]]] = {}
    if ranks_per_node > 1:
        places["node"] = [[node * ranks_per_node + place for place in range(ranks_per_node)] for node in range(nodes)]
    if nodes > 1:
        places["network"] = [list(range(place, world, ranks_per_node)) for place in range(ranks_per_node)]
    if ranks_per_node > 2 and ranks_per_node % 2 == 0:
        places["pair"] = [[rank, rank + 1] for rank in range(0, world, 2)]
    found = []
    for name, groups in places.items():
        own, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
        found.append(Level(name=name, group=own, ranks=len(groups[0])))
    return found


def collective_cells(level: Level, collective: str, device: torch.device) -> Iterator[Cell]:
    """Yield one collective over message sizes."""
    for size in MESSAGE_BYTES.get(device.type, MESSAGE_BYTES["other"]):
        values = -(-size // VALUE_BYTES // level.ranks) * level.ranks
        key = {"collective": collective, "level": level.name, "ranks": level.ranks, "bytes": values * VALUE_BYTES}
        prepare = partial(COLLECTIVES[collective], level, torch.zeros(values, device=device))
        yield Cell(key=key, work=float(values), prepare=prepare)


def _all_reduce(level: Level, whole: torch.Tensor) -> Operation:
    return partial(dist.all_reduce, whole, group=level.group)


def _reduce_scatter(level: Level, whole: torch.Tensor) -> Operation:
    part = whole.new_empty(whole.numel() // level.ranks)
    return partial(dist.reduce_scatter_tensor, part, whole, group=level.group)


def _all_gather(level: Level, whole: torch.Tensor) -> Operation:
    part = whole.new_zeros(whole.numel() // level.ranks)
    return partial(dist.all_gather_into_tensor, whole, part, group=level.group)


def _all_to_all(level: Level, whole: torch.Tensor) -> Operation:
    return partial(dist.all_to_all_single, torch.empty_like(whole), whole, group=level.group)


def _from_each_in_turn(run: Callable[[int], object], ranks: int) -> Operation:
    """Move the root on with each run, so that no rank can run ahead of the others."""
    roots = cycle(range(ranks))
    return lambda: run(next(roots))


def _broadcast(level: Level, whole: torch.Tensor) -> Operation:
    return _from_each_in_turn(lambda root: dist.broadcast(whole, group_src=root, group=level.group), level.ranks)


def _reduce(level: Level, whole: torch.Tensor) -> Operation:
    return _from_each_in_turn(lambda root: dist.reduce(whole, group_dst=root, group=level.group), level.ranks)


def _scatter(level: Level, whole: torch.Tensor) -> Operation:
    own, parts = dist.get_group_rank(level.group, dist.get_rank()), list(whole.chunk(level.ranks))
    part = torch.empty_like(parts[0])

    def run(root: int) -> None:
        dist.scatter(part, parts if own == root else None, group_src=root, group=level.group)

    return _from_each_in_turn(run, level.ranks)


def _point_to_point(level: Level, whole: torch.Tensor) -> Operation:
    """Send there and back between neighbors of the group: two messages per run. The last of an odd number idles."""
    own = dist.get_group_rank(level.group, dist.get_rank())
    peer = own ^ 1

    def run() -> None:
        if peer < level.ranks and own < peer:
            dist.send(whole, group_dst=peer, group=level.group)
            dist.recv(whole, group_src=peer, group=level.group)
        elif peer < level.ranks:
            dist.recv(whole, group_src=peer, group=level.group)
            dist.send(whole, group_dst=peer, group=level.group)

    return run


COLLECTIVES: dict[str, Callable[[Level, torch.Tensor], Operation]] = {
    "all-reduce": _all_reduce,
    "reduce-scatter": _reduce_scatter,
    "all-gather": _all_gather,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "scatter": _scatter,
    "point-to-point": _point_to_point,
}
ROUND_TRIPS = frozenset({"point-to-point"})
"""The collectives of which a run holds two messages."""
