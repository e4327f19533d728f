"""Why a probe failed: one pure function over what is known when its ranks have ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from frontrunner.evaluators.probe.files import DISK_FULL_SIGNS
from frontrunner.results.outcome import FailureKind

OUT_OF_MEMORY_SIGNS = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory|cannot allocate memory|std::bad_alloc"
    r"|DefaultCPUAllocator: not enough memory|failed to map segment|nullptr != pinned_buffer",
    re.IGNORECASE,
)
"""Messages of torch, glibc, the C++ runtime and DeepSpeed for a refused allocation, on CPU and on accelerators."""

SHORT_FILE_SIGN = "buffer nbytes > file bytes"
"""Message of DeepSpeed's async_io, before it aborts, about a file shorter than what it had written there."""

ILLEGAL_TYPES = ("ValueError", "NotImplementedError")
"""Exceptions of the trainer and torch for a recipe that they reject, before the first step."""

SIGNALS_FROM_OUTSIDE = {9: "SIGKILL", 15: "SIGTERM"}
"""Sent by a person, a batch system or a memory guard; a process does not send them to itself."""


@dataclass(frozen=True, kw_only=True)
class RankError:
    """An exception that a rank wrote down: `phase` is starting, building or stepping."""

    rank: int
    type: str
    message: str
    phase: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known about a probe whose ranks have ended without a result.

    `statuses` maps rank to exit code, or minus the signal that ended it. `overdue` is the deadline that passed and its
    kind, HUNG or TOO_SLOW, where we killed the ranks for it. `killed_by_us` are the ranks that we killed: because of a
    deadline, or to clean up after another rank had failed. `kernel_oom_kills` counts the processes that the kernel's
    out-of-memory killer ended meanwhile, where the system reports it. `lost` is what ended and took ranks along, where
    it is known: a fork server, a node, an allocation. `disk_full` is set if the disk of the run folder is: ranks that
    cannot write to it end without being able to report why.
    """

    statuses: dict[int, int]
    errors: tuple[RankError, ...] = ()
    log_tails: dict[int, str] = field(default_factory=dict)
    overdue: tuple[FailureKind, str] | None = None
    killed_by_us: frozenset[int] = frozenset()
    kernel_oom_kills: int = 0
    lost: str | None = None
    disk_full: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Kind of failure, one sentence, and the rank whose log explains it best."""

    kind: FailureKind
    message: str
    rank: int


def classify(evidence: Evidence) -> Verdict:
    """Return the kind of a failure and the rank to blame.

    Memory comes first: one rank that could not allocate makes its peers fail in ways that look like
    crashes of the network. A rank's own error outweighs its peers' complaints about a lost connection.
    """
    for find in (_out_of_memory, _overdue, _own_error, _disk_full, _killed, _crashed):
        verdict = find(evidence)
        if verdict is not None:
            return verdict
    return Verdict(kind=FailureKind.LOST, message="the ranks ended without a result or an error", rank=0)


def _out_of_memory(evidence: Evidence) -> Verdict | None:
    for error in evidence.errors:
        if OUT_OF_MEMORY_SIGNS.search(f"{error.type}: {error.message}"):
            message = f"rank {error.rank} while {error.phase}: {first_line(error.message)}"
            return Verdict(kind=FailureKind.OUT_OF_MEMORY, message=message, rank=error.rank)
    for rank, tail in sorted(evidence.log_tails.items()):
        if evidence.statuses.get(rank, 0) != 0 and OUT_OF_MEMORY_SIGNS.search(tail):
            return Verdict(kind=FailureKind.OUT_OF_MEMORY, message=f"rank {rank}: {_line_with_sign(tail)}", rank=rank)
    for rank in _killed_by_others(evidence):
        if evidence.kernel_oom_kills:
            message = f"rank {rank} was killed by the kernel, which was out of memory"
            return Verdict(kind=FailureKind.OUT_OF_MEMORY, message=message, rank=rank)
    return None


def _overdue(evidence: Evidence) -> Verdict | None:
    if evidence.overdue is None:
        return None
    kind, message = evidence.overdue
    return Verdict(kind=kind, message=message, rank=0)


def _own_error(evidence: Evidence) -> Verdict | None:
    if not evidence.errors:
        return None
    culprit = min(evidence.errors, key=lambda error: (is_about_a_peer(error), error.rank))
    if is_about_a_peer(culprit) and (evidence.lost is not None or _silent(evidence)):
        return None  # the peers complain about a rank that was killed, or that crashed without an exception
    if culprit.type == "OSError" and any(sign in culprit.message for sign in DISK_FULL_SIGNS):
        message = f"rank {culprit.rank} could not write: {first_line(culprit.message)}"
        return Verdict(kind=FailureKind.LOST, message=message, rank=culprit.rank)
    illegal = culprit.type in ILLEGAL_TYPES and culprit.phase != "stepping"
    return Verdict(
        kind=FailureKind.ILLEGAL_FOR_ENGINE if illegal else FailureKind.CRASHED,
        message=f"rank {culprit.rank} while {culprit.phase}: {culprit.type}: {first_line(culprit.message)}",
        rank=culprit.rank,
    )


def _disk_full(evidence: Evidence) -> Verdict | None:
    """Blame a full disk where a rank that was not killed left no other reason."""
    silent = _silent(evidence)
    if evidence.disk_full is None or not silent or evidence.statuses[silent[0]] < 0:
        return None
    return Verdict(kind=FailureKind.LOST, message=evidence.disk_full, rank=silent[0])


def _killed(evidence: Evidence) -> Verdict | None:
    if evidence.lost is not None:
        return Verdict(kind=FailureKind.LOST, message=evidence.lost, rank=0)
    for rank in _killed_by_others(evidence):
        name = SIGNALS_FROM_OUTSIDE[-evidence.statuses[rank]]
        return Verdict(kind=FailureKind.LOST, message=f"rank {rank} was killed from outside ({name})", rank=rank)
    return None


def _crashed(evidence: Evidence) -> Verdict | None:
    for rank in _silent(evidence):
        if SHORT_FILE_SIGN in evidence.log_tails.get(rank, ""):
            message = f"rank {rank}: the disk is full: offload wrote a file that came out short"
            return Verdict(kind=FailureKind.CRASHED, message=message, rank=rank)
        status = evidence.statuses[rank]
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Verdict(kind=FailureKind.CRASHED, message=f"rank {rank} ended with {how}", rank=rank)
    return None


def _silent(evidence: Evidence) -> list[int]:
    """Return the ranks that failed, were not killed by us, and left no exception."""
    failed = {rank for rank, status in evidence.statuses.items() if status != 0}
    return sorted(failed - evidence.killed_by_us - {error.rank for error in evidence.errors})


def _killed_by_others(evidence: Evidence) -> list[int]:
    killed = {rank for rank, status in evidence.statuses.items() if -status in SIGNALS_FROM_OUTSIDE}
    return sorted(killed - evidence.killed_by_us)


def is_about_a_peer(error: RankError) -> bool:
    """Return whether an error only reports that another rank has gone."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
    return error.type == "DistNetworkError" or any(sign in error.message for sign in signs)


def first_line(text: str) -> str:
    """Return the first line that is not blank, at most 300 characters of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


def _line_with_sign(tail: str) -> str:
    lines = [line.strip() for line in tail.splitlines() if OUT_OF_MEMORY_SIGNS.search(line)]
    return lines[-1][:300]
