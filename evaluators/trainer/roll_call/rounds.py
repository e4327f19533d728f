"""What called ranks do together: sums that are checked, rounds of work, all-reduces by size, and pairs."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_group

from frontrunner.evaluators.trainer.calibration.clock import Cell, Clock, Operation
from frontrunner.evaluators.trainer.calibration.collectives import Level, collective_cells
from frontrunner.evaluators.trainer.roll_call.order import Order
from frontrunner.evaluators.trainer.roll_call.signs import Signs

SUM_VALUES = (1, 1000, 2**18)
ROUNDS = 40
WORK_WIDTH = {"cpu": 384, "other": 4096}
"""Of the matrix product between two collectives: some milliseconds on a core, or on an accelerator."""
SWEEP_S = 4.0
PAIR_BYTES = {"cpu": 2**22, "other": 2**25}
PAIR_REPEATS = 11
MOST_PARTNERS = 8


def run_rounds(order: Order, device: torch.device, signs: Signs) -> dict[str, object]:
    """This rank's part of everything, as its report; the bandwidths are the same on every rank."""
    return {
        "wrong_sums": _wrong_sums(order, device, signs),
        **_rounds_of_work(device, signs),
        "all_reduce": _bandwidths(order, device, signs),
        "pairs": list(_pairs(order, device, signs)),
    }


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _wrong_sums(order: Order, device: torch.device, signs: Signs) -> int:
    """How many values of sums over all ranks are wrong: rank r gives r + 1, so n ranks make n (n + 1) / 2."""
    wrong = 0
    for count in SUM_VALUES:
        signs.step("adding up")
        values = torch.full((count,), float(order.rank + 1), device=device)
        dist.all_reduce(values)
        wrong += int((values != order.world_size * (order.world_size + 1) / 2).sum().item())
    return wrong


def _rounds_of_work(device: torch.device, signs: Signs) -> dict[str, list[float]]:
    """Seconds of the same work, and of the all-reduce behind it, for each round: who works long waits little."""
    width = WORK_WIDTH["cpu" if device.type == "cpu" else "other"]
    left, token = torch.ones(width, width, device=device), torch.zeros(1, device=device)
    right, out = torch.ones_like(left), torch.empty_like(left)
    work_s, wait_s = [], []
    for number in range(ROUNDS + 1):
        signs.step("working in turns")
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        _wait_for(device)
        worked = time.perf_counter()
        dist.all_reduce(token)
        _wait_for(device)
        if number:  # the first pays for first uses
            work_s.append(worked - start)
            wait_s.append(time.perf_counter() - worked)
    return {"work_s": work_s, "wait_s": wait_s}


def _bandwidths(order: Order, device: torch.device, signs: Signs) -> list[dict[str, Any]]:
    """Seconds of an all-reduce over all ranks, by size."""
    if order.world_size == 1:
        return []
    level = Level(name="all", group=_get_default_group(), ranks=order.world_size)
    cells = [_counted(cell, signs) for cell in collective_cells(level, "all-reduce", device)]
    rows = Clock(device).sweep(cells, SWEEP_S).rows
    return sorted(({"bytes": row["bytes"], "time_s": row["time_s"]} for row in rows), key=lambda row: row["bytes"])


def _counted(cell: Cell, signs: Signs) -> Cell:
    """The cell, each run of which is a step."""

    def prepare() -> Operation:
        run = cell.prepare()

        def counted() -> None:
            signs.step("timing all-reduces")
            run()

        return counted

    return Cell(key=cell.key, work=cell.work, prepare=prepare)


def partners(places: int, own: int) -> Iterator[int | None]:
    """Whom one of so many places meets, turn by turn, as in a tournament; None where it sits a turn out.

    In turn t the places i and j with i + j = t (modulo the number of the others) meet, and the last one meets the place
    for which i = j: every pair once in as many turns as there are others. An odd number gets a place that nobody has.
    """
    even = places + places % 2
    others = even - 1
    for turn in range(others):
        if own == others:
            met = next(place for place in range(others) if 2 * place % others == turn)
        else:
            met = (turn - own) % others
            met = others if met == own else met
        yield met if met < places else None


def _pairs(order: Order, device: torch.device, signs: Signs) -> Iterator[dict[str, object]]:
    """A message there and back with some ranks of the same node, then with the same place of some other nodes."""
    per_node, nodes = order.local_world_size, order.world_size // order.local_world_size
    node, place = divmod(order.rank, per_node)
    values = torch.zeros(PAIR_BYTES["cpu" if device.type == "cpu" else "other"] // 4, device=device)
    levels: tuple[tuple[str, int, int, Callable[[int], int]], ...] = (
        ("node", per_node, place, lambda met: node * per_node + met),
        ("network", nodes, node, lambda met: met * per_node + place),
    )
    for level, places, own, rank_of in levels:
        turns = list(partners(places, own)) if places > 1 else []
        for met in turns[:: -(-len(turns) // MOST_PARTNERS) or 1]:
            signs.step("meeting in pairs")
            dist.all_reduce(torch.zeros(1))  # over gloo: all pairs begin together
            if met is not None:
                seconds = _there_and_back(order.rank, rank_of(met), values, device)
                yield {"level": level, "partner": rank_of(met), "time_s": seconds, "bytes": values.numel() * 4}


def _there_and_back(own: int, partner: int, values: torch.Tensor, device: torch.device) -> float:
    """Seconds of one message: half the median of there and back, the first left out."""
    taken = []
    for _ in range(PAIR_REPEATS + 1):
        start = time.perf_counter()
        if own < partner:
            dist.send(values, partner)
            dist.recv(values, partner)
        else:
            dist.recv(values, partner)
            dist.send(values, partner)
        _wait_for(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:]) / 2
