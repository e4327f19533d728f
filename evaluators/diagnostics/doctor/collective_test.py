"""Test of real ranks with all-reduces: started here or by a launcher, watched from outside, always ended.

Ranks write their progress to a TCPStore held by the process that started rank 0, so that it outlives every rank; its
keys are those of `frontrunner.evaluators.trainer.collective_test`. The process that started a rank also writes how it
ended, and the holder how the test ended: all others follow that.

A rank that never arrives, has ended, gives no heartbeat, or is behind all others is named. If all give heartbeats and
none is behind, no rank is at fault: the collective they wait in is.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.diagnostics.calibration.ranks import Place
from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.processes import start_child
from frontrunner.evaluators.trainer.collective_test import (
    ALL_ARRIVED,
    ARRIVED,
    DONE,
    HEARTBEAT,
    HEARTBEAT_S,
    PREFIX,
    REPORT,
    Order,
    key,
)
from frontrunner.spaces.errors import FrontrunnerError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import PrefixStore, TCPStore

RANK_MODULE = "frontrunner.evaluators.trainer.collective_test"
ENDED, OVER = "ended", "over"
POLL_S = 0.2
EXIT_TIMEOUT_S = 10.0
"""For ranks that have reported to end by themselves."""
SILENT_S = 20 * HEARTBEAT_S
"""A rank without a heartbeat for this long stands still: a thread that waits for nobody writes it."""
SETTLE_S = 1.0
"""After one rank ended, for others that end with it: the first to be seen need not be the first to end."""
MAX_NAMED = 8
LOOPBACK = "127.0.0.1"


class Over(Enum):
    """State of a test: GONE if nobody holds the store any more, which happens after all other ends too."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """What a rank writes when it arrives; `wall_s` is its wall clock then."""

    host: str
    pid: int
    wall_s: float
    python: str
    torch: str


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A rank's latest heartbeat: its number, and how far the rank is."""

    count: int
    stage: str
    step: int


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a rank ended before it was done: its exit status, below 0 for a signal, and the end of its output."""

    status: int
    tail: str


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a test failed: the ranks at fault (none where nobody is), in a sentence, with the next step."""

    ranks: tuple[int, ...]
    found: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Outcome of a test: `fault` is None where it passed, and `reports` then hold what each rank measured.

    `seen_wall_s` is this machine's wall clock when each rank was seen to have arrived.
    """

    __test__ = False  # not a test of pytest's

    device: str
    ranks: int
    fault: Fault | None
    arrivals: Mapping[int, Arrival]
    seen_wall_s: Mapping[int, float]
    reports: Mapping[int, Mapping[str, Any]]


class TestStore:
    """Connection to the store of a test. One thread uses it."""

    __test__ = False

    def __init__(self, host: str, port: int, *, holds: bool, wait_s: float) -> None:
        """Hold the store at a port (0: any that is free), or connect to it within `wait_s`.

        Raises `FrontrunnerError` if the port is taken or nothing listens there.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore
        from torch.distributed import DistNetworkError, DistStoreError

        wait = dt.timedelta(seconds=wait_s)
        try:
            self._server: TCPStore = TCPStore(host, port, is_master=holds, wait_for_workers=False, timeout=wait)
        except (DistNetworkError, DistStoreError) as error:
            what = "cannot be listened on" if holds else f"gives no answer within {wait_s:g} s"
            raise FrontrunnerError(
                f"port {port} of {host}, the rendezvous of the ranks, {what}: {str(error).splitlines()[0]}",
                hint="set MASTER_ADDR and MASTER_PORT to a host that all ranks reach and a free port of it",
            ) from None
        self.port: int = self._server.port
        self._store: PrefixStore = PrefixStore(PREFIX, self._server)

    def _read(self, word: str) -> Any | None:
        return json.loads(self._store.get(word)) if self._store.check([word]) else None

    def _read_ranks(self, word: str, ranks: Iterable[int]) -> dict[int, Any]:
        found = {rank: self._read(key(word, rank)) for rank in ranks}
        return {rank: value for rank, value in found.items() if value is not None}

    def arrivals(self, ranks: range, known: Mapping[int, Arrival]) -> dict[int, Arrival]:
        """Return the ranks that have arrived, reading only those that are not known yet."""
        new = self._read_ranks(ARRIVED, [rank for rank in ranks if rank not in known])
        return {**known, **{rank: Arrival(**value) for rank, value in new.items()}}

    def start(self) -> None:
        """Let the ranks begin."""
        self._store.set(ALL_ARRIVED, "1")

    def heartbeats(self, ranks: range) -> dict[int, Heartbeat]:
        """Return each rank's latest heartbeat."""
        return {rank: Heartbeat(**value) for rank, value in self._read_ranks(HEARTBEAT, ranks).items()}

    def write_ending(self, rank: int, ending: Ending) -> None:
        """Write how a rank ended."""
        self._store.set(key(ENDED, rank), json.dumps(asdict(ending)))

    def endings(self, ranks: range) -> dict[int, Ending]:
        """Return the ranks that ended before they were done."""
        return {rank: Ending(**value) for rank, value in self._read_ranks(ENDED, ranks).items()}

    def reports(self, ranks: range) -> dict[int, dict[str, Any]]:
        """Return what each rank measured, once all are done."""
        return {rank: self._read(key(REPORT, rank)) or {} for rank in ranks}

    def close(self, *, ok: bool) -> None:
        """Write that the test is over."""
        self._store.set(OVER, json.dumps(ok))

    def over(self) -> Over:
        """Return the state of the test, for those who do not hold the store."""
        from torch.distributed import DistNetworkError

        try:
            found = self._read(OVER)
        except DistNetworkError:
            return Over.GONE
        return Over.RUNNING if found is None else Over.PASSED if found else Over.FAILED


@dataclass(kw_only=True)
class Watch:
    """Follows a test by the watcher's own monotonic clock.

    `deadline_s` is the longest that ranks may take to arrive, or to advance.
    """

    ranks: range
    ranks_per_node: int
    nodes: tuple[str, ...]
    deadline_s: float
    began_s: float
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    _heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    _heard_s: dict[int, float] = field(default_factory=dict)
    _advanced_s: float | None = None
    _ended_s: float | None = None

    @property
    def all_arrived(self) -> bool:
        """Whether every rank has arrived."""
        return len(self.arrivals) == len(self.ranks)

    @property
    def all_done(self) -> bool:
        """Whether every rank has reported."""
        beats = self._heartbeats.values()
        return len(beats) == len(self.ranks) and all(beat.stage == DONE for beat in beats)

    def fault(self, now_s: float, heartbeats: Mapping[int, Heartbeat], endings: Mapping[int, Ending]) -> Fault | None:
        """Judge what is in the store now; return None while the test may still pass."""
        for rank, beat in heartbeats.items():
            before = self._heartbeats.get(rank)
            if before is None or before.count != beat.count:
                self._heard_s[rank] = now_s
            if before is None or before.step != beat.step:
                self._advanced_s = now_s
            self._heartbeats[rank] = beat
        if endings and self._ended_s is None:
            self._ended_s = now_s
        if self._ended_s is not None:
            return self._ended(endings) if now_s - self._ended_s >= SETTLE_S else None
        return self._absent(now_s) or self._silent(now_s) or self._stuck(now_s)

    def _name(self, rank: int) -> str:
        """Return a rank with its node, and its process there where it has arrived."""
        arrival = self.arrivals.get(rank)
        if arrival is not None:
            return f"rank {rank} on {arrival.host} (process {arrival.pid})"
        node = rank // self.ranks_per_node
        return f"rank {rank}" + (f" on {self.nodes[node]}" if node < len(self.nodes) else "")

    def _names(self, ranks: tuple[int, ...]) -> str:
        more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
        return ", ".join(map(self._name, ranks[:MAX_NAMED])) + more

    def _ended(self, endings: Mapping[int, Ending]) -> Fault:
        """Name those that a signal ended first: the others lost them."""
        by_signal = [rank for rank, ending in endings.items() if ending.status < 0]
        guilty = tuple(sorted(by_signal or endings))
        found = "; ".join(f"{self._name(rank)} {_how(endings[rank])}" for rank in guilty[:MAX_NAMED])
        remedy = "its own output is above; frontrunner doctor on that node checks the rest"
        if by_signal:
            remedy = "look at that node's log: memory, a device that failed, an administrator"
        return Fault(ranks=guilty, found=found, remedy=remedy)

    def _absent(self, now_s: float) -> Fault | None:
        if self.all_arrived or now_s - self.began_s < self.deadline_s:
            return None
        absent = tuple(rank for rank in self.ranks if rank not in self.arrivals)
        arrived = f"{len(self.arrivals)} of {len(self.ranks)} did"
        return Fault(
            ranks=absent,
            found=f"{self._names(absent)} never arrived within {self.deadline_s:g} s; {arrived}",
            remedy="check whether that node is up, reaches the node of rank 0, and has torch",
        )

    def _silent(self, now_s: float) -> Fault | None:
        """Name ranks that have arrived, are not done, and give no heartbeat."""
        owing = (rank for rank in self.arrivals if rank in self._heartbeats and self._heartbeats[rank].stage != DONE)
        silent = tuple(rank for rank in owing if now_s - self._heard_s[rank] >= SILENT_S)
        if not silent:
            return None
        stage = self._heartbeats[silent[0]].stage
        return Fault(
            ranks=silent,
            found=f"{self._names(silent)} stands still: no heartbeat for {SILENT_S:g} s, last seen {stage}",
            remedy="check whether that process is stopped or the node is swapping, frozen or unreachable",
        )

    def _stuck(self, now_s: float) -> Fault | None:
        if not self.all_arrived or self._advanced_s is None or now_s - self._advanced_s < self.deadline_s:
            return None
        least = min(beat.step for beat in self._heartbeats.values())
        behind = tuple(rank for rank, beat in self._heartbeats.items() if beat.step == least)
        stage = self._heartbeats[behind[0]].stage
        if len(behind) == len(self._heartbeats):
            return Fault(
                ranks=(),
                found=f"all ranks are alive, and none comes out of {stage} in {self.deadline_s:g} s",
                remedy="the collective library cannot get through: check its network interface "
                "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), firewalls, and NCCL_DEBUG=INFO",
            )
        return Fault(
            ranks=behind,
            found=f"{self._names(behind)} is alive, but does not advance from {stage}; the others wait",
            remedy="check that node's device: frontrunner doctor there",
        )


def _how(ending: Ending) -> str:
    if ending.status < 0:
        return f"was killed by {signal.Signals(-ending.status).name}"
    lines = [line for line in ending.tail.splitlines() if line.strip()]
    return f"ended with status {ending.status}" + (f": {lines[-1].strip()}" if lines else "")


class _Child:
    """A rank that this process started, with its log."""

    def __init__(self, order: Order, environment: Mapping[str, str], folder: Path) -> None:
        self.rank = order.rank
        self.is_reported = False
        self._log = folder / f"rank-{order.rank}.log"
        with self._log.open("wb") as log:
            self._process = start_child(
                [sys.executable, "-P", "-m", RANK_MODULE],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it was killed before it could read: its exit status is reported
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


def run_collective_test(
    where: Place, *, device: str, deadline_s: float, nodes: tuple[str, ...] = ()
) -> TestResult | None:
    """Run a test; return None where another process of the job reports the result.

    Every process of a job calls this with its own place. `nodes` names the job's nodes, for ranks that never arrive.
    Raises `FrontrunnerError` if the store cannot be reached, or its holder has gone. No rank is left running.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frontrunner-")))
        host, store = _open_store(where, deadline_s)
        children: list[_Child] = []
        for rank in range(where.ranks) if where.rank is None else [where.rank]:
            order = _order(where, rank, (host, store.port), device, deadline_s)
            alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} if where.rank is None else {}
            children.append(_Child(order, alone, folder))
            stack.callback(children[-1].end)
        if not where.writes:
            _follow(store, children)
            return None
        watch = Watch(ranks=range(where.ranks), ranks_per_node=where.ranks_per_node, nodes=nodes,
                      deadline_s=deadline_s, began_s=time.monotonic())  # fmt: skip
        result = _lead(store, children, watch, device)
        _await_exit(children if result.fault is None else [])
        return result


def _open_store(where: Place, deadline_s: float) -> tuple[str, TestStore]:
    if where.rank is None:
        return LOOPBACK, TestStore(LOOPBACK, 0, holds=True, wait_s=deadline_s)
    host, port = where.environment["MASTER_ADDR"], int(where.environment["MASTER_PORT"])
    # torchrun's agent may already hold a store at MASTER_PORT, which its ranks then share.
    holds = where.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return host, TestStore(host, port, holds=holds, wait_s=deadline_s)


def _order(where: Place, rank: int, address: tuple[str, int], device: str, deadline_s: float) -> Order:
    local_rank = rank % where.ranks_per_node if where.rank is None else int(where.environment["LOCAL_RANK"])
    return Order(
        device=device,
        rank=rank,
        world_size=where.ranks,
        local_rank=local_rank,
        local_world_size=where.ranks_per_node,
        host=address[0],
        port=address[1],
        deadline_s=deadline_s,
    )


def _report_endings(store: TestStore, children: list[_Child]) -> None:
    """Write to the store which of this process's ranks ended before they were done."""
    for child in children:
        if child.status not in (None, 0) and not child.is_reported:
            child.is_reported = True
            store.write_ending(child.rank, child.ending)


def _lead(store: TestStore, children: list[_Child], watch: Watch, device: str) -> TestResult:
    """Watch the store until all are done or one is at fault, and write the result for the others."""
    fault: Fault | None = None
    begun, seen_wall_s = False, dict[int, float]()
    while fault is None and not watch.all_done:
        time.sleep(POLL_S)
        _report_endings(store, children)
        watch.arrivals = store.arrivals(watch.ranks, watch.arrivals)
        for rank in watch.arrivals:
            seen_wall_s.setdefault(rank, time.time())
        if watch.all_arrived and not begun:
            store.start()
            begun = True
        fault = watch.fault(time.monotonic(), store.heartbeats(watch.ranks), store.endings(watch.ranks))
    reports = {} if fault else store.reports(watch.ranks)
    store.close(ok=fault is None)
    return TestResult(
        device=device,
        ranks=len(watch.ranks),
        fault=fault,
        arrivals=watch.arrivals,
        seen_wall_s=seen_wall_s,
        reports=reports,
    )


def _follow(store: TestStore, children: list[_Child]) -> None:
    """Wait for local ranks to exit, or for rank 0's process, which reports the result, to finish.

    A failed test is no error here: a launcher that sees one would end rank 0's process before it has reported.
    """
    while any(child.status != 0 for child in children):
        _report_endings(store, children)
        over = store.over()
        if over is Over.FAILED:
            return
        if over is not Over.RUNNING:
            _await_exit(children)
            if over is Over.GONE and any(child.status != 0 for child in children):
                raise FrontrunnerError("the process of rank 0, which runs the test, has gone")
            return
        time.sleep(POLL_S)


def _await_exit(children: list[_Child]) -> None:
    """Give ranks that have reported the time to end by themselves."""
    latest_s = time.monotonic() + EXIT_TIMEOUT_S
    while any(child.status is None for child in children) and time.monotonic() < latest_s:
        time.sleep(POLL_S)
