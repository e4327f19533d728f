"""The node agent: one process a node, started by the site's launcher, which runs that node's ranks of one step.

It needs torch and the standard library. Its fork server imports torch once and forks the ranks, which end with the
server, as the server ends with the agent. The agent ends them all when the driver cancels the step or falls silent,
when a rank on this or another node has failed and the others have had their time to say so, when the step's deadline
has passed, and when it is told to end itself. Nothing but files joins it to the driver: see `step.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from frontrunner.evaluators.cluster.job_environment import launched_rank
from frontrunner.evaluators.cluster.lifeline import LOOK_S, Listener
from frontrunner.evaluators.cluster.step import NodeReport, Step, StepFolder
from frontrunner.evaluators.probe.fork_client import ForkClient, RankExited, Ranks, RanksStarted, Report, ServerLost
from frontrunner.evaluators.probe.watch import KILL_GRACE_S, PEER_GRACE_S, kernel_oom_kills
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput

POLL_S = 0.2
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class NodeAgent:
    """Runs the ranks of one node to their end, however that comes, and keeps the node's report up to date."""

    def __init__(self, step: Step, node: int) -> None:
        self._step = step
        self._folder = StepFolder(Path(step.run_folder))
        self._ranks = step.ranks_of(node)
        self._report = NodeReport(node=node, host=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
        self._lifeline = Listener(Path(step.lifeline), silence_s=step.silence_s)
        self._pids: dict[int, int] = {}
        self._oom_kills_before = kernel_oom_kills()
        self._began_s = self._looked_s = time.monotonic()
        self._peers_failed_s: float | None = None
        self._killed_s: float | None = None
        self._wants_end = False

    def interrupt(self, number: int, _: FrameType | None) -> None:
        """Note the signal that ends this agent; the loop does the rest."""
        self._report = replace(self._report, interrupted=signal.Signals(number).name)

    def run(self) -> None:
        """Fork the ranks and stay until each has ended, or cannot be ended."""
        self._tell()
        step, node = self._step, self._report.node
        client = ForkClient(self._folder.node_log(node), step.environment, step.engines)
        try:
            ranks = Ranks(
                world_size=step.world_size, first=self._ranks[0], count=len(self._ranks), meeting=self._folder.path
            )
            logs = Path(step.run_folder)
            client.start(step.token, job=logs / "job.json", ranks=ranks, logs=logs)
            while not self._has_ended():
                for report in client.reports(POLL_S):
                    self._hear(report)
                self._look(client)
        except FrontrunnerError as error:  # the fork server did not start
            self._fail(error.message)
        finally:
            client.close()
            if step.scratch is not None:
                shutil.rmtree(step.scratch, ignore_errors=True)
            self._tell(ended=True)

    def _hear(self, report: Report) -> None:
        if isinstance(report, RanksStarted):
            self._pids = dict(zip(self._ranks, report.pids, strict=True))
            self._tell(running=True)
        elif isinstance(report, RankExited):
            if report.status != 0:
                self._peer_failed()
            self._tell(statuses=self._report.statuses | {report.rank: report.status})
        elif isinstance(report, ServerLost):
            self._fail("the node's fork server ended, and the ranks with it")

    def _fail(self, trouble: str) -> None:
        self._peer_failed()
        self._wants_end = True
        self._tell(trouble=trouble)

    def _peer_failed(self) -> None:
        """Let the other nodes know that a rank has failed."""
        self._peers_failed_s = self._peers_failed_s or time.monotonic()
        self._folder.raise_flag(self._folder.peer_failed)

    def _has_ended(self) -> bool:
        if self._wants_end or len(self._report.statuses) == len(self._ranks):
            return True
        if self._killed_s is None:
            return False
        return not self._pids or time.monotonic() - self._killed_s > KILL_GRACE_S

    def _look(self, client: ForkClient) -> None:
        """Kill the ranks that are left once there is a reason to."""
        if not self._should_end():
            return
        if self._killed_s is None:
            self._killed_s = time.monotonic()
            left = tuple(rank for rank in self._ranks if rank not in self._report.statuses)
            self._tell(killed=left)
        for rank in self._report.killed:
            if rank in self._pids and rank not in self._report.statuses:
                client.kill_rank(self._pids[rank])

    def _should_end(self) -> bool:
        now = time.monotonic()
        if self._killed_s is not None or self._report.interrupted is not None:
            return True
        if self._lifeline.is_silent() or now - self._began_s > self._step.deadline_s:
            return True
        if now - self._looked_s >= LOOK_S:  # each look asks the shared file system
            self._looked_s = now
            if self._folder.is_raised(self._folder.cancel):
                return True
            if self._peers_failed_s is None and self._folder.is_raised(self._folder.peer_failed):
                self._peers_failed_s = now
        return self._peers_failed_s is not None and now - self._peers_failed_s > PEER_GRACE_S

    def _tell(self, **changes: object) -> None:
        oom_kills = kernel_oom_kills() - self._oom_kills_before
        self._report = replace(self._report, oom_kills=oom_kills, **changes)  # type: ignore[arg-type]
        self._folder.write_report(self._report)


def node_of(environment: Mapping[str, str], nodes: int) -> int:
    """Which of a step's nodes this one is, counted from 0, by what the launcher says.

    Raises `InvalidInput` where it says nothing, or started another number of processes.
    """
    if nodes == 1:
        return 0
    # Ranks meet by a file, so nobody asks for the address that launched_rank would otherwise have to find.
    place = launched_rank({"MASTER_ADDR": "none", **environment})
    if place is None:
        raise InvalidInput(f"a step of {nodes} nodes was started without a launcher: set dispatch.launcher")
    if place.world_size != nodes:
        raise InvalidInput(f"{place.launcher} started {place.world_size} processes for a step of {nodes} nodes")
    return place.rank


def main() -> None:
    """`python -P -m frontrunner.evaluators.cluster.agent STEP.json`, once on each node."""
    try:
        step = Step.read(Path(sys.argv[1]))
        agent = NodeAgent(step, node_of(os.environ, step.nodes))
    except (IndexError, OSError, ValueError) as error:
        sys.exit(f"{' '.join(sys.argv)}: {error}")
    for number in ENDING_SIGNALS:
        signal.signal(number, agent.interrupt)
    try:
        agent.run()
    except OSError:  # such as a full disk: the launcher's log is what is left to tell of it
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
