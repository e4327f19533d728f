"""This machine as the one node of a campaign: its ranks are forked from one warm server, its
commands run under a supervisor each.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import psutil

from frontrunner.evaluators.nodes import child_processes
from frontrunner.evaluators.nodes.base import RANKS, Left, Nodes, Processes, Start
from frontrunner.evaluators.nodes.fork_server import (
    ForkClient,
    RankExited,
    RanksStarted,
    ServerLost,
)
from frontrunner.evaluators.nodes.supervisor import END_S, Place, Supervised, reserved_port
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.runs.run_folder import RunFolder

LOOPBACK = "127.0.0.1"
STUCK_S = 60.0
"""How long an order waits for killed ranks of another that do not end; the campaign is paused
then.
"""


class LocalProcesses(Processes):
    """Processes of this machine."""

    def __init__(self, count: int, end_s: float | None) -> None:
        super().__init__(count)
        self.end_s = end_s
        self._oom_kills_before = child_processes.kernel_oom_kills()

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory since the start, on the whole
        machine.
        """
        return child_processes.kernel_oom_kills() - self._oom_kills_before


class LocalRanks(LocalProcesses):
    """Ranks that the warm server forks; `ThisMachine.poll` passes on what it reports."""

    def __init__(self, count: int, end_s: float | None, scratch: Path | None) -> None:
        super().__init__(count, end_s)
        self._scratch = scratch
        self._pids: tuple[int, ...] = ()
        self._started_s = time.monotonic()
        self._lost: str | None = None

    @property
    def have_begun(self) -> bool:
        """Return whether they were forked."""
        return bool(self._pids)

    @property
    def seconds(self) -> float:
        """Return the time since the start, while a server that is new imports too."""
        return time.monotonic() - self._started_s

    @property
    def stuck_pids(self) -> list[int]:
        """Return the ids of ranks that were killed and have not ended."""
        if self._lost is not None:  # they have ended with the server
            return []
        left = self.killed & self.running
        return [pid for rank, pid in enumerate(self._pids) if rank in left]

    def take(self, report: RanksStarted | RankExited) -> None:
        """Take note of a report of the server."""
        if isinstance(report, RanksStarted):
            self._pids = report.pids
        else:
            self.statuses[report.rank] = report.status

    def lose(self, server_log: Path) -> None:
        """Take note that the server has ended."""
        self._lost, self.log = "the fork server ended, and the ranks with it", server_log

    def read(self) -> None:
        """Do nothing: reports are passed on as they come."""

    def why_lost(self, *, have_begun: bool, have_ended: bool) -> str | None:
        """Return that the server has ended, or None."""
        del have_begun, have_ended
        return self._lost

    def end(self) -> None:
        """Kill the ranks that have not ended."""
        super().end()
        for pid in self.stuck_pids:
            child_processes.kill_rank(pid)

    def close(self) -> None:
        """Remove what they offloaded to a disk."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class LocalCommand(LocalProcesses):
    """A command under its supervisor, which ends with it."""

    def __init__(self, run_folder: Path, end_s: float | None) -> None:
        super().__init__(1, end_s)
        self._began_s = time.monotonic()
        self._took_s: float | None = None
        self._end_requested_s: float | None = None
        self._left: list[int] = []
        self._port = reserved_port()
        place = Place(
            node=0,
            nodes=(socket.gethostname(),),
            address=LOOPBACK,
            port=self._port.getsockname()[1],
        )
        tags = child_processes.driver_tags(run_folder.parent)
        self._supervised = Supervised(run_folder, place, tags)

    @property
    def have_begun(self) -> bool:
        """Return True: it begins with its supervisor."""
        return True

    @property
    def seconds(self) -> float:
        """Return the time since the start, or what the command has taken."""
        return time.monotonic() - self._began_s if self._took_s is None else self._took_s

    @property
    def stuck_pids(self) -> list[int]:
        """Return the ids of its processes that were killed and have not ended."""
        return self._left

    def read(self) -> None:
        """Take note of its end; kill a supervisor that takes too long to end it."""
        if self.statuses:
            return
        if self._supervised.has_ended:
            self._wait()
            ending = self._supervised.ending()
            self._took_s = self.seconds if ending is None else ending["seconds"]
            self.statuses[0] = -9 if ending is None else ending["status"]
            self._left = [] if ending is None else ending["left"]
        elif self._end_requested_s is not None and (
            time.monotonic() - self._end_requested_s > END_S
        ):
            self._supervised.kill()

    def why_lost(self, *, have_begun: bool, have_ended: bool) -> str | None:
        """Return None: nothing but its own end takes a supervisor along."""
        del have_begun, have_ended
        return None

    def end(self) -> None:
        """Have the supervisor end the command."""
        super().end()
        self._end_requested_s = self._end_requested_s or time.monotonic()
        self._supervised.end()

    def close(self) -> None:
        """Wait for the end of every process of the command."""
        if not self.statuses:
            self._wait()

    def _wait(self) -> None:
        self._supervised.wait()
        self._port.close()


class ThisMachine(Nodes):
    """This machine; `end_s` is when the time of its job is up, if it is in one.

    With `rank_environment` it can start ranks: the server that forks them is started at once, has
    that environment, and imports `engines` meanwhile. Its log is in `work_folder`.
    """

    starts_at_once = True

    def __init__(
        self,
        work_folder: Path,
        *,
        rank_environment: Mapping[str, str] | None = None,
        engines: tuple[str, ...] = (),
        end_s: float | None = None,
    ) -> None:
        self._log = work_folder / "fork-server.log"
        self._environment, self._engines, self._end_s = rank_environment, engines, end_s
        self._ranks: dict[str, LocalRanks] = {}
        self._stuck: list[psutil.Process] = []
        self._waits_since_s: float | None = None
        self._server: ForkClient | None = None
        self._start_server()

    def _start_server(self) -> None:
        if self._environment is not None:
            self._server = ForkClient(self._log, self._environment, self._engines)

    def poll(self, timeout_s: float) -> None:
        """Wait for reports of the server, or the whole time where there is none."""
        if self._server is None:
            time.sleep(timeout_s)
            return
        for report in self._server.reports(timeout_s):
            if isinstance(report, ServerLost):
                for ranks in self._ranks.values():
                    ranks.lose(self._log)
                self._server.close()
                self._start_server()
            elif report.token in self._ranks:  # else a rank that ended after it was given up
                self._ranks[report.token].take(report)

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
        """Fork the ranks of an order, or start its command."""
        if start.agent != RANKS:
            return LocalCommand(order.run_folder, self._end_s)
        assert self._server is not None  # noqa: S101 - see `rank_environment`
        world_size = order.recipe.devices
        ranks = LocalRanks(world_size, self._end_s, start.scratch)
        self._ranks[order.token] = ranks
        job = RunFolder(order.run_folder).job
        self._server.start(order.token, job=job, world_size=world_size, scratch=start.scratch)
        return ranks

    def forget(self, processes: Processes) -> None:
        """Forget an order that is over; the next one waits for killed ranks that are left."""
        self._ranks = {token: one for token, one in self._ranks.items() if one is not processes}
        for pid in processes.stuck_pids:
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
        """End the server, and leave nothing of what ran."""
        if self._server is not None:
            self._server.close()
        for processes in running:
            processes.close()
