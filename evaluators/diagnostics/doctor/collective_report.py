"""Results of a collective test: bandwidth by size, wrong sums, and the ranks or nodes that lag, as checks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from frontrunner.evaluators.diagnostics.doctor.check import PROBLEM, WARNING, Check
from frontrunner.evaluators.diagnostics.doctor.collective_test import Reports, TestResult

SLOW = {"cpu": 3.0, "other": 1.5}
"""Assumed: times the median from which on a rank lags. Processes that share cores differ by more than devices do."""
LATE = 0.5
"""Assumed: a share of the time of their own work for which the others must wait until a rank counts as late."""
CLOCK_SKEW_S = 2.0
"""More than passes between a rank's arrival and its being seen."""
MAX_NAMED = 4


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
    """A rank, or all ranks of a node, that keep the others waiting: in what, and how many times the median."""

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
    count = len(set(hosts.values()))
    where = "" if count == 1 else f" on {count} hosts"
    wrong = wrong_sums(result.reports)
    if wrong:
        remedy = "train nothing here: try without GPU-direct (NCCL_NET_GDR_LEVEL=LOC), then inform the administrator"
        named = ", ".join(f"{rank} ({hosts[rank]})" for rank in wrong)
        yield Check("all-reduce", f"wrong sums on ranks {named}", PROBLEM, remedy)
    else:
        yield Check("all-reduce", f"{result.ranks} ranks{where}, {result.device}: all arrived, all sums are right")
    late = laggards(result.reports, hosts, device=result.device)
    for each in late:
        who = f"rank {each.ranks[0]} on {each.host}"
        if each.is_node:
            who = f"node {each.host} (ranks {', '.join(map(str, each.ranks))})"
        found = f"{who} lags in {each.what}: {each.times_median:.1f} times the median"
        remedy = "look there for other work, heat, a slow device or link; leave that node out if it stays so"
        yield Check("laggard", found, WARNING, remedy)
    if not late and result.ranks > 1:
        yield Check("pace", "no rank keeps the others waiting")
    for found, remedy in differences(result.arrivals, result.seen_wall_s):
        yield Check("nodes", found, WARNING, remedy)


def wrong_sums(reports: Reports) -> tuple[int, ...]:
    """Return the ranks that received wrong sums."""
    return tuple(rank for rank, report in sorted(reports.items()) if report["wrong_sums"])


def laggards(reports: Reports, hosts: Mapping[int, str], *, device: str) -> tuple[Laggard, ...]:
    """Return the ranks that are slow at their work, late to collectives, or slow in every pair, worst first.

    Where all ranks of a host lag in the same way, and other hosts do not, the host is named.
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
        ratios = {rank: value / middle for rank, value in score.items() if middle > 0 and value >= slow * middle}
        for host in dict.fromkeys(hosts[rank] for rank in ratios):
            own = [rank for rank in sorted(ratios) if hosts[rank] == host]
            is_node = len(own) == list(hosts.values()).count(host) < len(hosts)
            for group in [own] if is_node else [[rank] for rank in own]:
                found.append(Laggard(tuple(group), host, is_node, what, max(ratios[rank] for rank in group)))
    return tuple(sorted(found, key=lambda each: -each.times_median))


def _lateness(reports: Reports, work_s: float) -> dict[int, float]:
    """Return 1 + how long the others wait for each rank, in units of the median rank's work; 1 for those in time.

    The last to arrive at an all-reduce waits least in it: a round's longest wait less the own one is how late it came.
    """
    rounds = list(zip(*(report["wait_s"] for report in reports.values()), strict=True))
    longest = [max(waits) for waits in rounds]
    late = {
        rank: statistics.median(most - own for most, own in zip(longest, report["wait_s"], strict=True))
        for rank, report in reports.items()
    }
    earliest = min(late.values())
    return {rank: 1 + (s - earliest) / work_s if s - earliest > LATE * work_s else 1.0 for rank, s in late.items()}


def _pairs(reports: Reports, level: str) -> dict[int, float]:
    """Return each rank's fastest message, which a slow rank does not have; only of ranks that met several."""
    times = {
        rank: [pair["time_s"] for pair in report["pairs"] if pair["level"] == level] for rank, report in reports.items()
    }
    return {rank: min(taken) for rank, taken in times.items() if len(taken) > 1}


def differences(arrivals: Reports, seen_wall_s: Mapping[int, float]) -> Iterator[tuple[str, str]]:
    """Yield versions that are not the same everywhere, and clocks far from rank 0's machine's, each with a remedy."""
    for name in ("python", "torch"):
        versions: dict[str, dict[str, None]] = {}
        for arrival in arrivals.values():
            versions.setdefault(arrival[name], {})[arrival["host"]] = None
        if len(versions) > 1:
            words = "; ".join(f"{version} on {_names(list(hosts))}" for version, hosts in versions.items())
            yield f"{name} differs: {words}", "use one environment on all nodes"
    for host, skew in {arrivals[r]["host"]: arrivals[r]["wall_s"] - seen for r, seen in seen_wall_s.items()}.items():
        if abs(skew) > CLOCK_SKEW_S:
            words = f"the clock of {host} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
            yield words, "let NTP set it: timestamps of that node mislead"


def _names(hosts: list[str]) -> str:
    return ", ".join(hosts[:MAX_NAMED]) + (f" and {len(hosts) - MAX_NAMED} more" if len(hosts) > MAX_NAMED else "")
