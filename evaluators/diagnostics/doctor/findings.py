"""What the reports of a roll call tell: bandwidth by size, wrong sums, and the ranks or nodes that lag."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontrunner.evaluators.diagnostics.doctor.board import Arrival

Reports = Mapping[int, Mapping[str, Any]]
"""By rank: see `frontrunner.evaluators.trainer.roll_call.rounds`."""

SLOW = {"cpu": 3.0, "other": 1.5}
"""Assumed: times the median from which on a rank lags. Processes that share cores differ by more than devices do."""
WAITED = 0.5
"""Assumed: a share of the time of their own work for which the others must wait until a rank counts as late."""
SKEW_S = 2.0
"""More than passes between a rank's coming and its being seen."""


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """One size of the all-reduce over all ranks: the message's bytes, seconds, and bytes a second.

    As NCCL's tests have it: the algorithm's bandwidth is bytes / time, the bus's that times 2 (n - 1) / n for n ranks,
    which is what each link of a ring carries.
    """

    bytes: int
    time_s: float
    ranks: int

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Bytes / time."""
        return self.bytes / self.time_s

    @property
    def bus_bytes_per_s(self) -> float:
        """Bytes / time * 2 (n - 1) / n."""
        return self.algorithm_bytes_per_s * 2 * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, kw_only=True)
class Laggard:
    """A rank, or all ranks of a node, that keeps the others waiting: in what, and how much slower than the median."""

    ranks: tuple[int, ...]
    host: str
    is_node: bool
    what: str
    times_median: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something in which the ranks' nodes differ and should not, in words."""

    found: str
    remedy: str


def bandwidths(reports: Reports) -> tuple[Bandwidth, ...]:
    """The rows of rank 0; all ranks agree on them."""
    return tuple(Bandwidth(ranks=len(reports), **row) for row in reports[0]["all_reduce"])


def wrong_sums(reports: Reports) -> tuple[int, ...]:
    """The ranks that were given wrong sums."""
    return tuple(rank for rank, report in sorted(reports.items()) if report["wrong_sums"])


def laggards(reports: Reports, arrivals: Mapping[int, Arrival], *, device: str) -> tuple[Laggard, ...]:
    """The ranks that are slow at their work, late to collectives, or slow in every pair, worst first.

    Where all ranks of a host lag in the same way, and other hosts do not, the host is named.
    """
    slow = SLOW["cpu" if device == "cpu" else "other"]
    found: list[Laggard] = []
    scores = {
        "its own work": _work(reports),
        "coming to collectives": _lateness(reports),
        "pairs in its node": _pairs(reports, "node"),
        "pairs with other nodes": _pairs(reports, "network"),
    }
    for what, score in scores.items():
        middle = statistics.median(score.values()) if len(score) > 1 else 0.0
        ratios = {rank: value / middle for rank, value in score.items() if middle > 0 and value >= slow * middle}
        found += _by_host(what, ratios, arrivals)
    return tuple(sorted(found, key=lambda each: -each.times_median))


def _work(reports: Reports) -> dict[int, float]:
    """Mean seconds of the same work."""
    return {rank: statistics.fmean(report["work_s"]) for rank, report in reports.items()}


def _lateness(reports: Reports) -> dict[int, float]:
    """1 + how long the others wait for each rank, in units of the median rank's work; 1 for those in time.

    Who comes last to an all-reduce waits least in it: a round's longest wait less the own one is how late a rank came.
    """
    usual = statistics.median(_work(reports).values())
    rounds = list(zip(*(report["wait_s"] for report in reports.values()), strict=True))
    longest = [max(waits) for waits in rounds]
    late = {
        rank: statistics.median(most - own for most, own in zip(longest, report["wait_s"], strict=True))
        for rank, report in reports.items()
    }
    earliest = min(late.values())
    return {rank: 1 + (value - earliest) / usual if value - earliest > WAITED * usual else 1.0
            for rank, value in late.items()}  # fmt: skip


def _pairs(reports: Reports, level: str) -> dict[int, float]:
    """Each rank's fastest message; a slow rank has none that is fast. Only ranks that met several can be told."""
    found = {}
    for rank, report in reports.items():
        taken = [pair["time_s"] for pair in report["pairs"] if pair["level"] == level]
        if len(taken) > 1:
            found[rank] = min(taken)
    return found


def _by_host(what: str, ratios: Mapping[int, float], arrivals: Mapping[int, Arrival]) -> list[Laggard]:
    """The laggards of one kind, those of a host together where all of its ranks are among them."""
    hosts = {rank: told.host for rank, told in arrivals.items()}
    found = []
    for host in dict.fromkeys(hosts[rank] for rank in ratios):
        own = [rank for rank in sorted(ratios) if hosts[rank] == host]
        everyone = [rank for rank, name in hosts.items() if name == host]
        is_node = len(own) == len(everyone) < len(hosts)
        groups = [own] if is_node else [[rank] for rank in own]
        found += [
            Laggard(ranks=tuple(group), host=host, is_node=is_node, what=what,
                    times_median=max(ratios[rank] for rank in group))
            for group in groups
        ]  # fmt: skip
    return found


def differences(arrivals: Mapping[int, Arrival], seen_wall_s: Mapping[int, float]) -> tuple[Difference, ...]:
    """Versions that are not the same everywhere, and wall clocks that are far from that of rank 0's machine."""
    found = []
    for name in ("python", "torch"):
        versions: dict[str, list[str]] = {}
        for told in arrivals.values():
            versions.setdefault(getattr(told, name), []).append(told.host)
        if len(versions) > 1:
            words = "; ".join(f"{version} on {_hosts(hosts)}" for version, hosts in versions.items())
            found.append(Difference(found=f"{name} differs: {words}", remedy="use one environment on all nodes"))
    skews = {told.host: told.wall_s - seen_wall_s[rank] for rank, told in arrivals.items() if rank in seen_wall_s}
    for host, skew in skews.items():
        if abs(skew) > SKEW_S:
            words = f"the clock of {host} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
            found.append(Difference(found=words, remedy="let NTP set it: timestamps of that node mislead"))
    return tuple(found)


def _hosts(hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
