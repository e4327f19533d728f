"""One probe in flight, as its supervisor sees it: how far it is, which deadlines have passed, which ranks ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from frontrunner.evaluators.probe.run_folder import StepCounter
from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.protocol import ProbeOrder, Progress
from frontrunner.results.outcome import FailureKind

PEER_GRACE_S = 2.0
"""How long the other ranks may go on after one has failed, to write what they know."""

KILL_GRACE_S = 15.0
"""How long killed ranks may take to end; one that waits for its device or disk may never do so."""


class Watch:
    """Follows one probe. Its clock is monotonic and starts when the ranks are forked.

    `statuses` maps each rank that has ended to its exit code, or minus its signal; `killed` holds the ranks
    that were killed from here; `overdue` is the deadline that passed; `lost` is to be set to what went and took the
    ranks along. Whoever holds the watch does the killing.
    """

    def __init__(self, order: ProbeOrder, settings: ProbeSettings) -> None:
        self.order = order
        self.statuses: dict[int, int] = {}
        self.killed: set[int] = set()
        self.overdue: tuple[FailureKind, str] | None = None
        self.lost: str | None = None
        self._settings = settings
        self._steps = StepCounter(order.run_folder)
        self._pids: tuple[int, ...] = ()
        self._oom_kills_before = kernel_oom_kills()
        self._began_s = self._last_progress_s = time.monotonic()
        self._first_failure_s: float | None = None
        self._first_kill_s: float | None = None

    def began(self, pids: tuple[int, ...]) -> None:
        """The ranks were forked; deadlines count from now."""
        self._pids = pids
        self._began_s = self._last_progress_s = time.monotonic()

    def rank_ended(self, rank: int, status: int) -> None:
        """Note how a rank ended."""
        self.statuses[rank] = status
        if status != 0 and self._first_failure_s is None:
            self._first_failure_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the ranks were forked; 0 before."""
        return time.monotonic() - self._began_s if self._pids else 0.0

    @property
    def has_failed(self) -> bool:
        """Whether any rank ended with an error or by a signal, or all of them with what is lost."""
        return self._first_failure_s is not None or self.lost is not None

    @property
    def has_ended(self) -> bool:
        """Whether every rank has, or those that are left cannot be killed."""
        if self._first_kill_s is not None and time.monotonic() - self._first_kill_s > KILL_GRACE_S:
            return True
        return self.lost is not None or len(self.statuses) == self.order.recipe.devices

    @property
    def unended(self) -> list[int]:
        """The process ids of the ranks that were killed from here and have not ended."""
        return [pid for rank, pid in enumerate(self._pids) if rank in self.killed and rank not in self.statuses]

    @property
    def kernel_oom_kills(self) -> int:
        """Processes that the kernel killed for memory since the probe was ordered, on the whole machine."""
        return kernel_oom_kills() - self._oom_kills_before

    @property
    def progress(self) -> Progress:
        """Phase and steps."""
        phase = "starting" if not self._pids else "stepping" if self._steps.is_built else "building"
        return Progress(phase=phase, steps_done=self._steps.steps_done, steps_total=self._settings.most_steps)

    def look(self) -> Iterator[int]:
        """Note progress; the process ids to kill, since a deadline has passed or a rank has failed."""
        if not self._pids:
            return
        now = time.monotonic()
        if self._steps.advance():
            self._last_progress_s = now
        if self.overdue is None:
            self.overdue = self._overdue(now)
        failed = self._first_failure_s is not None and now - self._first_failure_s > PEER_GRACE_S
        if self.overdue is not None or failed:
            yield from self.kill()

    def kill(self) -> Iterator[int]:
        """The process ids of the ranks that have not ended, which count as killed from here."""
        for rank, pid in enumerate(self._pids):
            if rank not in self.statuses:
                self.killed.add(rank)
                if self._first_kill_s is None:
                    self._first_kill_s = time.monotonic()
                yield pid

    def _overdue(self, now: float) -> tuple[FailureKind, str] | None:
        """Which deadline has passed: none, the one for a step, or the one for the whole probe."""
        done = self._steps.steps_done
        if now - self._last_progress_s > self._settings.step_deadline_s:
            limit = f"probe.step_deadline_s = {self._settings.step_deadline_s:g} s"
            return FailureKind.HUNG, f"no progress within {limit}, after {done} steps"
        if now - self._began_s > self._settings.deadline_s:
            limit = f"probe.deadline_s = {self._settings.deadline_s:g} s"
            return FailureKind.TOO_SLOW, f"{done} of at most {self.progress.steps_total} steps within {limit}"
        return None


def kernel_oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer took since boot; 0 where the system does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
