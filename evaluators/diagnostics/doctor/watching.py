"""Who keeps a roll call from going on: judged from what the board says, by the watcher's own monotonic clock.

A rank that never comes, that has ended, that gives no sign of life, or that stands behind all others is named. If all
give signs and none is behind, no rank is at fault: what they wait in is.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from frontrunner.evaluators.diagnostics.doctor.board import Arrival, Ending, Sign
from frontrunner.evaluators.trainer.roll_call.order import DONE, SIGN_S

SILENT_S = 20 * SIGN_S
"""Without a sign for so long, a rank stands still; its signs are written by a thread that waits for nobody."""
SETTLE_S = 1.0
"""After one rank ended, for others that end with it: the first to be seen need not be the first to end."""
MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a roll call failed: the ranks at fault (none where nobody is), in a sentence, with the next step."""

    ranks: tuple[int, ...]
    found: str
    remedy: str


@dataclass(kw_only=True)
class Watch:
    """Follows a roll call. `deadline_s` is the longest that ranks may take to come, or to go on."""

    ranks: range
    ranks_per_node: int
    nodes: tuple[str, ...]
    deadline_s: float
    began_s: float
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    _signs: dict[int, Sign] = field(default_factory=dict)
    _signed_s: dict[int, float] = field(default_factory=dict)
    _moved_s: float | None = None
    _ended_s: float | None = None

    @property
    def all_came(self) -> bool:
        """Whether every rank has come."""
        return len(self.arrivals) == len(self.ranks)

    @property
    def all_done(self) -> bool:
        """Whether every rank has reported."""
        return len(self._signs) == len(self.ranks) and all(sign.stage == DONE for sign in self._signs.values())

    def look(self, now_s: float, signs: Mapping[int, Sign], endings: Mapping[int, Ending]) -> Fault | None:
        """Judge what is on the board now; None while the roll call may still go well."""
        for rank, sign in signs.items():
            before = self._signs.get(rank)
            if before is None or before.count != sign.count:
                self._signed_s[rank] = now_s
            if before is None or before.step != sign.step:
                self._moved_s = now_s
            self._signs[rank] = sign
        if endings and self._ended_s is None:
            self._ended_s = now_s
        if self._ended_s is not None:
            return self._ended(endings) if now_s - self._ended_s >= SETTLE_S else None
        return self._absent(now_s) or self._silent(now_s) or self._stuck(now_s)

    def where(self, rank: int) -> str:
        """A rank with its node, and its process there where it has come."""
        told = self.arrivals.get(rank)
        if told is not None:
            return f"rank {rank} on {told.host} (process {told.pid})"
        node = rank // self.ranks_per_node
        return f"rank {rank}" + (f" on {self.nodes[node]}" if node < len(self.nodes) else "")

    def _named(self, ranks: Iterable[int]) -> str:
        ranks = list(ranks)
        more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
        return ", ".join(map(self.where, ranks[:MOST_NAMED])) + more

    def _ended(self, endings: Mapping[int, Ending]) -> Fault:
        """Those that a signal ended come first: the others lost them."""
        by_signal = [rank for rank, ending in endings.items() if ending.status < 0]
        guilty = tuple(sorted(by_signal or endings))
        words = [f"{self.where(rank)} {_how(endings[rank])}" for rank in guilty[:MOST_NAMED]]
        remedy = "look at that node's log: memory, a device that failed, an administrator" if by_signal else (
            "its own words are above; frontrunner doctor on that node looks at the rest")  # fmt: skip
        return Fault(ranks=guilty, found="; ".join(words), remedy=remedy)

    def _absent(self, now_s: float) -> Fault | None:
        if self.all_came or now_s - self.began_s < self.deadline_s:
            return None
        absent = tuple(rank for rank in self.ranks if rank not in self.arrivals)
        came = len(self.arrivals)
        return Fault(
            ranks=absent,
            found=f"{self._named(absent)} never came within {self.deadline_s:g} s; {came} of {len(self.ranks)} did",
            remedy="look whether that node is up, reaches the node of rank 0, and has torch",
        )

    def _silent(self, now_s: float) -> Fault | None:
        """Only ranks that have come, and are not done, owe signs."""
        owing = (rank for rank in self.arrivals if rank in self._signs and self._signs[rank].stage != DONE)
        silent = tuple(rank for rank in owing if now_s - self._signed_s[rank] >= SILENT_S)
        if not silent:
            return None
        stage = self._signs[silent[0]].stage
        return Fault(
            ranks=silent,
            found=f"{self._named(silent)} stands still: no sign for {SILENT_S:g} s, last seen {stage}",
            remedy="look whether that process is stopped or the node is swapping, frozen or unreachable",
        )

    def _stuck(self, now_s: float) -> Fault | None:
        if not self.all_came or self._moved_s is None or now_s - self._moved_s < self.deadline_s:
            return None
        least = min(sign.step for sign in self._signs.values())
        behind = tuple(rank for rank, sign in self._signs.items() if sign.step == least)
        stage = self._signs[behind[0]].stage
        if len(behind) == len(self._signs):
            return Fault(
                ranks=(),
                found=f"all ranks live, and none comes out of {stage} in {self.deadline_s:g} s",
                remedy="the collective library cannot get through: look at its network interface "
                "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), at firewalls, and at NCCL_DEBUG=INFO",
            )
        return Fault(
            ranks=behind,
            found=f"{self._named(behind)} lives, but does not go on from {stage}; the others wait",
            remedy="look at that node's device: frontrunner doctor there",
        )


def _how(ending: Ending) -> str:
    if ending.status < 0:
        return f"was killed by {signal.Signals(-ending.status).name}"
    lines = [line for line in ending.tail.splitlines() if line.strip()]
    return f"ended with status {ending.status}" + (f": {lines[-1].strip()}" if lines else "")
