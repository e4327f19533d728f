"""Node agent, `python -P -m frontrunner.evaluators.cluster.agent STEP.json`: runs one node's ranks of one step.

The site's launcher starts one per node. Ranks end with its fork server, as that ends with the agent, which ends them
when the driver cancels the step or misses its heartbeat, or a signal ends it. Only files connect it to the driver.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from frontrunner.evaluators.cluster.environment import launched_rank
from frontrunner.evaluators.cluster.step import LOOK_S, HeartbeatMonitor, NodeReport, Step, StepFolder
from frontrunner.evaluators.probe.fork_server import ForkClient, RankExited, RanksStarted
from frontrunner.evaluators.probe.processes import KILL_GRACE_S, kernel_oom_kills, kill_rank
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
        self._heartbeat = HeartbeatMonitor(Path(step.lifeline), silence_s=step.silence_s)
        self._pids: dict[int, int] = {}
        self._oom_kills_before = kernel_oom_kills()
        self._looked_s = time.monotonic()
        self._killed_s: float | None = None

    def interrupt(self, number: int, _: FrameType | None) -> None:
        """Note the signal that ends this agent."""
        self._report = replace(self._report, interrupted=signal.Signals(number).name)

    def run(self) -> None:
        """Fork the ranks and stay until each has ended, or cannot be ended."""
        self._update()
        step, folder = self._step, self._folder
        server = ForkClient(folder.path / f"node-{self._report.node}.log", step.environment, step.engines)
        try:
            server.start(step.token, job=folder.path / "job.json", world_size=step.world_size, ranks=self._ranks)
            while not self._has_ended():
                for report in server.reports(POLL_S):
                    if isinstance(report, RanksStarted):
                        self._pids = dict(zip(self._ranks, report.pids, strict=True))
                        self._update(running=True)
                    elif isinstance(report, RankExited):
                        self._update(statuses=self._report.statuses | {report.rank: report.status})
                    else:
                        self._update(trouble="the node's fork server ended, and the ranks with it")
                if self._should_end():
                    self._kill_ranks()
        except FrontrunnerError as error:  # the fork server did not start
            self._update(trouble=error.message)
        finally:
            server.close()
            if step.scratch is not None:
                shutil.rmtree(step.scratch, ignore_errors=True)
            self._update(ended=True)

    def _has_ended(self) -> bool:
        if self._report.trouble is not None or len(self._report.statuses) == len(self._ranks):
            return True
        if self._killed_s is None:
            return False
        return not self._pids or time.monotonic() - self._killed_s > KILL_GRACE_S

    def _kill_ranks(self) -> None:
        if self._killed_s is None:
            self._killed_s = time.monotonic()
            self._update(killed=tuple(rank for rank in self._ranks if rank not in self._report.statuses))
        for rank in self._report.killed:
            if rank in self._pids and rank not in self._report.statuses:
                kill_rank(self._pids[rank])

    def _should_end(self) -> bool:
        if self._killed_s is not None or self._report.interrupted is not None or self._heartbeat.is_silent():
            return True
        if time.monotonic() - self._looked_s < LOOK_S:  # each look is a request to the shared file system
            return False
        self._looked_s = time.monotonic()
        return self._folder.is_cancelled

    def _update(self, **changes: Any) -> None:
        oom_kills = kernel_oom_kills() - self._oom_kills_before
        self._report = replace(self._report, oom_kills=oom_kills, **changes)
        self._folder.write_report(self._report)


def node_of(environment: Mapping[str, str], nodes: int) -> int:
    """Return the index of this node among a step's nodes, from the launcher's variables."""
    if nodes == 1:
        return 0
    # Ranks meet by a file, so the address that launched_rank would otherwise have to find is not needed.
    place = launched_rank({"MASTER_ADDR": "none", **environment})
    if place is None:
        raise InvalidInput(f"a step of {nodes} nodes was started without a launcher: set dispatch.launcher")
    if place.world_size != nodes:
        raise InvalidInput(f"{place.launcher} started {place.world_size} processes for a step of {nodes} nodes")
    return place.rank


def main() -> None:
    """Run the agent of this node."""
    try:
        step = Step.read(Path(sys.argv[1]))
        agent = NodeAgent(step, node_of(os.environ, step.nodes))
    except (IndexError, OSError, ValueError) as error:
        sys.exit(f"{' '.join(sys.argv)}: {error}")
    for number in ENDING_SIGNALS:
        signal.signal(number, agent.interrupt)
    agent.run()


if __name__ == "__main__":
    main()
