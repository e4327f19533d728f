"""What a fork server has forked for one order, and how that is ended, from the side of whoever
started the server: the driver on its own machine, the agent on another node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from frontrunner.evaluators.nodes import child_processes
from frontrunner.evaluators.nodes.child_processes import KILL_GRACE_S
from frontrunner.evaluators.nodes.fork_server import Exited, ForkRequest, Started
from frontrunner.evaluators.nodes.supervisor import END_S


class Forked:
    """The ranks of an order, or the supervisor of its command, by the reports of the server.

    `pids` and `statuses` are by rank, or by the command's node. `killed` are those that were ended
    on purpose. `left` are processes of a command that were killed and have not ended.
    """

    def __init__(self, request: ForkRequest) -> None:
        self.request = request
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self.killed: set[int] = set()
        self.left: list[int] = []
        self._end_requested_s: float | None = None

    @property
    def is_command(self) -> bool:
        """Return whether it is the supervisor of a command, which ends that within `END_S`."""
        return self.request.place is not None

    @property
    def running(self) -> set[int]:
        """Return those that have not ended."""
        return set(self.request.numbers) - self.statuses.keys()

    @property
    def running_pids(self) -> list[int]:
        """Return the process ids of those that have not ended."""
        return [pid for number, pid in self.pids.items() if number in self.running]

    @property
    def is_given_up(self) -> bool:
        """Return whether they were to end before they were forked, or have not ended in the time
        that this may take. What is left of them ends with the server.
        """
        if self._end_requested_s is None or not self.running:
            return False
        if not self.pids:
            return True
        grace_s = KILL_GRACE_S + (END_S if self.is_command else 0.0)
        return time.monotonic() - self._end_requested_s > grace_s

    def take(self, report: Started | Exited) -> None:
        """Take note of a report of the server on this order."""
        if isinstance(report, Started):
            self.pids = dict(zip(self.request.numbers, report.pids, strict=True))
        else:
            self.statuses[report.number] = report.status
            self.left += report.left

    def end(self) -> None:
        """Have those that are left end; to be called again until they have.

        Ranks are killed. A supervisor is told to end its command, and is killed if it takes too
        long.
        """
        if self._end_requested_s is None:
            self._end_requested_s = time.monotonic()
            self.killed |= self.running
        for pid in self.running_pids:
            if not self.is_command or time.monotonic() - self._end_requested_s > END_S:
                child_processes.kill_rank(pid)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def go_on_ending(self) -> None:
        """Do what `end` does, if it was called: processes may have come since then."""
        if self._end_requested_s is not None:
            self.end()
