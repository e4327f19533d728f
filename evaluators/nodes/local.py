"""This machine as the one node of a campaign: a warm fork server, at the other end of a pipe,
starts what runs.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

from frontrunner.evaluators.nodes import child_processes
from frontrunner.evaluators.nodes.base import Left, Nodes, Processes, Start
from frontrunner.evaluators.nodes.fork_server import (
    ForkClient,
    ForkRequest,
    ProcessKind,
    ServerLost,
    ServerSettings,
    Started,
)
from frontrunner.evaluators.nodes.forked import Forked
from frontrunner.evaluators.nodes.supervisor import END_S, Place, reserved_port
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.spaces.errors import FrontrunnerError

LOOPBACK = "127.0.0.1"
STUCK_S = 60.0
"""How long an order may wait for killed processes of an earlier one, before the campaign is paused.
"""
CLOSE_S = END_S + 5.0
"""How long `close` waits for what it has ended."""
MAX_FAILED_STARTS = 3
"""Servers in a row that were killed before they were ready."""
POLL_S = 0.1


class LocalProcesses(Processes):
    """What the server of this machine has forked; `ThisMachine.poll` passes on what it reports.

    `port` is kept free for rank 0 of a command until all has ended.
    """

    def __init__(
        self,
        forked: Forked,
        *,
        end_s: float | None,
        scratch: Path | None,
        port: socket.socket | None = None,
    ) -> None:
        super().__init__(forked.request.count)
        self.forked = forked
        self.statuses, self.killed = forked.statuses, forked.killed
        self.end_s = end_s
        self._scratch, self._port = scratch, port
        self._oom_kills_before = child_processes.kernel_oom_kills()
        self._began_s = time.monotonic()
        self._took_s: float | None = None
        self._lost: str | None = None

    @property
    def have_begun(self) -> bool:
        """Return whether they were forked."""
        return self.forked.has_begun

    @property
    def seconds(self) -> float:
        """Return the time since the order was sent to the server, which may still import, until
        they had ended.
        """
        return time.monotonic() - self._began_s if self._took_s is None else self._took_s

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory since the start, on the whole
        machine.
        """
        return child_processes.kernel_oom_kills() - self._oom_kills_before

    @property
    def stuck_pids(self) -> list[int]:
        """Return the ids of processes that were killed and have not ended."""
        if self._lost is not None or not self.killed:  # lost ones have ended, or are about to
            return self.forked.left
        return [*self.forked.left, *(process.pid for process in self.forked.processes)]

    @property
    def is_lost(self) -> bool:
        """Return whether the server has ended before they had."""
        return self._lost is not None

    @property
    def may_run(self) -> bool:
        """Return whether something of them may still run."""
        if self._lost is not None:
            return bool(self.forked.processes)
        return bool(self.running)

    def lose(self, server_log: Path) -> None:
        """Note that the server has ended, which takes those along that run."""
        if self.running:
            what = "command" if self.forked.is_command else "ranks"
            self._lost, self.log = f"the fork server ended, and the {what} with it", server_log

    def read(self) -> None:
        """Go on ending what was to end: reports are passed on as they come."""
        self.forked.go_on_ending()
        if self._took_s is None and not self.running:
            self._took_s = self.seconds

    def why_lost(self, *, have_begun: bool, have_ended: bool) -> str | None:
        """Return that the server has ended, or None."""
        del have_begun, have_ended
        return self._lost

    def end(self) -> None:
        """Have those that have not ended end."""
        self.forked.end()

    def close(self) -> None:
        """Give back the port, and remove what they offloaded to a disk."""
        if self._port is not None:
            self._port.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class ThisMachine(Nodes):
    """This machine; `end_s` is when the batch job ends that it belongs to, if any.

    Its fork server, which has `settings`, is started at once. The server's log is in `work_folder`.
    """

    starts_at_once = True

    def __init__(
        self, work_folder: Path, settings: ServerSettings, *, end_s: float | None = None
    ) -> None:
        self._log = work_folder / "fork-server.log"
        self._settings, self._end_s = settings, end_s
        self._running: dict[str, LocalProcesses] = {}
        self._stuck: list[psutil.Process] = []
        self._waits_since_s: float | None = None
        self._failed_starts = 0
        self._server = self._new_server()

    def _new_server(self) -> ForkClient:
        return ForkClient(self._log, self._settings)

    def poll(self, timeout_s: float) -> None:
        """Wait for reports of the server; raise `FrontrunnerError` if it cannot be started."""
        for report in self._server.reports(timeout_s):
            if isinstance(report, ServerLost):
                self._lose_server()
            elif report.token in self._running:
                self._running[report.token].forked.note(report)
            elif isinstance(report, Started):  # of an order that was ended before, and forgotten
                for pid in filter(None, report.pids):
                    child_processes.kill_rank(pid)

    def _lose_server(self) -> None:
        for processes in self._running.values():
            processes.lose(self._log)
        self._failed_starts = 0 if self._server.is_ready else self._failed_starts + 1
        self._server.close()
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise FrontrunnerError(
                f"the fork server was killed {self._failed_starts} times in a row while it started",
                hint=f"see {self._log}, and whether this machine has enough memory",
            )
        self._server = self._new_server()

    def place(self, orders: Iterable[ProbeOrder]) -> set[str]:
        """Return the tokens of all orders, once no killed rank of an earlier one is left."""
        waiting = {order.token for order in orders}
        self._stuck = child_processes.running(self._stuck)
        if not self._stuck or not waiting:
            self._waits_since_s = None
            return waiting
        self._waits_since_s = self._waits_since_s or time.monotonic()
        if time.monotonic() - self._waits_since_s > STUCK_S:
            raise child_processes.cannot_be_ended(self._stuck)
        return set()

    def start(self, order: ProbeOrder, start: Start) -> Processes:
        """Fork the ranks of an order, or the supervisor of its command."""
        port: socket.socket | None = None
        if start.kind is ProcessKind.COMMAND:
            port = reserved_port()
            place = Place(
                node=0, nodes=(socket.gethostname(),), address=LOOPBACK, port=port.getsockname()[1]
            )
            request = ForkRequest.of_command(order.token, order.run_folder, place)
        else:
            request = ForkRequest(
                token=order.token,
                folder=str(order.run_folder),
                world_size=order.recipe.devices,
                count=order.recipe.devices,
                scratch=None if start.scratch is None else str(start.scratch),
            )
        processes = LocalProcesses(
            Forked(request), end_s=self._end_s, scratch=start.scratch, port=port
        )
        self._running[order.token] = processes
        self._server.start(request)
        return processes

    def forget(self, processes: Processes) -> None:
        """Forget an order that is over; the next one waits for killed processes that are left."""
        for token, one in list(self._running.items()):
            if one is processes:
                del self._running[token]
                self._stuck += one.forked.processes
                for pid in one.forked.left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        self._stuck.append(psutil.Process(pid))

    def left_by(self, folders: Iterable[Path]) -> Left:
        """Return the processes of drivers that are gone, of any campaign."""
        del folders
        return child_processes.Orphans()

    def remove(self, scratch: Path | None) -> None:
        """Remove the scratch folder of an order whose driver is gone."""
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    def close(self, running: Collection[Processes]) -> None:
        """End what runs, wait until it is gone, and end the server."""
        end_s = time.monotonic() + CLOSE_S
        left = [one for one in running if isinstance(one, LocalProcesses)]
        try:
            while time.monotonic() < end_s:
                # A server that still imports has forked nothing.
                left = [one for one in left if one.may_run]
                if not any(self._server.is_ready or one.is_lost for one in left):
                    break
                for one in left:
                    one.end()
                self.poll(POLL_S)
        finally:
            self._server.close()
            for processes in running:
                processes.close()
