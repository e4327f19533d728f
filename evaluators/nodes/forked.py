"""State of the processes that a fork server has forked for one order, as its client knows it, and
how they are ended: by the driver on its own machine, by the agent on another node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from frontrunner.evaluators.nodes import child_processes
from frontrunner.evaluators.nodes.child_processes import KILL_GRACE_S
from frontrunner.evaluators.nodes.fork_server import Exited, ForkRequest, Started
from frontrunner.evaluators.nodes.supervisor import END_S


class Forked:
    """The ranks of an order, or the supervisor of its command, by the reports of the server.

    `statuses` are by rank, or by the command's node. `killed` are the numbers that `end` was asked
    to end. `left` are processes of a command that were killed and still exist.
    """

    def __init__(self, request: ForkRequest) -> None:
        self.request = request
        self.statuses: dict[int, int] = {}
        self.killed: set[int] = set()
        self.left: list[int] = []
        self.has_begun = False
        self._processes: dict[int, psutil.Process] = {}
        self._end_requested_s: float | None = None

    @property
    def is_command(self) -> bool:
        """Return whether this is the supervisor of a command, which may take `END_S` to end it."""
        return self.request.place is not None

    @property
    def running(self) -> set[int]:
        """Return the numbers that have not ended."""
        return set(self.request.numbers) - self.statuses.keys()

    @property
    def processes(self) -> list[psutil.Process]:
        """Return the processes of those numbers that still exist; after the server is lost they
        are about to end.
        """
        running = self.running
        return child_processes.running(
            [process for number, process in self._processes.items() if number in running]
        )

    @property
    def is_given_up(self) -> bool:
        """Return whether to wait no more: `end` was called before anything was forked, or longer
        ago than ending may take. What is left ends with the server.
        """
        if self._end_requested_s is None or not self.running:
            return False
        if not self.has_begun:
            return True
        grace_s = KILL_GRACE_S + (END_S if self.is_command else 0.0)
        return time.monotonic() - self._end_requested_s > grace_s

    def note(self, report: Started | Exited) -> None:
        """Note what the server reports of this order."""
        if isinstance(report, Exited):
            self.statuses[report.number] = report.status
            self.left += report.left
            return
        self.has_begun = True
        for number, pid in zip(self.request.numbers, report.pids, strict=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, which is reported next
                self._processes[number] = psutil.Process(pid)

    def end(self) -> None:
        """End what still runs; to be called again until nothing does.

        Ranks are killed. A supervisor is told to end its command, and is killed if it takes too
        long.
        """
        if self._end_requested_s is None:
            self._end_requested_s = time.monotonic()
            self.killed |= self.running
        may_take_s = END_S if self.is_command else 0.0
        is_late = time.monotonic() - self._end_requested_s >= may_take_s
        for process in self.processes:
            if is_late:
                child_processes.kill_rank(process.pid)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)

    def go_on_ending(self) -> None:
        """Do what `end` does, if it was called: processes may have come since then."""
        if self._end_requested_s is not None:
            self.end()
