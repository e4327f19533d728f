"""One rank of a collective test: `python -P -m frontrunner.evaluators.trainer.collective_test`, its
order on stdin.

Ranks do sums that are checked, rounds of work, all-reduces by size, and messages in pairs. Each
writes its progress to a TCPStore held by the process that started rank 0, which the doctor reads.
"""

import datetime as dt
import json
import os
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_default_group

from frontrunner.evaluators.trainer.calibration import BACKENDS, Clock, Level, collective_cells
from frontrunner.evaluators.trainer.rendezvous import rank_device, set_local_rank_env
from frontrunner.evaluators.trainer.run import leave, synchronize

PREFIX = "frontrunner-doctor"
"""Of every key: under torchrun the store is torchrun's own."""
ARRIVED, HEARTBEAT, REPORT, ALL_ARRIVED = "arrived", "heartbeat", "report", "all-arrived"
"""Keys; all but the last with `/RANK` after it."""
HEARTBEAT_S = 0.5
DONE = "done"
SUM_VALUES = (1, 1000, 2**18)
ROUNDS = 40
CPU_WIDTH, ACCELERATOR_WIDTH = 384, 4096
"""Of the matrix product between two collectives: some milliseconds on a core, or on an
accelerator.
"""
SWEEP_S = 4.0
CPU_PAIR_BYTES, ACCELERATOR_PAIR_BYTES = 2**22, 2**25
PAIR_REPEATS = 11
MAX_PARTNERS = 8


def key(word: str, rank: int) -> str:
    """Return a rank's key."""
    return f"{word}/{rank}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One rank's place, where the store is, and for how long the rank waits for the others."""

    device: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    port: int
    deadline_s: float


class Progress:
    """How far this rank is, written to the store by a thread twice per second. A rank whose store
    is gone exits.
    """

    def __init__(self, order: Order) -> None:
        self.store = _connect(order)
        self._order = order
        self._stage, self._step, self._over = "arrived", 0, threading.Event()
        self._thread = threading.Thread(target=self._write, args=(_connect(order),), daemon=True)
        self._thread.start()

    def arrive(self) -> None:
        """Write where this rank is, and wait until all have arrived; raise `DistStoreError` if they
        do not.
        """
        arrival = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        }
        self.store.set(key(ARRIVED, self._order.rank), json.dumps(arrival))
        self.store.wait([ALL_ARRIVED])

    def step(self, stage: str) -> None:
        """Record that this rank advances: called before whatever may wait for another rank."""
        self._stage = stage
        self._step += 1

    def done(self, report: dict[str, object]) -> None:
        """Write the report, and a last heartbeat that says so."""
        self._over.set()
        self._thread.join()
        self.store.set(key(REPORT, self._order.rank), json.dumps(report, allow_nan=False))
        self.step(DONE)
        self.store.set(key(HEARTBEAT, self._order.rank), self._heartbeat(-1))

    def _write(self, store: Store) -> None:
        count = 0
        while not self._over.wait(HEARTBEAT_S if count else 0):
            count += 1
            try:
                store.set(key(HEARTBEAT, self._order.rank), self._heartbeat(count))
            except (
                RuntimeError
            ):  # as torch says that the store is gone, and with it whoever started this
                os._exit(1)

    def _heartbeat(self, count: int) -> str:
        return json.dumps({"count": count, "stage": self._stage, "step": self._step})


def _connect(order: Order) -> Store:
    wait = dt.timedelta(seconds=order.deadline_s)
    return PrefixStore(PREFIX, TCPStore(order.host, order.port, is_master=False, timeout=wait))


def _wrong_sums(order: Order, device: torch.device, progress: Progress) -> int:
    """Return how many values of sums over all ranks are wrong: rank r adds r + 1, so n ranks make n
    (n + 1) / 2.
    """
    wrong = 0
    for count in SUM_VALUES:
        progress.step("adding up")
        values = torch.full((count,), float(order.rank + 1), device=device)
        dist.all_reduce(values)
        wrong += int((values != order.world_size * (order.world_size + 1) / 2).sum().item())
    return wrong


def _rounds_of_work(device: torch.device, progress: Progress) -> dict[str, list[float]]:
    """Return seconds of the same work, and of the all-reduce after it, per round: a slow rank waits
    little.
    """
    width = CPU_WIDTH if device.type == "cpu" else ACCELERATOR_WIDTH
    left, token = torch.ones(width, width, device=device), torch.zeros(1, device=device)
    right, out = torch.ones_like(left), torch.empty_like(left)
    work_s, wait_s = [], []
    for number in range(ROUNDS + 1):
        progress.step("working in turns")
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        synchronize(device)
        worked = time.perf_counter()
        dist.all_reduce(token)
        synchronize(device)
        if number:  # the first pays for first uses
            work_s.append(worked - start)
            wait_s.append(time.perf_counter() - worked)
    return {"work_s": work_s, "wait_s": wait_s}


def _bandwidths(order: Order, device: torch.device, progress: Progress) -> list[dict[str, Any]]:
    if order.world_size == 1:
        return []
    level = Level("all", _get_default_group(), order.world_size)
    clock = Clock(device, lambda: progress.step("timing all-reduces"))
    rows = clock.sweep("all-reduce", collective_cells(level, "all-reduce", device), SWEEP_S)
    times = {row["bytes"]: row["time_s"] for row in rows}
    return [{"bytes": size, "time_s": times[size]} for size in sorted(times)]


def partners(places: int, own: int) -> Iterator[int | None]:
    """Yield the partner of one of `places` per turn, as in a round-robin tournament; None where it
    has none.

    In turn t the places i and j with i + j = t (modulo the number of the others) meet, and the last
    one meets the place for which i = j: every pair once in as many turns as there are others. An
    odd number gets an empty place.
    """
    even = places + places % 2
    others = even - 1
    for turn in range(others):
        met = turn * (even // 2) % others if own == others else (turn - own) % others
        met = others if met == own else met
        yield met if met < places else None


def _pairs(order: Order, device: torch.device, progress: Progress) -> Iterator[dict[str, object]]:
    """Time a message and its reply with some ranks of the same node, then with the same place of
    some other nodes.
    """
    per_node, nodes = order.local_world_size, order.world_size // order.local_world_size
    node, place = divmod(order.rank, per_node)
    size = CPU_PAIR_BYTES if device.type == "cpu" else ACCELERATOR_PAIR_BYTES
    values = torch.zeros(size // 4, device=device)
    # Of each level: the number of places, the own one, and the ranks from place to place.
    levels = {"node": (per_node, place, 1), "network": (nodes, node, per_node)}
    for level, (places, own, stride) in levels.items():
        turns = list(partners(places, own)) if places > 1 else []
        for met in turns[:: -(-len(turns) // MAX_PARTNERS) or 1]:
            progress.step("meeting in pairs")
            dist.all_reduce(torch.zeros(1))  # over gloo: all pairs begin together
            if met is None:
                continue
            partner, taken = order.rank + (met - own) * stride, []
            for _ in range(PAIR_REPEATS + 1):
                start = time.perf_counter()
                for transfer in (dist.send, dist.recv) if own < met else (dist.recv, dist.send):
                    transfer(values, partner)
                synchronize(device)
                taken.append(time.perf_counter() - start)
            time_s = statistics.median(taken[1:]) / 2  # the first pays for first uses
            yield {"level": level, "partner": partner, "time_s": time_s, "bytes": size}


def main() -> None:
    """Wait for the others, run the rounds with them, and report."""
    order = Order(**json.loads(sys.stdin.read()))
    set_local_rank_env(order.local_rank, order.local_world_size)
    device = rank_device(order.device, order.local_rank)
    progress = Progress(order)
    progress.arrive()
    progress.step("connecting")
    dist.init_process_group(
        BACKENDS[order.device],
        store=PrefixStore("group", progress.store),
        rank=order.rank,
        world_size=order.world_size,
        timeout=dt.timedelta(seconds=10 * order.deadline_s),
    )
    progress.done(
        {
            "wrong_sums": _wrong_sums(order, device, progress),
            **_rounds_of_work(device, progress),
            "all_reduce": _bandwidths(order, device, progress),
            "pairs": list(_pairs(order, device, progress)),
        }
    )
    leave(0)


if __name__ == "__main__":
    main()
