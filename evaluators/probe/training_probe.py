"""Training probe: a short real training run of a recipe, started warm, watched and ended from outside."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.probe.fork_client import ForkClient, RankExited, Ranks, RanksStarted, Report, ServerLost
from frontrunner.evaluators.probe.job import Corpus, corpus, disk_folder, probe_job
from frontrunner.evaluators.probe.orphans import cannot_be_ended
from frontrunner.evaluators.probe.processes import kill_rank, running
from frontrunner.evaluators.probe.settings import TORCH_DEVICES
from frontrunner.evaluators.probe.watch import Watch, conclude, harvest, write_job
from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Outcome
from frontrunner.spaces.recipe import Recipe

MakeJob = Callable[[ProbeSetup, Recipe, Path, Corpus], dict[str, Any]]
"""From setup, recipe, run folder and token file to the job of the ranks."""

POLL_S = 0.1
SERVER_LOG = "fork-server.log"
STUCK_S = 60.0
"""How long a probe waits for killed ranks of another that do not end; the campaign is paused then."""


class TrainingProbe:
    """The `Evaluator` that trains on this machine: the ranks of each probe are forked from one warm server."""

    def __init__(self, setup: ProbeSetup, make_job: MakeJob = probe_job) -> None:
        """Create the token file if it does not exist yet, and start the fork server, which warms up meanwhile."""
        self._setup = setup
        self._make_job = make_job
        setup.work_folder.mkdir(parents=True, exist_ok=True)
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)
        self._running: dict[str, Watch] = {}
        self._offloaded: set[Path] = set()
        self._stuck: list[psutil.Process] = []
        self._waiting: dict[str, tuple[ProbeOrder, float]] = {}  # for stuck ranks to end, and since when
        self._client = self._start_server()

    def _start_server(self) -> ForkClient:
        return ForkClient(self._setup.work_folder / SERVER_LOG, rank_environment(self._setup), self._setup.engines)

    def start(self, order: ProbeOrder) -> None:
        """Fork the ranks of one probe, once no killed rank of an earlier one is left."""
        self._waiting[order.token] = order, time.monotonic()
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start the orders that wait; raise `NodesUnavailable` if one has waited for `STUCK_S`."""
        self._stuck = running(self._stuck)
        if not self._stuck:
            for order, _ in self._waiting.values():
                self._fork(order)
            self._waiting.clear()
        elif any(time.monotonic() - since_s > STUCK_S for _, since_s in self._waiting.values()):
            raise cannot_be_ended(self._stuck)

    def _fork(self, order: ProbeOrder) -> None:
        job = write_job(order, self._make_job(self._setup, order.recipe, order.run_folder, self.tokens), self._setup)
        self._running[order.token] = Watch(order, self._setup.probe)
        ranks = Ranks.all_of(order.recipe.devices)
        scratch = disk_folder(self._setup, order.recipe, order.run_folder)
        self._client.start(order.token, job=job, ranks=ranks, logs=order.run_folder, scratch=scratch)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running probes for up to `timeout_s`, or until one of them has ended.

        Raises `FrontrunnerError` if the fork server cannot be started, and `NodesUnavailable` if killed ranks have
        kept orders waiting for too long.
        """
        self._start_waiting()
        waited_s = 0.0
        while True:
            poll_s = min(POLL_S, timeout_s - waited_s)
            for report in self._client.reports(max(0.0, poll_s)):
                self._handle(report)
            waited_s += poll_s
            for probe in self._running.values():
                for pid in probe.look():
                    kill_rank(pid)
            ended = [token for token, probe in self._running.items() if probe.has_ended]
            if ended or waited_s >= timeout_s:
                return [self._conclude(self._running.pop(token)) for token in ended]

    def _handle(self, report: Report) -> None:
        if isinstance(report, ServerLost):
            for probe in self._running.values():
                probe.lost = "the fork server ended, and the ranks with it"
            self._client.close()
            self._client = self._start_server()
        elif report.token not in self._running:
            return  # a rank that ended after its probe was given up
        elif isinstance(report, RanksStarted):
            self._running[report.token].began(report.pids)
        elif isinstance(report, RankExited):
            self._running[report.token].rank_ended(report.rank, report.status)

    def _conclude(self, probe: Watch) -> Finished:
        self._remove_offloaded(probe.order)
        if probe.lost is None:
            for pid in probe.unended:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._stuck.append(psutil.Process(pid))
        return conclude(probe, self._setup, log=self._setup.work_folder / SERVER_LOG if probe.lost else None)

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for another's ranks to end."""
        return self._waiting.pop(token, None) is not None

    def progress(self, token: str) -> Progress | None:
        """Return phase and steps of a running probe; `QUEUED` for one that waits for another's ranks to end."""
        if token in self._waiting:
            return Progress(phase=QUEUED, steps_done=0, steps_total=self._setup.probe.most_steps)
        probe = self._running.get(token)
        return None if probe is None else probe.progress

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or what its ranks had finished measuring when their driver died."""
        self._remove_offloaded(order)
        return harvest(order, self._setup)

    def close(self) -> None:
        """Kill what still runs and end the fork server."""
        for probe in self._running.values():
            for pid in probe.kill():
                kill_rank(pid)
        self._client.close()
        for probe in self._running.values():
            self._remove_offloaded(probe.order)
        for folder in self._offloaded:  # again: ranks that died late may have written to theirs
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_offloaded(self, order: ProbeOrder) -> None:
        folder = disk_folder(self._setup, order.recipe, order.run_folder)
        if folder is not None:
            self._offloaded.add(folder)
            shutil.rmtree(folder, ignore_errors=True)


def rank_environment(setup: ProbeSetup) -> dict[str, str]:
    """Return the environment of ranks on one machine: one thread each, and on CPU the loopback interface.

    DeepSpeed gets the name of its accelerator, so that the fork server need not touch one to find it.
    """
    environment = {"OMP_NUM_THREADS": "1"}
    if "deepspeed" in setup.engines:
        environment["DS_ACCELERATOR"] = TORCH_DEVICES[setup.problem.cluster.backend]
    if setup.problem.cluster.backend == "cpu":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment
