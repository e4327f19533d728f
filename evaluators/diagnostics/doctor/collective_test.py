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
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from frontrunner.evaluators.diagnostics.ranks import OWN, Place, Rank, ending
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

Reports = Mapping[int, Mapping[str, Any]]
"""What each rank writes: see `frontrunner.evaluators.trainer.collective_test`."""


class Fault(NamedTuple):
    """Why a test failed: the ranks at fault (none where nobody is), in a sentence, with the next step."""

    ranks: Sequence[int]
    found: str
    remedy: str


@dataclass(frozen=True)
class TestResult:
    """Outcome of a test: `fault` is None where it passed, and `reports` then hold what each rank measured.

    `arrivals` are what each rank wrote when it arrived, and `seen_wall_s` this machine's wall clock when that was seen.
    """

    __test__ = False  # not a test of pytest's

    device: str
    ranks: int
    fault: Fault | None
    arrivals: Reports
    seen_wall_s: Mapping[int, float]
    reports: Reports


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
            server = TCPStore(host, port, is_master=holds, wait_for_workers=False, timeout=wait)
        except (DistNetworkError, DistStoreError) as error:
            what = "cannot be listened on" if holds else f"gives no answer within {wait_s:g} s"
            raise FrontrunnerError(
                f"port {port} of {host}, the rendezvous of the ranks, {what}: {str(error).splitlines()[0]}",
                hint="set MASTER_ADDR and MASTER_PORT to a host that all ranks reach and a free port of it",
            ) from None
        self.port: int = server.port
        self._store = PrefixStore(PREFIX, server)

    def read(self, word: str) -> Any:
        """Return what is under a key; None where nothing is."""
        return json.loads(self._store.get(word)) if self._store.check([word]) else None

    def read_ranks(self, word: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return what the ranks that have written have under their key."""
        found = {rank: self.read(key(word, rank)) for rank in ranks}
        return {rank: value for rank, value in found.items() if value is not None}

    def write(self, word: str, value: object) -> None:
        """Set a key."""
        self._store.set(word, json.dumps(value))


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
    arrivals: dict[int, Any] = field(default_factory=dict)
    _heartbeats: dict[int, Any] = field(default_factory=dict)
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
        return len(beats) == len(self.ranks) and all(beat["stage"] == DONE for beat in beats)

    def fault(self, now_s: float, heartbeats: Reports, endings: Reports) -> Fault | None:
        """Judge what is in the store now; return None while the test may still pass."""
        for rank, beat in heartbeats.items():
            before = self._heartbeats.get(rank, {})
            if before.get("count") != beat["count"]:
                self._heard_s[rank] = now_s
            if before.get("step") != beat["step"]:
                self._advanced_s = now_s
            self._heartbeats[rank] = beat
        if endings and self._ended_s is None:
            self._ended_s = now_s
        if self._ended_s is not None:
            return self._ended(endings) if now_s - self._ended_s >= SETTLE_S else None
        return self._absent(now_s) or self._silent(now_s) or self._stuck(now_s)

    def _name(self, rank: int) -> str:
        """Return a rank with its node, and its process there where it has arrived."""
        arrival, node = self.arrivals.get(rank), rank // self.ranks_per_node
        if arrival is not None:
            return f"rank {rank} on {arrival['host']} (process {arrival['pid']})"
        return f"rank {rank}" + (f" on {self.nodes[node]}" if node < len(self.nodes) else "")

    def _names(self, ranks: Sequence[int]) -> str:
        more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
        return ", ".join(map(self._name, ranks[:MAX_NAMED])) + more

    def _ended(self, endings: Reports) -> Fault:
        """Name those that a signal ended first: the others lost them."""
        by_signal = [rank for rank, each in endings.items() if each["status"] < 0]
        guilty = sorted(by_signal or endings)
        found = []
        for rank in guilty[:MAX_NAMED]:
            status, said = endings[rank]["status"], endings[rank]["tail"].split("\n")
            last = next((line.strip() for line in reversed(said) if line.strip()), "")
            found.append(f"{self._name(rank)} {ending(status)}" + (f": {last}" if last and status > 0 else ""))
        remedy = "its own output is above; frontrunner doctor on that node checks the rest"
        if by_signal:
            remedy = "look at that node's log: memory, a device that failed, an administrator"
        return Fault(guilty, "; ".join(found), remedy)

    def _absent(self, now_s: float) -> Fault | None:
        if self.all_arrived or now_s - self.began_s < self.deadline_s:
            return None
        absent = [rank for rank in self.ranks if rank not in self.arrivals]
        arrived = f"{len(self.arrivals)} of {len(self.ranks)} did"
        found = f"{self._names(absent)} never arrived within {self.deadline_s:g} s; {arrived}"
        return Fault(absent, found, "check whether that node is up, reaches the node of rank 0, and has torch")

    def _silent(self, now_s: float) -> Fault | None:
        """Name ranks that have arrived, are not done, and give no heartbeat."""
        stages = {rank: self._heartbeats[rank]["stage"] for rank in self.arrivals if rank in self._heartbeats}
        silent = [r for r, stage in stages.items() if stage != DONE and now_s - self._heard_s[r] >= SILENT_S]
        if not silent:
            return None
        found = f"{self._names(silent)} stands still: no heartbeat for {SILENT_S:g} s, last seen {stages[silent[0]]}"
        remedy = "check whether that process is stopped or the node is swapping, frozen or unreachable"
        return Fault(silent, found, remedy)

    def _stuck(self, now_s: float) -> Fault | None:
        if not self.all_arrived or self._advanced_s is None or now_s - self._advanced_s < self.deadline_s:
            return None
        steps = {rank: beat["step"] for rank, beat in self._heartbeats.items()}
        behind = [rank for rank, step in steps.items() if step == min(steps.values())]
        stage = self._heartbeats[behind[0]]["stage"]
        if len(behind) == len(steps):
            found = f"all ranks are alive, and none comes out of {stage} in {self.deadline_s:g} s"
            remedy = "the collective library cannot get through: check its network interface "
            remedy += "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), firewalls, and NCCL_DEBUG=INFO"
            return Fault((), found, remedy)
        found = f"{self._names(behind)} is alive, but does not advance from {stage}; the others wait"
        return Fault(behind, found, "check that node's device: frontrunner doctor there")


def run_collective_test(
    where: Place, *, device: str, deadline_s: float, nodes: tuple[str, ...] = ()
) -> TestResult | None:
    """Run a test; return None where another process of the job reports the result.

    Every process of a job calls this with its own place. `nodes` names the job's nodes, for ranks that never arrive.
    Raises `FrontrunnerError` if the store cannot be reached, or its holder has gone. No rank is left running.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frontrunner-")))
        host, port, holds = LOOPBACK, 0, True
        if where.rank is not None:
            host, port = where.environment["MASTER_ADDR"], int(where.environment["MASTER_PORT"])
            # torchrun's agent may already hold a store at MASTER_PORT, which its ranks then share.
            holds = where.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = TestStore(host, port, holds=holds, wait_s=deadline_s)
        ranks: list[Rank] = []
        for rank, local_rank in where.own:
            order = Order(
                device=device,
                rank=rank,
                world_size=where.ranks,
                local_rank=local_rank,
                local_world_size=where.ranks_per_node,
                host=host,
                port=store.port,
                deadline_s=deadline_s,
            )
            ranks.append(Rank(rank, [RANK_MODULE], asdict(order), OWN if where.rank is None else {}, folder))
            stack.callback(ranks[-1].end)
        if not where.writes:
            _follow(store, ranks)
            return None
        watch = Watch(ranks=range(where.ranks), ranks_per_node=where.ranks_per_node, nodes=nodes,
                      deadline_s=deadline_s, began_s=time.monotonic())  # fmt: skip
        result = _lead(store, ranks, watch, device)
        if result.fault is None:
            _await_exit(ranks)
        return result


def _report_endings(store: TestStore, ranks: list[Rank]) -> None:
    """Write to the store which of this process's ranks ended before they were done."""
    for rank in ranks:
        if rank.status not in (None, 0):
            store.write(key(ENDED, rank.number), {"status": rank.status, "tail": rank.log_tail})


def _lead(store: TestStore, ranks: list[Rank], watch: Watch, device: str) -> TestResult:
    """Watch the store until all are done or one is at fault, and write the result for the others."""
    fault: Fault | None = None
    seen_wall_s: dict[int, float] = {}
    while fault is None and not watch.all_done:
        time.sleep(POLL_S)
        _report_endings(store, ranks)
        if not watch.all_arrived:
            watch.arrivals = store.read_ranks(ARRIVED, watch.ranks)
            seen_wall_s = dict.fromkeys(watch.arrivals, time.time()) | seen_wall_s
            if watch.all_arrived:
                store.write(ALL_ARRIVED, value=True)
        beats, endings = (store.read_ranks(word, watch.ranks) for word in (HEARTBEAT, ENDED))
        fault = watch.fault(time.monotonic(), beats, endings)
    reports = {} if fault else store.read_ranks(REPORT, watch.ranks)
    store.write(OVER, fault is None)
    return TestResult(device, len(watch.ranks), fault, watch.arrivals, seen_wall_s, reports)


def _follow(store: TestStore, ranks: list[Rank]) -> None:
    """Wait for local ranks to exit, or for rank 0's process, which reports the result, to finish.

    A failed test is no error here: a launcher that sees one would end rank 0's process before it has reported.
    """
    from torch.distributed import DistNetworkError

    while any(rank.status != 0 for rank in ranks):
        try:
            _report_endings(store, ranks)
            passed = store.read(OVER)
        except DistNetworkError:  # nobody holds the store any more, which happens after all other ends too
            _await_exit(ranks)
            if any(rank.status != 0 for rank in ranks):
                raise FrontrunnerError("the process of rank 0, which runs the test, has gone") from None
            return
        if passed is not None:
            _await_exit(ranks if passed else [])
            return
        time.sleep(POLL_S)


def _await_exit(ranks: list[Rank]) -> None:
    """Give ranks that have reported the time to end by themselves."""
    latest_s = time.monotonic() + EXIT_TIMEOUT_S
    while any(rank.status is None for rank in ranks) and time.monotonic() < latest_s:
        time.sleep(POLL_S)
