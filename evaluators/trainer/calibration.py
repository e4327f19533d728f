"""Ranks that measure a machine, all busy at once: `python -P -m
frontrunner.evaluators.trainer.calibration`.

An order comes on stdin, places from the environment. The order of measurements is that in which a
short budget loses least. Collectives run over the groups of each level of the machine, every group
of a level at the same time. Their `bytes` is the size of the whole message: what an all-gather
results in, and what the others begin with.
"""

import datetime as dt
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.optimizer import COMPUTE_TYPES
from frontrunner.evaluators.trainer.rendezvous import rank_device, set_local_rank_env
from frontrunner.evaluators.trainer.run import leave, synchronize, write_json
from frontrunner.evaluators.trainer.telemetry import describe_software
from frontrunner.spaces.model.model import Model

COLLECTIVE_TIMEOUT = dt.timedelta(seconds=120)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""Ranks agree on times over gloo, so that an accelerator runs nothing but what is measured."""
UNTIL = {"memory": 0.10, "layer": 0.15, "matmul": 0.50, "collectives": 0.95, "transfers": 1.0}
MIB = 2**20
WIDTHS = {"cpu": (128, 512, 2048), "other": (512, 2048, 8192)}
"""Rows, columns and sums of the products: the tokens and widths of models that such a device
trains.
"""
STREAM_BYTES = {"cpu": (32 * MIB, 4 * MIB, MIB // 2), "other": (512 * MIB, 128 * MIB, 16 * MIB)}
"""Size of each array: the first is larger than any cache, the last may lie in one."""
MESSAGE_BYTES = {
    "cpu": tuple(2**power for power in (10, 22, 16, 19, 13, 24)),
    "other": tuple(2**power for power in (10, 25, 19, 28, 13, 22, 16)),
}
"""A small and a large message first: should time run out, there is a line through them."""
TRANSFER_BYTES = (1 * MIB, 16 * MIB, 256 * MIB)
TINY = Model.from_keys(
    name="tiny", layers=4, hidden=64, heads=1, kv_heads=1, ffn_hidden=64, vocabulary=64,
    activation="swiglu", norm="rmsnorm",
)  # fmt: skip
"""Blocks with next to nothing to compute, so that their time is what it takes to issue them."""
TINY_TOKENS = 8
WINDOWS = 3
"""Each figure is of the fastest of this many windows, as in STREAM: what else runs on the machine
only adds to them.
"""
MOST_RUNS = 20_000
FASTEST_GROWTH = 20
LONGEST_WINDOW_S = 0.25
MEETINGS = 15
LEAST_MEETINGS = 8
"""A window lasts at least half of this many meetings of the ranks; the last is taken off, but at
most an eighth.
"""
ALWAYS = 2
"""Cells that are measured however little time is left: with fewer there is no line and no
figure.
"""
UNTIMED_RUNS = 2
"""One that pays for first uses, and one that shows how many fill a window."""

Operation = Callable[[], object]


class Cell(NamedTuple):
    """One thing to measure. `key` names it; `work` is what its time grows with; `prepare` makes the
    operation.
    """

    key: dict[str, Any]
    work: float
    prepare: Callable[[], Operation]


def expected(work: float, seen: Sequence[tuple[float, float]]) -> float:
    """Return the seconds for this much work, on the line through the least and the most (work,
    seconds).
    """
    (least, least_s), (most, most_s) = min(seen, default=(0.0, 0.0)), max(seen, default=(0.0, 0.0))
    slope = max(most_s - least_s, 0.0) / (most - least) if most > least else 0.0
    return least_s + slope * max(work - least, 0.0)


class Clock:
    """Times operations that all ranks run at the same time. Every rank calls the same methods in
    the same order.
    """

    def __init__(self, device: torch.device, on_step: Callable[[], None] = lambda: None) -> None:
        self._device = device
        self._on_step = on_step
        self.left_out: list[dict[str, Any]] = []
        self.began_s = time.monotonic()
        self._meeting_s = statistics.median(
            self._window_s(lambda: None, 1) for _ in range(MEETINGS)
        )

    def sweep(self, of: str, cells: Iterable[Cell], until_s: float) -> list[dict[str, Any]]:
        """Return a row per cell, until `until_s` after the start; what would take longer goes to
        `left_out`.
        """
        cells, rows, seen = list(cells), list[dict[str, Any]](), list[tuple[float, float]]()
        for number, cell in enumerate(cells):
            left_s = -self.largest(time.monotonic() - self.began_s - until_s)
            expected_s = expected(cell.work, seen) * (UNTIMED_RUNS + WINDOWS)
            if number >= ALWAYS and (left_s <= 0 or expected_s > left_s):
                why = f"would take {expected_s:.2g} s of {max(left_s, 0.0):.2g} s that were left"
                self.left_out.append({"of": of} | cell.key | {"why": why})
                continue
            share_s = left_s / (len(cells) - number)
            time_s = self.time(cell.prepare(), share_s / (UNTIMED_RUNS + WINDOWS))
            seen.append((cell.work, time_s))
            rows.append(cell.key | {"time_s": time_s})
        return rows

    def time(self, run: Operation, window_s: float) -> float:
        """Return the seconds of one run, with windows of about `window_s`; the same on every
        rank.
        """
        window_s = max(min(window_s, LONGEST_WINDOW_S), LEAST_MEETINGS * self._meeting_s)
        self._window_s(run, 1)
        runs = 1
        while (whole_s := self._window_s(run, runs)) <= window_s / 2 and runs < MOST_RUNS:
            runs = min(int(runs * min(max(window_s / whole_s, 2), FASTEST_GROWTH)), MOST_RUNS)
        whole_s = min(self._window_s(run, runs) for _ in range(WINDOWS))
        return max(whole_s - self._meeting_s, (1 - 1 / LEAST_MEETINGS) * whole_s) / runs

    def _window_s(self, run: Operation, runs: int) -> float:
        # A rank's own time would not do: of four that share two cores, each may find a core free
        # while it measures.
        self.largest(0.0)
        start = time.perf_counter()
        for _ in range(runs):
            self._on_step()
            run()
        synchronize(self._device)
        self.largest(0.0)
        return self.largest(time.perf_counter() - start)

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' values, on every rank."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared.item())


class Level(NamedTuple):
    """This rank's group at one level, as torch knows it, and its size."""

    name: str
    group: dist.ProcessGroup
    ranks: int


def levels(ranks_per_node: int) -> list[Level]:
    """Return the levels that the ranks span: all of a node, the same place of all nodes, and
    neighbors in a node.
    """
    world = dist.get_world_size()
    places = {
        "node": [
            list(range(first, first + ranks_per_node)) for first in range(0, world, ranks_per_node)
        ],
        "network": [list(range(place, world, ranks_per_node)) for place in range(ranks_per_node)],
        "pair": (
            [[rank, rank + 1] for rank in range(0, world, 2)]
            if ranks_per_node in range(4, world + 1, 2)
            else [[]]
        ),
    }
    found = []
    for name, groups in places.items():
        if len(groups[0]) > 1:
            own, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
            found.append(Level(name, own, len(groups[0])))
    return found


COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce",
    "scatter",
               "point-to-point")  # fmt: skip


def collective_cells(level: Level, collective: str, device: torch.device) -> Iterator[Cell]:
    """Yield one collective over message sizes."""
    for size in _of(MESSAGE_BYTES, device):
        values = -(-size // 4 // level.ranks) * level.ranks
        key = {
            "collective": collective,
            "level": level.name,
            "ranks": level.ranks,
            "bytes": values * 4,
        }
        yield Cell(
            key,
            float(values),
            partial(_collective, collective, level, torch.zeros(values, device=device)),
        )


def _collective(name: str, level: Level, whole: torch.Tensor) -> Operation:
    # A root moves on with each run, so that no rank can run ahead of the others. Point-to-point
    # sends there and back between neighbors: two messages per run; the last of an odd number idles.
    group, own, roots = (
        level.group,
        dist.get_group_rank(level.group, dist.get_rank()),
        cycle(range(level.ranks)),
    )
    part, parts = whole.new_zeros(whole.numel() // level.ranks), list(whole.chunk(level.ranks))
    other, peer = torch.empty_like(whole) if name == "all-to-all" else whole, own ^ 1

    def scatter() -> None:
        root = next(roots)
        dist.scatter(part, parts if own == root else None, group_src=root, group=group)

    def there_and_back() -> None:
        for sends in (own < peer, own > peer) if peer < level.ranks else ():
            if sends:
                dist.send(whole, group_dst=peer, group=group)
            else:
                dist.recv(whole, group_src=peer, group=group)

    operations: dict[str, Operation] = {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, group_src=next(roots), group=group),
        "reduce": lambda: dist.reduce(whole, group_dst=next(roots), group=group),
        "scatter": scatter,
        "point-to-point": there_and_back,
    }
    return operations[name]


def _of(table: Mapping[str, tuple[int, ...]], device: torch.device) -> tuple[int, ...]:
    return table.get(device.type, table["other"])


def matmul_cells(device: torch.device, precision: str) -> Iterator[Cell]:
    """Yield products of widths of which two are equal, in an order in which a short budget leaves
    every size.
    """
    widths = _of(WIDTHS, device)
    shapes = [(m, n, k) for m, n, k in product(widths, repeat=3) if len({m, n, k}) < 3]
    shapes.sort(key=lambda shape: (shape[0] * shape[1] * shape[2], shape))
    first = [shapes[0], shapes[len(shapes) // 2], shapes[-1]]
    inwards = [
        shapes[place // 2 if place % 2 == 0 else -1 - place // 2] for place in range(len(shapes))
    ]
    for m, n, k in dict.fromkeys(first + inwards):
        prepare = partial(_matmul, device, COMPUTE_TYPES[precision], m, n, k)
        yield Cell({"precision": precision, "m": m, "n": n, "k": k}, 2.0 * m * n * k, prepare)


def _matmul(device: torch.device, dtype: torch.dtype, m: int, n: int, k: int) -> Operation:
    left = torch.randn(m, k, device=device).to(dtype)
    right = torch.randn(k, n, device=device).to(dtype)
    return partial(torch.mm, left, right, out=torch.empty(m, n, dtype=dtype, device=device))


def memory_cells(device: torch.device) -> Iterator[Cell]:
    """Yield copy, a = b, and triad, a = b + s c, as in STREAM (McCalpin 1995); `bytes` are those
    read and written.
    """
    for size in _of(STREAM_BYTES, device):
        for kernel, arrays in (("copy", 2), ("triad", 3)):
            moved, prepare = arrays * size, partial(_stream, device, kernel, size // 4)
            yield Cell({"kernel": kernel, "bytes": moved}, float(moved), prepare)


def _stream(device: torch.device, kernel: str, values: int) -> Operation:
    result, first, second = (torch.ones(values, device=device) for _ in range(3))
    if kernel == "copy":
        return partial(result.copy_, first)
    return partial(torch.add, first, second, alpha=0.5, out=result)


def _layers(device: torch.device) -> Operation:
    """Run forward and backward passes of the trainer's own blocks over a few tokens."""
    blocks = (
        Gpt(TINY, sequence_length=TINY_TOKENS, layers=range(len(TINY.layers))).to(device).blocks
    )
    tokens = torch.randn(1, TINY_TOKENS, TINY.hidden, device=device, requires_grad=True)

    def run() -> None:
        x = tokens
        for block in blocks.children():
            x = block(x)
        x.sum().backward()  # type: ignore[no-untyped-call]

    return run


def transfer_cells(device: torch.device) -> Iterator[Cell]:
    """Yield transfers to the device and back, from pinned memory and pageable; none where the
    device is the host.
    """
    if device.type == "cpu":
        return
    for size, direction, pinned in product(TRANSFER_BYTES, ("to-device", "to-host"), (True, False)):
        key = {"direction": direction, "pinned": pinned, "bytes": size}
        yield Cell(key, float(size), partial(_transfer, device, size, direction, pinned=pinned))


def _transfer(device: torch.device, size: int, direction: str, *, pinned: bool) -> Operation:
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    source, target = (host, there) if direction == "to-device" else (there, host)
    return partial(target.copy_, source, non_blocking=pinned)


def measure(device: torch.device, seconds: float, ranks_per_node: int) -> dict[str, Any]:
    """Return what all ranks measured together."""
    reach, passes = levels(ranks_per_node), 2 * len(TINY.layers)
    clock = Clock(device)
    sections: dict[str, list[Iterable[Cell]]] = {
        "memory": [memory_cells(device)],
        "layer": [[Cell({"passes": passes}, float(passes), partial(_layers, device))]],
        "matmul": [matmul_cells(device, precision) for precision in COMPUTE_TYPES],
        "collectives": [
            collective_cells(level, name, device) for level in reach for name in COLLECTIVES
        ],
        "transfers": [transfer_cells(device)],
    }
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in sections}
    from_s = 0.0
    for name, sweeps in sections.items():
        until_s = UNTIL[name] * seconds
        for number, cells in enumerate(sweeps, start=1):
            rows[name] += clock.sweep(
                name, cells, from_s + number / len(sweeps) * (until_s - from_s)
            )
        from_s = until_s
    for row in rows["collectives"]:
        row["time_s"] /= 2 if row["collective"] == "point-to-point" else 1  # there and back
    return {**rows, "left_out": clock.left_out, "measured_for_s": time.monotonic() - clock.began_s}


def main() -> None:
    """Measure with the other ranks; rank 0 writes what was measured."""
    order = json.loads(sys.stdin.read())
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    set_local_rank_env(local_rank, per_node)
    device = rank_device(order["device"], local_rank)
    dist.init_process_group(
        BACKENDS[order["device"]],
        init_method=os.environ.get("FRONTRUNNER_RENDEZVOUS", "env://"),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    found = measure(device, order["seconds"], per_node)
    if rank == 0:
        places = {"ranks": world_size, "ranks_per_node": per_node, "device": order["device"]}
        write_json(Path(order["out"]), places | describe_software(device) | found)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
