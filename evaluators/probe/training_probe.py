"""Training probe: a short real training run of a recipe, started warm, watched and ended from outside."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.probe import TORCH_DEVICES
from frontrunner.evaluators.probe.fork_server import ForkClient, RanksStarted, ServerLost
from frontrunner.evaluators.probe.job import Corpus, disk_folder, probe_job
from frontrunner.evaluators.probe.processes import cannot_be_ended, running
from frontrunner.evaluators.probe.watch import RankedProbes, RankWatch, write_job
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup
from frontrunner.results.outcome import Outcome
from frontrunner.spaces.recipe import Recipe

MakeJob = Callable[[ProbeSetup, Recipe, Path, Corpus], dict[str, Any]]

STUCK_S = 60.0
"""How long a probe waits for killed ranks of another that do not end; the campaign is paused then."""


class TrainingProbe(RankedProbes[RankWatch]):
    """The `Evaluator` that trains on this machine: the ranks of each probe are forked from one warm server."""

    def __init__(self, setup: ProbeSetup, make_job: MakeJob = probe_job) -> None:
        super().__init__(setup)
        self._make_job = make_job
        self._stuck: list[psutil.Process] = []
        self._log = setup.work_folder / "fork-server.log"
        self._start_server()

    def _start_server(self) -> None:
        self._server = ForkClient(self._log, rank_environment(self._setup), self._setup.engines)

    def start(self, order: ProbeOrder) -> None:
        """Fork the ranks of one probe, once no killed rank of an earlier one is left."""
        super().start(order)
        self._start_waiting()

    def _start_waiting(self) -> None:
        self._stuck = running(self._stuck)
        if self._stuck:
            if any(time.monotonic() - since_s > STUCK_S for _, since_s in self._waiting.values()):
                raise cannot_be_ended(self._stuck)
            return
        for order, _ in self._waiting.values():
            job = self._make_job(self._setup, order.recipe, order.run_folder, self.tokens)
            path = write_job(order, job, self._setup)
            self._running[order.token] = RankWatch(order, self._setup)
            scratch = disk_folder(self._setup, order.recipe, order.run_folder)
            self._server.start(order.token, job=path, world_size=order.recipe.devices, scratch=scratch)
        self._waiting.clear()

    def _poll(self, timeout_s: float) -> None:
        self._start_waiting()
        for report in self._server.reports(timeout_s):
            if isinstance(report, ServerLost):
                for watch in self._running.values():
                    watch.lost, watch.lost_log = "the fork server ended, and the ranks with it", self._log
                self._server.close()
                self._start_server()
            elif report.token not in self._running:
                continue  # a rank that ended after its probe was given up
            elif isinstance(report, RanksStarted):
                self._running[report.token].ranks_began(report.pids)
            else:
                self._running[report.token].rank_ended(report.rank, report.status)

    def _conclude(self, watch: RankWatch) -> Finished:
        self._remove_offloaded(watch.order)
        for pid in watch.unended:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._stuck.append(psutil.Process(pid))
        return super()._conclude(watch)

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or what its ranks had finished measuring when their driver died."""
        self._remove_offloaded(order)
        return super().harvest(order)

    def close(self) -> None:
        """Kill what still runs and end the fork server."""
        for watch in self._running.values():
            watch.end()
        self._server.close()
        for watch in self._running.values():
            self._remove_offloaded(watch.order)

    def _remove_offloaded(self, order: ProbeOrder) -> None:
        folder = disk_folder(self._setup, order.recipe, order.run_folder)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def rank_environment(setup: ProbeSetup) -> dict[str, str]:
    """Return the environment of ranks on one machine; with DS_ACCELERATOR the fork server need not touch a device."""
    environment = {"OMP_NUM_THREADS": "1"}
    if "deepspeed" in setup.engines:
        environment["DS_ACCELERATOR"] = TORCH_DEVICES[setup.problem.cluster.backend]
    if setup.problem.cluster.backend == "cpu":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment
