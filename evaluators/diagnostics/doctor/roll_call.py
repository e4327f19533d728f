"""A roll call: started here or by a launcher, watched from outside, and ended whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.diagnostics.calibration.ranks import Place
from frontrunner.evaluators.diagnostics.doctor.board import Arrival, Board, Ending, Over, held_elsewhere
from frontrunner.evaluators.diagnostics.doctor.watching import Fault, Watch
from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.processes import start_child
from frontrunner.evaluators.trainer.roll_call.order import Order
from frontrunner.spaces.errors import FrontrunnerError

CHILD = "frontrunner.evaluators.trainer.roll_call"
POLL_S = 0.2
AFTERWARDS_S = 10.0
"""For ranks that have reported to end by themselves."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class RollCall:
    """How a roll call went: `fault` is None where it was held, and `reports` then hold what each rank measured.

    `seen_wall_s` is this machine's wall clock when each rank was seen to have come.
    """

    device: str
    ranks: int
    fault: Fault | None
    arrivals: Mapping[int, Arrival]
    seen_wall_s: Mapping[int, float]
    reports: Mapping[int, Mapping[str, Any]]


class _Child:
    """A rank that this process started, with its log."""

    def __init__(self, order: Order, environment: Mapping[str, str], folder: Path) -> None:
        self.rank = order.rank
        self.is_told = False
        self._log = folder / f"rank-{order.rank}.log"
        with self._log.open("wb") as log:
            self._process = start_child(
                [sys.executable, "-P", "-m", CHILD],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(asdict(order)).encode())
            self._process.stdin.close()

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    @property
    def ending(self) -> Ending:
        """How it ended."""
        return Ending(status=self._process.wait(), tail=tail(self._log))

    def end(self) -> None:
        """End it now, unless it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def call_roll(where: Place, *, device: str, deadline_s: float, nodes: tuple[str, ...] = ()) -> RollCall | None:
    """Hold a roll call; None where another process of the job holds the board, and this one's ranks did their part.

    Every process of a job calls this with its own place. `nodes` names the job's nodes, for ranks that never come.
    Raises `FrontrunnerError` where the board cannot be reached, or its holder has gone.
    No rank is left running, however this ends.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frontrunner-")))
        host, board = _open_board(where, deadline_s)
        children = []
        for rank in _own_ranks(where):
            children.append(_start(where, rank, (host, board.port), device, deadline_s, folder))
            stack.callback(children[-1].end)
        if not where.writes:
            _follow(board, children)
            return None
        watch = Watch(ranks=range(where.ranks), ranks_per_node=where.ranks_per_node, nodes=nodes,
                      deadline_s=deadline_s, began_s=time.monotonic())  # fmt: skip
        called = _lead(board, children, watch, device)
        _let_end(children if called.fault is None else [])
        return called


def _own_ranks(where: Place) -> list[int]:
    return list(range(where.ranks)) if where.rank is None else [where.rank]


def _open_board(where: Place, deadline_s: float) -> tuple[str, Board]:
    if where.rank is None:
        return LOOPBACK, Board(LOOPBACK, 0, holds=True, wait_s=deadline_s)
    host, port = where.environment["MASTER_ADDR"], int(where.environment["MASTER_PORT"])
    holds = where.rank == 0 and not held_elsewhere()
    return host, Board(host, port, holds=holds, wait_s=deadline_s)


def _start(where: Place, rank: int, address: tuple[str, int], device: str, deadline_s: float, folder: Path) -> _Child:
    here = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} if where.rank is None else {}
    local_rank = rank % where.ranks_per_node if where.rank is None else int(where.environment["LOCAL_RANK"])
    order = Order(
        device=device,
        rank=rank,
        world_size=where.ranks,
        local_rank=local_rank,
        local_world_size=where.ranks_per_node,
        host=address[0],
        port=address[1],
        deadline_s=deadline_s,
    )
    return _Child(order, here, folder)


def _tell_endings(board: Board, children: list[_Child]) -> None:
    """Put on the board which of this process's ranks ended before they were done."""
    for child in children:
        if child.status not in (None, 0) and not child.is_told:
            child.is_told = True
            board.end(child.rank, child.ending)


def _lead(board: Board, children: list[_Child], watch: Watch, device: str) -> RollCall:
    """Watch the board until all are done or one is at fault, and tell the others."""
    fault: Fault | None = None
    begun, seen_wall_s = False, dict[int, float]()
    while fault is None and not watch.all_done:
        time.sleep(POLL_S)
        _tell_endings(board, children)
        watch.arrivals = board.arrivals(watch.ranks, watch.arrivals)
        for rank in watch.arrivals:
            seen_wall_s.setdefault(rank, time.time())
        if watch.all_came and not begun:
            board.all_came()
            begun = True
        fault = watch.look(time.monotonic(), board.signs(watch.ranks), board.endings(watch.ranks))
    reports = {} if fault else board.reports(watch.ranks)
    board.close(ok=fault is None)
    return RollCall(
        device=device,
        ranks=len(watch.ranks),
        fault=fault,
        arrivals=watch.arrivals,
        seen_wall_s=seen_wall_s,
        reports=reports,
    )


def _follow(board: Board, children: list[_Child]) -> None:
    """Until this process's ranks have ended well, or the roll call is over: the process of rank 0 says how it went.

    One that failed is no error here: a launcher that sees one would end rank 0's process before it has spoken.
    """
    while any(child.status != 0 for child in children):
        _tell_endings(board, children)
        over = board.over()
        if over is Over.BADLY:
            return
        if over is not Over.LASTS:
            _let_end(children)
            if any(child.status != 0 for child in children):
                raise FrontrunnerError("the process of rank 0, which holds the roll call, has gone")
        time.sleep(POLL_S)


def _let_end(children: list[_Child]) -> None:
    """Give ranks that have reported the time to end by themselves."""
    latest_s = time.monotonic() + AFTERWARDS_S
    while any(child.status is None for child in children) and time.monotonic() < latest_s:
        time.sleep(POLL_S)
