"""What the system lets a process have: memory, open files, locked memory, shared memory; and how its clocks run."""

from __future__ import annotations

import ctypes
import resource
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status, Titled, examination

SECTION = "limits"
GIB = 2**30
LEAST_FILES = 4096
"""Assumed: a rank of a full mesh of sockets holds one for each of its peers, for each group that it is in."""
LEAST_SHARED_BYTES = GIB
"""NCCL's troubleshooting guide asks containers for --shm-size=1g, whose default is 64 MiB."""
NOT_SYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""
DRIFT_S = 0.5
"""More than a busy machine lets pass between the reading of one clock and of the other."""
CLOCK_S = 0.05
NO_LIMIT = 2**60
"""What cgroups of the first version say for no limit lies above."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the machine, of those free, and the lowest limit that this process is under; None for no limit."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    limited_by: str | None


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Soft limits of this process (None for none), the hard one of open files, and the size of /dev/shm."""

    open_files: int | None
    most_open_files: int | None
    locked_bytes: int | None
    shared_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Seconds that passed by the monotonic and by the wall clock at once; whether the wall clock is kept in time."""

    monotonic_s: float
    wall_s: float
    synchronised: bool | None


def limit_checks(*, has_fabric: bool, has_devices: bool) -> list[Titled]:
    """The examinations of this file. `has_fabric`: a network card that moves memory itself is there."""
    return [
        examination(SECTION, "memory", gather_memory, judge_memory),
        examination(SECTION, "open files", gather_ceilings, judge_open_files),
        examination(SECTION, "locked memory", gather_ceilings, lambda found: judge_locked(found, has_fabric)),
        examination(SECTION, "shared memory", gather_ceilings, lambda found: judge_shared(found, has_devices)),
        examination(SECTION, "clock", gather_clocks, judge_clocks),
    ]


def gather_memory() -> Memory:
    """The machine's memory, and the lowest limit of this process's cgroups and of ulimit."""
    machine = psutil.virtual_memory()
    limits = {name: value for name, value in _memory_limits().items() if value < min(NO_LIMIT, machine.total)}
    lowest = min(limits, key=lambda name: limits[name], default=None)
    return Memory(
        total_bytes=machine.total,
        available_bytes=machine.available,
        limit_bytes=limits[lowest] if lowest else None,
        limited_by=lowest,
    )


def _memory_limits() -> dict[str, int]:
    """Limits in bytes by what sets them: the groups of /proc/self/cgroup, up to the root, and the address space."""
    found = {}
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        found["ulimit -v"] = soft
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.is_file() else []:
        _, kinds, folder = line.split(":", 2)
        root, name = ("", "memory.max") if not kinds else ("memory", "memory.limit_in_bytes")
        if not kinds or "memory" in kinds.split(","):
            for place in (Path(folder.lstrip("/")), *Path(folder.lstrip("/")).parents):
                path = Path("/sys/fs/cgroup", root, place, name)
                text = path.read_text(encoding="utf-8").strip() if path.is_file() else "max"
                if text.isdecimal():
                    found[str(path)] = int(text)
    return found


def judge_memory(memory: Memory) -> Iterable[Check]:
    """How much there is, and a word where a limit leaves a process less than the machine has."""
    total, free = f"{memory.total_bytes / GIB:,.1f} GiB", f"{memory.available_bytes / GIB:,.1f} GiB free"
    if memory.limit_bytes is None:
        yield Check(section=SECTION, name="memory", status=Status.OK, found=f"{total}, {free}")
        return
    yield Check(
        section=SECTION,
        name="memory",
        status=Status.NOTE,
        found=f"{total}, {free}; at most {memory.limit_bytes / GIB:,.1f} GiB by {memory.limited_by}",
        remedy="ask the batch system for all memory of a node (Slurm: --mem=0) if probes should have it",
    )


def gather_ceilings() -> Ceilings:
    """The limits of this process, which its children inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shared = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    return Ceilings(
        open_files=_finite(soft),
        most_open_files=_finite(hard),
        locked_bytes=_finite(locked),
        shared_bytes=shutil.disk_usage(shared).total if shared.is_dir() else None,
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def judge_open_files(ceilings: Ceilings) -> Iterable[Check]:
    """Enough open files for the sockets of many ranks."""
    soft = ceilings.open_files
    if soft is None or soft >= LEAST_FILES:
        words = "no limit" if soft is None else f"{soft:,}"
        yield Check(section=SECTION, name="open files", status=Status.OK, found=words)
        return
    most = ceilings.most_open_files
    reachable = most is None or most >= LEAST_FILES
    remedy = f"ulimit -n {LEAST_FILES}" if reachable else "ask the administrator for a higher hard limit (nofile)"
    found = f"{soft:,}: expected {LEAST_FILES:,} for the sockets of many ranks"
    yield Check(section=SECTION, name="open files", status=Status.WARNING, found=found, remedy=remedy)


def judge_locked(ceilings: Ceilings, has_fabric: bool) -> Iterable[Check]:  # noqa: FBT001 - one fact among facts
    """Cards that move memory themselves need it locked."""
    if ceilings.locked_bytes is None:
        yield Check(section=SECTION, name="locked memory", status=Status.OK, found="no limit")
        return
    found = f"at most {ceilings.locked_bytes / 2**20:,.1f} MiB"
    if has_fabric:
        remedy = "ulimit -l unlimited, or ask the administrator (memlock): the network registers its buffers"
        yield Check(section=SECTION, name="locked memory", status=Status.WARNING, found=found, remedy=remedy)
    else:
        yield Check(section=SECTION, name="locked memory", status=Status.OK, found=f"{found}; nothing here needs more")


def judge_shared(ceilings: Ceilings, has_devices: bool) -> Iterable[Check]:  # noqa: FBT001 - one fact among facts
    """Ranks of a node hand buffers over through /dev/shm."""
    size = ceilings.shared_bytes
    if size is None:
        found, remedy = "there is no /dev/shm", "mount one: ranks of a node hand buffers over in it"
        yield Check(section=SECTION, name="shared memory", status=Status.WARNING, found=found, remedy=remedy)
    elif size < LEAST_SHARED_BYTES and has_devices:
        found, remedy = f"{size / 2**20:,.0f} MiB", "start the container with --shm-size=1g or more"
        yield Check(section=SECTION, name="shared memory", status=Status.WARNING, found=found, remedy=remedy)
    else:
        yield Check(section=SECTION, name="shared memory", status=Status.OK, found=f"{size / GIB:,.1f} GiB")


def gather_clocks() -> Clocks:
    """Both clocks over the same moment, and the kernel's own word on whether the wall clock is kept in time."""
    monotonic, wall = time.monotonic(), time.time()
    time.sleep(CLOCK_S)
    return Clocks(monotonic_s=time.monotonic() - monotonic, wall_s=time.time() - wall, synchronised=_is_synchronised())


def _is_synchronised() -> bool | None:
    """adjtimex(2), asked without changing anything; None where it does not answer."""
    if sys.platform != "linux":
        return None
    asked = ctypes.create_string_buffer(512)  # struct timex has 208 bytes, all zero: no mode, so nothing is set
    state: int = ctypes.CDLL(None).adjtimex(asked)
    return None if state < 0 else state != NOT_SYNCHRONISED


def judge_clocks(clocks: Clocks) -> Iterable[Check]:
    """Timings are by the monotonic clock; timestamps, and tools that compare nodes, by the wall clock."""
    drift = abs(clocks.wall_s - clocks.monotonic_s)
    if drift > DRIFT_S:
        found = f"the wall clock moved {clocks.wall_s:.3f} s while {clocks.monotonic_s:.3f} s passed"
        remedy = "something sets this machine's time: timings are safe, timestamps are not"
        yield Check(section=SECTION, name="clock", status=Status.WARNING, found=found, remedy=remedy)
    elif clocks.synchronised is False:
        found, remedy = "not kept in time by NTP, says the kernel", "start chronyd or ntpd, or compare no timestamps"
        yield Check(section=SECTION, name="clock", status=Status.NOTE, found=found, remedy=remedy)
    else:
        words = "kept in time" if clocks.synchronised else "steady; whether it is kept in time is not told"
        yield Check(section=SECTION, name="clock", status=Status.OK, found=words)
