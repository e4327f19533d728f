"""Load on a rank's processors and device by processes that are not its campaign's.

Ours are the rank's parent, a fork server or launcher, with all that descends from it, and that
one's parent, the driver or the node's agent. Of a driver that runs on a node of its own probes all
that descends from it is ours too. Nothing here fails a run: what a kernel or a driver does not
state is unknown.
"""

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DRIVER = "FRONTRUNNER_DISPATCHED_BY"
"""Variable with host and process id of the driver of ranks that an agent has started."""
NAMED_SHARE = 0.1
"""Of the load: processes that took less of it are not named."""
MOST_NAMED = 2


class Process(NamedTuple):
    """A process, with the seconds that it and its children that have ended ran; `cpu` is where it
    ran last.
    """

    parent: int
    name: str
    ran_s: float
    ended_s: float
    cpu: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters at one moment: of this rank's processors, of its threads, and of the processes that
    it can see.

    `waited_s` is how long its threads were ready and waited for a processor, `throttled_s` how long
    a quota of its control group held that up. `stolen_s` are the processors' seconds that a
    hypervisor gave to others.
    """

    at_s: float
    cpus: frozenset[int]
    idle_s: float
    stolen_s: float
    waited_s: float
    throttled_s: float
    processes: Mapping[int, Process] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What happened between two readings; `foreign_s` are the seconds for which others used the
    rank's processors.
    """

    host: str
    cpus: frozenset[int]
    elapsed_s: float
    waited_s: float
    stolen_s: float
    foreign_s: float
    names: str


def read() -> Reading | None:
    """Return the counters now; None where the kernel does not have them."""
    try:
        cpus = frozenset(os.sched_getaffinity(0))
        lines = (_PROC / "stat").read_text(encoding="ascii").splitlines()
        counts = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
        own = [
            [int(ticks) / _TICKS_PER_S for ticks in one[1:]]
            for one in counts
            if int(one[0][3:]) in cpus
        ]
        if len(own) < len(cpus):
            return None
        return Reading(
            at_s=time.monotonic(),
            cpus=cpus,
            idle_s=sum(one[3] + one[4] for one in own),
            stolen_s=sum(one[7] for one in own),
            waited_s=_waited_s(),
            throttled_s=throttled_s(),
            processes=dict(_processes()),
        )
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def _waited_s() -> float:
    waited_ns = int(
        (_PROC / "self" / "schedstat").read_text(encoding="ascii").split()[1]
    )  # of the first thread
    for file in _PROC.glob("self/task/*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(file.read_text(encoding="ascii").split()[1]) * (
                file.parent.name != str(os.getpid())
            )
    return waited_ns / 1e9


def _processes() -> Iterable[tuple[int, Process]]:
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # gone
            _, _, rest = (
                (folder / "stat").read_text(encoding="utf-8", errors="replace").partition("(")
            )
            name, _, rest = rest.rpartition(")")
            name = "".join(
                one if one.isprintable() else "?" for one in name
            )  # which any user may choose
            fields = rest.split()
            ran, ended = (
                sum(map(int, fields[first : first + 2])) / _TICKS_PER_S for first in (11, 13)
            )
            yield int(folder.name), Process(int(fields[1]), name, ran, ended, int(fields[36]))


def throttled_s() -> float:
    """Return for how long quotas of this process's control groups (version 2) have held it, on all
    processors.
    """
    total_us = 0
    with suppress(OSError, StopIteration):
        groups = (_PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
        own = Path(next(line[3:] for line in groups if line.startswith("0::")))
        for group in (own, *own.parents):
            file = _CGROUPS / str(group).lstrip("/") / "cpu.stat"
            counts = dict(line.split() for line in file.read_text(encoding="ascii").splitlines())
            total_us += int(counts.get("throttled_usec", 0))
    return total_us / 1e6


def ours(processes: Mapping[int, Process], parent: int) -> set[int]:
    """Return the process ids of the campaign: see above."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    host, _, driver = os.environ.get(DRIVER, "").rpartition(":")
    found, left = set[int](), [parent]
    if host == os.uname().nodename and driver.isdecimal() and int(driver) in processes:
        left.append(int(driver))
    while left:
        found.add(pid := left.pop())
        left += children.get(pid, [])
    return found | ({processes[parent].parent} if parent in processes else set())


def between(before: Reading | None, after: Reading | None, parent: int) -> Load | None:
    """Return the load between two readings of a rank that is a child of `parent`; None where one is
    unknown.
    """
    if before is None or after is None or before.cpus != after.cpus:
        return None
    elapsed_s, cpus = after.at_s - before.at_s, after.cpus
    own = [
        sum(
            one.ran_s + one.ended_s
            for pid, one in processes.items()
            if pid in ours(processes, parent)
        )
        for processes in (before.processes, after.processes)
    ]
    busy_s = elapsed_s * len(cpus) - (after.idle_s - before.idle_s)
    # Each processor's counters are rounded down to a tick, twice, and such errors mostly cancel
    # out.
    foreign_s = max(0.0, busy_s - max(0.0, own[1] - own[0]) - math.sqrt(len(cpus)) / _TICKS_PER_S)
    waited_s = after.waited_s - before.waited_s - (after.throttled_s - before.throttled_s)
    return Load(
        host=os.uname().nodename,
        cpus=cpus,
        elapsed_s=elapsed_s,
        waited_s=max(0.0, waited_s),
        stolen_s=after.stolen_s - before.stolen_s,
        foreign_s=foreign_s,
        names=_most_active(before, after, parent, NAMED_SHARE * foreign_s) if foreign_s else "",
    )


def _most_active(before: Reading, after: Reading, parent: int, least_s: float) -> str:
    own, ran_s = ours(after.processes, parent), dict[int, float]()
    for pid, process in after.processes.items():
        known = before.processes.get(pid)
        if pid not in own and process.cpu in after.cpus:
            ran_s[pid] = process.ran_s - (known.ran_s if known else 0.0)
    most = sorted((pid for pid in ran_s if ran_s[pid] > least_s), key=lambda pid: -ran_s[pid])
    return named(most, after.processes)


def named(pids: Sequence[int], processes: Mapping[int, Process]) -> str:
    """Return processes by name and id: `python 4711, cc1 4712 and 3 more`."""
    known = [
        f"{processes[pid].name} {pid}" if pid in processes else f"process {pid}"
        for pid in pids[:MOST_NAMED]
    ]
    return ", ".join(known) + (f" and {more} more" if (more := len(pids) - MOST_NAMED) > 0 else "")


def foreign_load(loads: Sequence[Load | None]) -> dict[str, Any]:
    """Return a result's keys about the processors, of all ranks; None where the load of one is not
    known.

    A rank's share is of the time between its readings: for that long it was ready and waited for a
    processor that others used. Ranks may wait for one another as well, so of the waiting of all
    ranks on the same processors at most the seconds that others used there count.
    """
    known = [load for load in loads if load is not None]
    if len(known) < len(loads):
        return dict.fromkeys(("foreign_cores", "foreign_share", "foreign_processes"))
    return {
        "foreign_cores": [round(load.foreign_s / load.elapsed_s, 3) for load in known],
        "foreign_share": [round(_share(load, known), 4) for load in known],
        "foreign_processes": [load.names for load in known],
    }


def _share(load: Load, loads: Sequence[Load]) -> float:
    beside = [one for one in loads if (one.host, one.cpus) == (load.host, load.cpus)]
    all_waited_s = sum(one.waited_s for one in beside) + load.stolen_s
    if not all_waited_s:
        return 0.0
    waited_s = load.waited_s + load.stolen_s / len(beside)
    return min(1.0, waited_s / load.elapsed_s * min(1.0, load.foreign_s / all_waited_s))
