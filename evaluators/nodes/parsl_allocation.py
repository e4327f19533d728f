"""Nodes through Parsl: those of the driver's own job, and those requested from a batch system."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.evaluators.nodes.backends import LOGGER, Backend, HeldAllocation
from frontrunner.evaluators.nodes.batch import make_executor, node_names, run_step
from frontrunner.evaluators.nodes.batch_jobs import seconds_left, why_ended
from frontrunner.evaluators.nodes.environment import Allocation
from frontrunner.evaluators.nodes.settings import (
    SCHEDULER_LAUNCHERS,
    DispatchSettings,
    NodeSource,
    require_scheduler,
)
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value

if TYPE_CHECKING:
    from parsl.executors import HighThroughputExecutor
    from parsl.jobs.states import JobStatus

POLL_S = 0.2
STATUS_S = 4.0
"""Seconds between two queries of the batch system and of Parsl's workers once the nodes are ready;
before that, a quarter of it.
"""
THIS_MACHINE = "this-machine"
"""Scheduler of an allocation that is this machine alone, without any job."""


class ParslAllocation(HeldAllocation):
    """An allocation of a batch system, or of the driver's own job, through Parsl."""

    def _run(self) -> None:
        executor: HighThroughputExecutor | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            executor = make_executor(self._source, self.name, self._folder)
            executor.start()  # type: ignore[no-untyped-call]
            executor.scale_out_facade(1)
            self.job_id = executor.blocks_to_job_id.get("0")
            self.queued_s = time.monotonic()
            self._serve(executor)
        except (
            Exception
        ) as error:  # Parsl may raise anything: the driver gets it, and the log its traceback
            LOGGER.exception("allocation %s", self.name)
            self._note_end(f"{self.name} could not be kept: {type(error).__name__}: {error}")
        finally:
            self._note_end(f"{self.name} was given back")
            if executor is not None:
                self._give_back(executor)

    def _give_back(self, executor: HighThroughputExecutor) -> None:
        jobs = list(executor.blocks_to_job_id.values())
        try:
            if jobs and executor.provider is not None:
                executor.provider.cancel(jobs)
        except Exception:  # the batch system ends it at its walltime in any case
            LOGGER.exception("giving back allocation %s", self.name)
        try:
            executor.shutdown()
        except Exception:
            LOGGER.exception("shutting down the executor of allocation %s", self.name)

    def _serve(self, executor: HighThroughputExecutor) -> None:
        looked_s = -STATUS_S
        options = list(self._source.settings.launcher_options)
        while not self._is_unwanted.is_set() and self.ended_s is None:
            with contextlib.suppress(queue.Empty):
                placed = self._requests.get(timeout=POLL_S)
                placed.task = executor.submit(
                    run_step, {}, str(placed.step), self._source.launcher, options
                )
            if time.monotonic() - looked_s >= (
                STATUS_S if self.ready_s is not None else STATUS_S / 4
            ):
                looked_s = time.monotonic()
                self._check(executor)

    def _check(self, executor: HighThroughputExecutor) -> None:
        status = executor.status().get("0")
        workers = [manager for manager in executor.connected_managers() if manager["active"]]
        if status is not None and status.terminal:
            self._note_end(self._why(status))
        elif workers and self._names is None:
            self._names = executor.submit(node_names, {})
        elif workers and self.ready_s is None and self._names is not None and self._names.done():
            self.hosts = self._names.result()
            if self._source.held is None:  # workers may report minutes after the job began
                asked_s, left = (
                    time.monotonic(),
                    seconds_left(self._source.scheduler, self.job_id or ""),
                )
                self.end_s = asked_s + (
                    self._source.settings.walltime_s - STATUS_S if left is None else left
                )
            self.ready_s = time.monotonic()
        elif self.ready_s is not None and not workers:
            self._note_end(f"{self._title} has lost contact with its first node")

    @property
    def _title(self) -> str:
        is_known = self.job_id is not None and self._source.held is None
        return f"allocation {self.job_id}" if is_known else "the allocation"

    def _why(self, status: JobStatus) -> str:
        if self.job_id is None:  # the request was refused
            message = status.message or "no answer"
            return " ".join((message.partition("stderr=")[2] or message).split())
        reason = (
            why_ended(self._source.scheduler, self.job_id) if self._source.held is None else None
        )
        reason = reason or status.message or str(status.state.name).lower()
        errors = (status.stderr_summary or "").strip().splitlines() if self.ready_s is None else []
        return f"{self._title} has ended: {reason}" + (f": {errors[-1]}" if errors else "")


class HeldJob(Backend):
    """The nodes of the job that the driver runs in; without one, this machine alone."""

    package, extra, title = "parsl", "hpc", "Parsl"
    has_plain_paths = True

    def source(
        self, settings: DispatchSettings, cluster: Cluster, job: Allocation | None
    ) -> NodeSource:
        """Return all nodes of the job."""
        if job is None and cluster.nodes > 1:
            raise InvalidInput(
                'dispatch.backend = "allocation": this process is in no job whose nodes are known',
                hint="start it within salloc, qsub -I or a batch script",
            )
        job = job or Allocation(
            scheduler=THIS_MACHINE, job_id=str(os.getpid()), nodes=(socket.gethostname(),)
        )
        if len(job.nodes) < cluster.nodes:
            expected = f"at most the {len(job.nodes)} of {job.scheduler} job {job.job_id}"
            raise bad_value("cluster.nodes", cluster.nodes, expected)
        launcher = settings.launcher or SCHEDULER_LAUNCHERS.get(job.scheduler, "none")
        if launcher == "none" and cluster.nodes > 1:
            raise bad_value(
                "dispatch.launcher", launcher, "a launcher for several nodes, as srun or mpiexec"
            )
        left_s = seconds_left(job.scheduler, job.job_id)
        return NodeSource(
            backend="allocation",
            scheduler=job.scheduler,
            nodes=len(job.nodes),
            allocations=1,
            launcher=launcher,
            settings=settings,
            held=job,
            end_s=None if left_s is None else time.monotonic() + left_s,
        )

    def request(self, source: NodeSource, name: str, folder: Path) -> HeldAllocation:
        """Start Parsl's workers on the nodes of one job."""
        return ParslAllocation(source, name, folder)


class BatchSystem(HeldJob):
    """Nodes requested from a batch system."""

    def source(
        self, settings: DispatchSettings, cluster: Cluster, job: Allocation | None
    ) -> NodeSource:
        """Return how nodes are requested."""
        del job
        scheduler = require_scheduler(settings).scheduler or ""
        return NodeSource(
            backend="parsl",
            scheduler=scheduler,
            nodes=settings.nodes_per_allocation or cluster.nodes,
            allocations=settings.allocations or 1,
            launcher=settings.launcher or SCHEDULER_LAUNCHERS[scheduler],
            settings=settings,
        )


HELD_JOB, BATCH_SYSTEM = HeldJob(), BatchSystem()
