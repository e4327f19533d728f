"""Test of real ranks with all-reduces: started here or by a launcher, watched from outside, always
ended.

Ranks write their progress to a TCPStore held by the process that started rank 0, so that it
outlives every rank; its keys are those of `frontrunner.evaluators.trainer.collective_test`. The
process that started a rank also writes how it ended, and the holder how the test ended: all others
follow that.

A rank that never arrives, has ended, gives no heartbeat, or is behind all others is named. If all
give heartbeats and none is behind, no rank is at fault: the collective they wait in is.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from frontrunner.evaluators.diagnostics.doctor.check import PROBLEM, WARNING, Check
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
SILENT_S = 20 * HEARTBEAT_S
"""A rank without a heartbeat for this long stands still: a thread that waits for nobody writes
it.
"""
SETTLE_S = 1.0
"""After one rank ended, for others that end with it: the first to be seen need not be the first to
end.
"""
MAX_NAMED = 8
LOOPBACK = "127.0.0.1"
SLOW = {"cpu": 3.0, "other": 1.5}
"""Assumed: times the median from which on a rank lags. Processes that share cores differ by more
than devices do.
"""
LATE = 0.5
"""Assumed: a share of the time of their own work for which the others must wait until a rank counts
as late.
"""

Reports = Mapping[int, Mapping[str, Any]]


class Fault(NamedTuple):
    """Why a test failed: the ranks at fault (none where nobody is), in a sentence, with the next
    step.
    """

    ranks: Sequence[int]
    found: str
    remedy: str


@dataclass(frozen=True)
class TestResult:
    """Outcome of a test: `fault` is None where it passed, and `reports` then hold what each rank
    measured.
    """

    __test__ = False  # not a test of pytest's

    device: str
    ranks: int
    fault: Fault | None
    arrivals: Reports
    reports: Reports


class TestStore:
    """Connection to the store of a test. One thread uses it."""

    __test__ = False

    def __init__(self, host: str, port: int, *, holds: bool, wait_s: float) -> None:
        """Hold the store at a port (0: any that is free), or connect to it within `wait_s`."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore
        from torch.distributed import DistNetworkError, DistStoreError

        wait = dt.timedelta(seconds=wait_s)
        try:
            server = TCPStore(host, port, is_master=holds, wait_for_workers=False, timeout=wait)
        except (DistNetworkError, DistStoreError) as error:
            what = "cannot be listened on" if holds else f"gives no answer within {wait_s:g} s"
            raise FrontrunnerError(
                f"port {port} of {host}, the rendezvous of the ranks, {what}:"
                f" {str(error).splitlines()[0]}",
                hint=(
                    "set MASTER_ADDR and MASTER_PORT to a host that all ranks reach and a free port"
                    " of it"
                ),
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

    def write_endings(self, ranks: list[Rank]) -> None:
        """Write which of this process's ranks ended before they were done."""
        for rank in ranks:
            if rank.status not in (None, 0):
                self.write(key(ENDED, rank.number), {"status": rank.status, "tail": rank.log_tail})


@dataclass(kw_only=True)
class Watch:
    """Follows a test by the watcher's own monotonic clock; ranks may take `deadline_s` to arrive,
    or to advance.
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
        arrival, node = self.arrivals.get(rank), rank // self.ranks_per_node
        if arrival is not None:
            return f"rank {rank} on {arrival['host']} (process {arrival['pid']})"
        return f"rank {rank}" + (f" on {self.nodes[node]}" if node < len(self.nodes) else "")

    def _ended(self, endings: Reports) -> Fault:
        """Name those that a signal ended first: the others lost them."""
        by_signal = [rank for rank, each in endings.items() if each["status"] < 0]
        guilty = sorted(by_signal or endings)
        found = []
        for rank in guilty:
            status, lines = endings[rank]["status"], endings[rank]["tail"].strip().split("\n")
            last = f": {lines[-1].strip()}" if lines[-1] and status > 0 else ""
            found.append(f"{self._name(rank)} {ending(status)}{last}")
        remedy = "its own output is above; frontrunner doctor on that node checks the rest"
        if by_signal:
            remedy = "look at that node's log: memory, a device that failed, an administrator"
        return Fault(guilty, _some(found, "; "), remedy)

    def _absent(self, now_s: float) -> Fault | None:
        if self.all_arrived or now_s - self.began_s < self.deadline_s:
            return None
        absent = [rank for rank in self.ranks if rank not in self.arrivals]
        arrived = f"{len(self.arrivals)} of {len(self.ranks)} did"
        found = (
            f"{_some(map(self._name, absent))} never arrived within {self.deadline_s:g} s;"
            f" {arrived}"
        )
        return Fault(
            absent,
            found,
            "check whether that node is up, reaches the node of rank 0, and has torch",
        )

    def _silent(self, now_s: float) -> Fault | None:
        stages = {
            rank: self._heartbeats[rank]["stage"]
            for rank in self.arrivals
            if rank in self._heartbeats
        }
        silent = [
            r
            for r, stage in stages.items()
            if stage != DONE and now_s - self._heard_s[r] >= SILENT_S
        ]
        if not silent:
            return None
        what = f"stands still: no heartbeat for {SILENT_S:g} s, last seen {stages[silent[0]]}"
        remedy = (
            "check whether that process is stopped or the node is swapping, frozen or unreachable"
        )
        return Fault(silent, f"{_some(map(self._name, silent))} {what}", remedy)

    def _stuck(self, now_s: float) -> Fault | None:
        if (
            not self.all_arrived
            or self._advanced_s is None
            or now_s - self._advanced_s < self.deadline_s
        ):
            return None
        steps = {rank: beat["step"] for rank, beat in self._heartbeats.items()}
        behind = [rank for rank, step in steps.items() if step == min(steps.values())]
        stage = self._heartbeats[behind[0]]["stage"]
        if len(behind) == len(steps):
            found = f"all ranks are alive, and none comes out of {stage} in {self.deadline_s:g} s"
            remedy = "the collective library cannot get through: check its network interface "
            remedy += "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), firewalls, and NCCL_DEBUG=INFO"
            return Fault((), found, remedy)
        found = (
            f"{_some(map(self._name, behind))} is alive, but does not advance from {stage}; the"
            " others wait"
        )
        return Fault(behind, found, "check that node's device: frontrunner doctor there")


def _some(names: Iterable[str], between: str = ", ") -> str:
    found = list(names)
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return between.join(found[:MAX_NAMED]) + more


def run_collective_test(
    where: Place, *, device: str, deadline_s: float, nodes: tuple[str, ...] = ()
) -> TestResult | None:
    """Run a test, in every process of a job; return None where another of them reports the
    result.
    """
    host, port, holds = LOOPBACK, 0, True
    if where.rank is not None:
        host, port = where.environment["MASTER_ADDR"], int(where.environment["MASTER_PORT"])
        # torchrun's agent may already hold a store at MASTER_PORT, which its ranks then share.
        holds = where.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TestStore(host, port, holds=holds, wait_s=deadline_s)
    whole = Order(device=device, rank=0, world_size=where.ranks, local_rank=0,
        local_world_size=where.ranks_per_node,
                  host=host, port=store.port, deadline_s=deadline_s)  # fmt: skip
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frontrunner-")))
        ranks: list[Rank] = []
        for rank, local_rank in where.own:
            order = asdict(replace(whole, rank=rank, local_rank=local_rank))
            ranks.append(
                Rank(
                    rank,
                    [RANK_MODULE],
                    json.dumps(order),
                    OWN if where.rank is None else {},
                    folder,
                )
            )
            stack.callback(ranks[-1].end)
        if not where.writes:
            _follow(store, ranks)
            return None
        watch = Watch(ranks=range(where.ranks), ranks_per_node=where.ranks_per_node, nodes=nodes,
                      deadline_s=deadline_s, began_s=time.monotonic())  # fmt: skip
        fault = _lead(store, ranks, watch)
        if fault is None:
            _await_exit(ranks)
        reports = {} if fault else store.read_ranks(REPORT, watch.ranks)
    return TestResult(device, where.ranks, fault, watch.arrivals, reports)


def _lead(store: TestStore, ranks: list[Rank], watch: Watch) -> Fault | None:
    """Watch the store until all are done or one is at fault, and write which for the others."""
    fault: Fault | None = None
    while fault is None and not watch.all_done:
        time.sleep(POLL_S)
        store.write_endings(ranks)
        if not watch.all_arrived:
            watch.arrivals = store.read_ranks(ARRIVED, watch.ranks)
            if watch.all_arrived:
                store.write(ALL_ARRIVED, value=True)
        beats, endings = (store.read_ranks(word, watch.ranks) for word in (HEARTBEAT, ENDED))
        fault = watch.fault(time.monotonic(), beats, endings)
    store.write(OVER, fault is None)
    return fault


def _follow(store: TestStore, ranks: list[Rank]) -> None:
    """Wait for local ranks to exit, or for rank 0's process, which reports the result, to finish.

    A failed test is no error here: a launcher that sees one would end rank 0's process before it
    has reported.
    """
    from torch.distributed import DistNetworkError

    passed = None
    while passed is None and any(rank.status != 0 for rank in ranks):
        try:
            store.write_endings(ranks)
            passed = store.read(OVER)
        except (
            DistNetworkError
        ):  # nobody holds the store any more, which happens after all other ends too
            _await_exit(ranks)
            if any(rank.status != 0 for rank in ranks):
                raise FrontrunnerError(
                    "the process of rank 0, which runs the test, has gone"
                ) from None
        time.sleep(POLL_S)
    if passed:
        _await_exit(ranks)


def _await_exit(ranks: list[Rank]) -> None:
    latest_s = time.monotonic() + EXIT_TIMEOUT_S
    while any(rank.status is None for rank in ranks) and time.monotonic() < latest_s:
        time.sleep(POLL_S)


# The report


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """One size of the all-reduce over all ranks, with bandwidths as NCCL's tests define them."""

    bytes: int
    time_s: float
    ranks: int

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Bytes / time."""
        return self.bytes / self.time_s

    @property
    def bus_bytes_per_s(self) -> float:
        """Bytes / time * 2 (n - 1) / n, which is what each link of a ring carries."""
        return self.algorithm_bytes_per_s * 2 * (self.ranks - 1) / self.ranks


class Laggard(NamedTuple):
    """A rank, or all ranks of a node, that keep the others waiting: in what, and how many times the
    median.
    """

    ranks: tuple[int, ...]
    host: str
    is_node: bool
    what: str
    times_median: float


def bandwidths(reports: Reports) -> tuple[Bandwidth, ...]:
    """Return the rows of rank 0; all ranks agree on them."""
    return tuple(Bandwidth(ranks=len(reports), **row) for row in reports[0]["all_reduce"])


def collective_checks(result: TestResult) -> tuple[Check, ...]:
    """Check that all ranks arrived and summed correctly, and name those that lag or differ."""
    return tuple(replace(check, section="ranks") for check in _checks(result))


def _checks(result: TestResult) -> Iterator[Check]:
    if result.fault is not None:
        yield Check("all-reduce", result.fault.found, PROBLEM, result.fault.remedy)
        return
    hosts = {rank: arrival["host"] for rank, arrival in result.arrivals.items()}
    where = "" if len(set(hosts.values())) == 1 else f" on {len(set(hosts.values()))} hosts"
    wrong = [
        f"{rank} ({hosts[rank]})"
        for rank, report in sorted(result.reports.items())
        if report["wrong_sums"]
    ]
    if wrong:
        remedy = (
            "train nothing here: try without GPU-direct (NCCL_NET_GDR_LEVEL=LOC), then inform the"
            " administrator"
        )
        yield Check("all-reduce", f"wrong sums on ranks {', '.join(wrong)}", PROBLEM, remedy)
    else:
        yield Check(
            "all-reduce",
            f"{result.ranks} ranks{where}, {result.device}: all arrived, all sums are right",
        )
    late = laggards(result.reports, hosts, device=result.device)
    for each in late:
        who = f"rank {each.ranks[0]} on {each.host}"
        if each.is_node:
            who = f"node {each.host} (ranks {', '.join(map(str, each.ranks))})"
        found = f"{who} lags in {each.what}: {each.times_median:.1f} times the median"
        remedy = (
            "look there for other work, heat, a slow device or link; leave that node out if it"
            " stays so"
        )
        yield Check("laggard", found, WARNING, remedy)
    if not late and result.ranks > 1:
        yield Check("pace", "no rank keeps the others waiting")
    for name in ("python", "torch"):
        versions: dict[str, dict[str, None]] = {}
        for arrival in result.arrivals.values():
            versions.setdefault(arrival[name], {})[arrival["host"]] = None
        if len(versions) > 1:
            text = "; ".join(f"{version} on {_some(on)}" for version, on in versions.items())
            yield Check(
                "nodes", f"{name} differs: {text}", WARNING, "use one environment on all nodes"
            )


def laggards(reports: Reports, hosts: Mapping[int, str], *, device: str) -> tuple[Laggard, ...]:
    """Return ranks, or whole hosts, slow at their work or in every pair, or late to collectives,
    worst first.
    """
    slow = SLOW["cpu" if device == "cpu" else "other"]
    work = {rank: statistics.fmean(report["work_s"]) for rank, report in reports.items()}
    scores = {
        "its own work": work,
        "arriving at collectives": _lateness(reports, statistics.median(work.values())),
        "pairs in its node": _pairs(reports, "node"),
        "pairs with other nodes": _pairs(reports, "network"),
    }
    found: list[Laggard] = []
    for what, score in scores.items():
        middle = statistics.median(score.values()) if len(score) > 1 else 0.0
        ratios = {
            rank: value / middle
            for rank, value in score.items()
            if middle > 0 and value >= slow * middle
        }
        for host in dict.fromkeys(hosts[rank] for rank in ratios):
            own = [rank for rank in sorted(ratios) if hosts[rank] == host]
            is_node = len(own) == list(hosts.values()).count(host) < len(hosts)
            for group in [own] if is_node else [[rank] for rank in own]:
                found.append(
                    Laggard(tuple(group), host, is_node, what, max(ratios[rank] for rank in group))
                )
    return tuple(sorted(found, key=lambda each: -each.times_median))


def _lateness(reports: Reports, work_s: float) -> dict[int, float]:
    """Return 1 + how long the others wait for each rank, in units of the median rank's work; 1 for
    those in time.

    The last to arrive at an all-reduce waits least in it: a round's longest wait less the own one
    is how late it came.
    """
    longest = [
        max(waits) for waits in zip(*(report["wait_s"] for report in reports.values()), strict=True)
    ]
    late = {
        rank: statistics.median(
            most - own for most, own in zip(longest, report["wait_s"], strict=True)
        )
        for rank, report in reports.items()
    }
    earliest = min(late.values())
    return {
        rank: 1 + (s - earliest) / work_s if s - earliest > LATE * work_s else 1.0
        for rank, s in late.items()
    }


def _pairs(reports: Reports, level: str) -> dict[int, float]:
    """Return each rank's fastest message, which a slow rank does not have; only of ranks that met
    several.
    """
    times = {
        rank: [pair["time_s"] for pair in report["pairs"] if pair["level"] == level]
        for rank, report in reports.items()
    }
    return {rank: min(taken) for rank, taken in times.items() if len(taken) > 1}
