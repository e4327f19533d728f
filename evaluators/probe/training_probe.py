"""The training probe: a short real training run of a recipe, started warm, watched and ended from outside."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.probe.concluding import conclude, harvested, write_job
from frontrunner.evaluators.probe.corpus import Corpus, corpus
from frontrunner.evaluators.probe.disk import disk_folder
from frontrunner.evaluators.probe.fork_client import ForkClient, RankExited, Ranks, RanksStarted, Report, ServerLost
from frontrunner.evaluators.probe.jobs import TORCH_DEVICES, probe_job
from frontrunner.evaluators.probe.stragglers import cannot_be_ended, processes, still_running
from frontrunner.evaluators.probe.watch import Watch
from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.spaces.recipe import Recipe

MakeJob = Callable[[ProbeSetup, Recipe, Path, Corpus], dict[str, Any]]
"""What the ranks are asked to do: setup, recipe, run folder and token file to a job."""

POLL_S = 0.1
SERVER_LOG = "fork-server.log"
STUCK_S = 60.0
"""How long a probe waits for ranks of another to end that were killed and did not; the campaign is paused then."""


class TrainingProbe:
    """The `Evaluator` that trains: the ranks of each probe are forked from one warm server."""

    def __init__(self, setup: ProbeSetup, make_job: MakeJob = probe_job) -> None:
        """Make the token file if it is not there yet, and start the fork server, which warms up meanwhile."""
        self._setup = setup
        self._make_job = make_job
        setup.work_folder.mkdir(parents=True, exist_ok=True)
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)
        self._running: dict[str, Watch] = {}
        self._offloaded: set[Path] = set()
        self._stuck: list[psutil.Process] = []
        self._waiting: dict[str, tuple[ProbeOrder, float]] = {}  # for them to end, since when
        self._client = self._start_server()

    def _start_server(self) -> ForkClient:
        return ForkClient(self._setup.work_folder / SERVER_LOG, rank_environment(self._setup), self._setup.engines)

    def start(self, order: ProbeOrder) -> None:
        """Fork the ranks of one probe, once no rank of an earlier one is left that could not be ended."""
        self._waiting[order.token] = order, time.monotonic()
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Raises `NodesUnavailable` where an order has waited for `STUCK_S`."""
        self._stuck = still_running(self._stuck)
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

        Raises `FrontrunnerError` if the fork server cannot be started, and `NodesUnavailable` where ranks that were
        killed have kept orders waiting for too long.
        """
        self._start_waiting()
        waited_s = 0.0
        while True:
            poll_s = min(POLL_S, timeout_s - waited_s)
            for report in self._client.reports(max(0.0, poll_s)):
                self._hear(report)
            waited_s += poll_s
            for probe in self._running.values():
                for pid in probe.look():
                    self._client.kill_rank(pid)
            ended = [token for token, probe in self._running.items() if probe.has_ended]
            if ended or waited_s >= timeout_s:
                return [self._conclude(self._running.pop(token)) for token in ended]

    def _hear(self, report: Report) -> None:
        if isinstance(report, ServerLost):
            for probe in self._running.values():
                probe.lost = "the fork server ended, and the ranks with it"
            self._client.close()
            self._client = self._start_server()
        elif report.token not in self._running:
            return  # a rank that outlived the patience with its probe
        elif isinstance(report, RanksStarted):
            self._running[report.token].began(report.pids)
        elif isinstance(report, RankExited):
            self._running[report.token].rank_ended(report.rank, report.status)

    def _conclude(self, probe: Watch) -> Finished:
        """The outcome, on disk; what the recipe had offloaded there is removed."""
        self._clear(probe.order)
        if probe.lost is None:
            self._stuck += processes(probe.unended)
        log = self._setup.work_folder / SERVER_LOG if probe.lost else None
        return conclude(probe, self._setup, log=log)

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for another's ranks to end."""
        return self._waiting.pop(token, None) is not None

    def progress(self, token: str) -> Progress | None:
        """Phase and steps of a running probe; `QUEUED` for one that waits for another's ranks to end."""
        if token in self._waiting:
            return Progress(phase=QUEUED, steps_done=0, steps_total=self._setup.probe.most_steps)
        probe = self._running.get(token)
        return None if probe is None else probe.progress

    def harvest(self, order: ProbeOrder) -> Measurement | Failure | None:
        """The outcome on disk, or what its ranks had finished measuring when their driver died."""
        self._clear(order)
        return harvested(order, self._setup)

    def close(self) -> None:
        """Kill what still runs and end the fork server."""
        for probe in self._running.values():
            for pid in probe.kill():
                self._client.kill_rank(pid)
        self._client.close()
        for probe in self._running.values():
            self._clear(probe.order)
        for folder in self._offloaded:  # once more: ranks that died late may have written to theirs
            shutil.rmtree(folder, ignore_errors=True)

    def _clear(self, order: ProbeOrder) -> None:
        """Remove what the recipe had offloaded to a disk."""
        folder = disk_folder(self._setup, order.recipe, order.run_folder)
        if folder is not None:
            self._offloaded.add(folder)
            shutil.rmtree(folder, ignore_errors=True)


def rank_environment(setup: ProbeSetup) -> dict[str, str]:
    """Environment of ranks on one machine: one thread each, and on CPU the loopback interface.

    DeepSpeed is told its accelerator, so that the fork server need not touch one to find it.
    """
    environment = {"OMP_NUM_THREADS": "1"}
    if "deepspeed" in setup.engines:
        environment["DS_ACCELERATOR"] = TORCH_DEVICES[setup.problem.cluster.backend]
    if setup.problem.cluster.backend == "cpu":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment
