"""Why a probe failed: one pure function over what is known when its ranks have ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from frontrunner.evaluators.runs.files import DISK_FULL_SIGNS
from frontrunner.results.outcome import FailureKind

OUT_OF_MEMORY_SIGNS = re.compile(
    r"out[ _]?of[ _]?((host|device)[ _])?memory|MemoryError|not enough memory|can(no|')t allocate"
    r" memory"
    r"|alloc(ation)?_?failed|failed to cuda (host alloc|calloc|malloc)|failed to (malloc|allocate"
    r" (cpu )?memory)"
    r"|rocblas_status_memory_error|memory not available to allocate"
    r"|std::bad_alloc|failed to map segment|nullptr != pinned_buffer",
    re.IGNORECASE,
)
"""Messages for a refused allocation, on the host and on accelerators: of torch, glibc and the C++
runtime; of CUDA, HIP, SYCL and Level Zero with their math libraries; of NCCL, RCCL and oneCCL; of
DeepSpeed. The tests list them.
"""
SHORT_FILE_SIGN = "buffer nbytes > file bytes"
"""Message of DeepSpeed's async_io, before it aborts, about a file shorter than what it had written
there.
"""
ILLEGAL_TYPES = ("ValueError", "NotImplementedError")
PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)
SIGNALS_FROM_OUTSIDE = {9: "SIGKILL", 15: "SIGTERM"}
"""Sent by a person, a batch system or a memory guard; a process does not send them to itself."""


@dataclass(frozen=True, kw_only=True)
class RankError:
    """An exception that a rank wrote down: `phase` is starting, building or stepping."""

    rank: int
    type: str
    message: str
    phase: str

    @property
    def is_about_a_peer(self) -> bool:
        """Return whether it only reports that another rank has gone."""
        return self.type == "DistNetworkError" or any(sign in self.message for sign in PEER_SIGNS)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known about a probe whose ranks have ended without a result.

    `statuses` maps rank to exit code, or minus the signal. `overdue` is the deadline that passed;
    `killed_by_us` are ranks that we killed for it, or to clean up. `lost` is what ended and took
    ranks along: a fork server, a node.
    """

    statuses: dict[int, int]
    errors: tuple[RankError, ...] = ()
    log_tails: dict[int, str] = field(default_factory=dict)
    overdue: tuple[FailureKind, str] | None = None
    killed_by_us: frozenset[int] = frozenset()
    kernel_oom_kills: int = 0
    lost: str | None = None
    disk_full: str | None = None

    @property
    def killed_by_others(self) -> list[int]:
        """Return the ranks that a signal from outside ended, which was not ours."""
        killed = {rank for rank, status in self.statuses.items() if -status in SIGNALS_FROM_OUTSIDE}
        return sorted(killed - self.killed_by_us)

    @property
    def silent(self) -> list[int]:
        """Return the ranks that failed, were not killed by us, and left no exception."""
        failed = {rank for rank, status in self.statuses.items() if status != 0}
        return sorted(failed - self.killed_by_us - {error.rank for error in self.errors})


@dataclass(frozen=True)
class Verdict:
    """Kind of failure, one sentence, and the rank whose log explains it best."""

    kind: FailureKind
    message: str
    rank: int = 0


def classify(evidence: Evidence) -> Verdict:
    """Return the kind of a failure and the rank to blame: memory first, then a rank's own error
    before its peers'.
    """
    return next(
        _verdicts(evidence),
        Verdict(FailureKind.LOST, "the ranks ended without a result or an error"),
    )


def _verdicts(evidence: Evidence) -> Iterator[Verdict]:
    yield from _out_of_memory(evidence)
    if evidence.overdue is not None:
        yield Verdict(*evidence.overdue)
    yield from _own_error(evidence)
    silent = evidence.silent
    if evidence.disk_full is not None and silent and evidence.statuses[silent[0]] >= 0:
        yield Verdict(FailureKind.LOST, evidence.disk_full, silent[0])
    if evidence.lost is not None:
        yield Verdict(FailureKind.LOST, evidence.lost)
    for rank in evidence.killed_by_others:
        name = SIGNALS_FROM_OUTSIDE[-evidence.statuses[rank]]
        yield Verdict(FailureKind.LOST, f"rank {rank} was killed from outside ({name})", rank)
    for rank in silent:
        status = evidence.statuses[rank]
        how = f"rank {rank} ended with " + (
            f"signal {-status}" if status < 0 else f"exit status {status}"
        )
        if SHORT_FILE_SIGN in evidence.log_tails.get(rank, ""):
            how = f"rank {rank}: the disk is full: offload wrote a file that came out short"
        yield Verdict(FailureKind.CRASHED, how, rank)


def _out_of_memory(evidence: Evidence) -> Iterator[Verdict]:
    kind = FailureKind.OUT_OF_MEMORY
    for error in evidence.errors:
        if OUT_OF_MEMORY_SIGNS.search(f"{error.type}: {error.message}"):
            yield Verdict(
                kind,
                f"rank {error.rank} while {error.phase}: {first_line(error.message)}",
                error.rank,
            )
    for rank, text in sorted(evidence.log_tails.items()):
        lines = [line.strip() for line in text.splitlines() if OUT_OF_MEMORY_SIGNS.search(line)]
        if evidence.statuses.get(rank, 0) != 0 and lines:
            yield Verdict(kind, f"rank {rank}: {lines[-1][:300]}", rank)
    for rank in evidence.killed_by_others if evidence.kernel_oom_kills else ():
        yield Verdict(kind, f"rank {rank} was killed by the kernel, which was out of memory", rank)


def _own_error(evidence: Evidence) -> Iterator[Verdict]:
    if not evidence.errors:
        return
    culprit = min(evidence.errors, key=lambda error: (error.is_about_a_peer, error.rank))
    if culprit.is_about_a_peer and (evidence.lost is not None or evidence.silent):
        # The peers complain about a rank that was killed, or that crashed without an exception
        return
    message = first_line(culprit.message)
    if culprit.type == "OSError" and any(sign in culprit.message for sign in DISK_FULL_SIGNS):
        yield Verdict(
            FailureKind.LOST, f"rank {culprit.rank} could not write: {message}", culprit.rank
        )
    illegal = culprit.type in ILLEGAL_TYPES and culprit.phase != "stepping"
    kind = FailureKind.ILLEGAL_FOR_ENGINE if illegal else FailureKind.CRASHED
    yield Verdict(
        kind, f"rank {culprit.rank} while {culprit.phase}: {culprit.type}: {message}", culprit.rank
    )


def first_line(text: str) -> str:
    """Return the first line that is not blank, at most 300 characters of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
