"""The batch job that a driver is in: it starts no probe that may outlast the job."""

from __future__ import annotations

import math
import threading
import time

from frontrunner.evaluators.nodes.allocations import MARGIN_S
from frontrunner.evaluators.nodes.batch_jobs import end_of_job
from frontrunner.evaluators.nodes.dispatched import expected_s
from frontrunner.search.budget import CUT_S

LOOK_AT_JOB_S = 30.0
"""How often the batch system is queried for the end of the driver's job, which may be moved."""


class JobTime:
    """What is left of the batch job that a driver runs in: its probes have to end before that."""

    def __init__(self, deadline_s: float) -> None:
        """`deadline_s` is a probe's."""
        self._deadline_s = deadline_s
        self._longest_s: float | None = None
        self._end_s = end_of_job()
        self._is_over = threading.Event()
        if self._end_s is not None:  # in a thread: a driver must not wait for batch systems
            threading.Thread(target=self._watch, name="frontrunner-job", daemon=True).start()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_AT_JOB_S):
            self._end_s = end_of_job() or self._end_s

    def close(self) -> None:
        """Look no more."""
        self._is_over.set()

    @property
    def has_probed(self) -> bool:
        """Return whether a probe has ended in this job."""
        return self._longest_s is not None

    def note(self, seconds: float) -> None:
        """Note how long a probe has held its nodes."""
        self._longest_s = max(self._longest_s or 0.0, seconds)

    @property
    def _left_s(self) -> float:
        """Seconds until the driver must begin to end; infinity where the job's end is unknown."""
        return math.inf if self._end_s is None else self._end_s - MARGIN_S - time.monotonic()

    def why_end(self) -> str | None:
        """Return that a probe may not end before the job does, or None."""
        needed_s = expected_s(self._deadline_s, self._longest_s) + CUT_S
        if self._left_s >= needed_s:
            return None
        left_s = max(0.0, self._left_s + MARGIN_S)
        return (
            f"its job ends in {left_s:.0f} s, and a probe needs up to {needed_s + MARGIN_S:.0f} s"
        )

    @property
    def must_cut(self) -> bool:
        """Return whether what runs has to be ended now."""
        return self._left_s <= 0
