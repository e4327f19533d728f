"""One allocation and the thread that keeps it: asks for its nodes, starts steps in it, notes its end, gives it back.

Batch systems and Parsl answer in seconds, or minutes; a driver must not wait for them. All talk with them is in this
thread; the driver only reads what it has noted, and leaves wishes.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.evaluators.cluster.executors import make_executor
from frontrunner.evaluators.cluster.launching import run_step
from frontrunner.evaluators.cluster.schedulers import seconds_left, why_ended
from frontrunner.evaluators.cluster.sources import NodeSource

if TYPE_CHECKING:
    from parsl.executors import MPIExecutor
    from parsl.jobs.states import JobStatus

LOGGER = logging.getLogger("parsl.frontrunner")
"""Into the log of Parsl, whose trouble it is; the terminal gets one sentence."""
WISH_S = 0.2
STATUS_S = 4.0
"""How often the batch system is asked for news, and Parsl for its workers."""


class HeldAllocation:
    """An allocation from the request for it to its end.

    The driver may read at any time: `asked_s`, and once they are known `job_id` and `queued_s` when the batch system
    had taken the request, `ready_s` when the workers had reported, `ended_s` when the allocation was found to have
    ended, and `why`, in words. Times are monotonic.
    """

    def __init__(self, source: NodeSource, name: str, folder: Path) -> None:
        self.name = name
        self.nodes = source.nodes
        self.asked_s = time.monotonic()
        self.job_id: str | None = None
        self.queued_s: float | None = None
        self.ready_s: float | None = None
        self.ended_s: float | None = None
        self.why = ""
        self._told_end_s: float | None = None
        self._source = source
        self._folder = folder
        self._wishes: queue.SimpleQueue[tuple[Path, int, Future[int]]] = queue.SimpleQueue()
        self._under_way: list[Future[int]] = []
        self._is_unwanted = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"frontrunner-{name}", daemon=True)
        self._thread.start()

    @property
    def end_s(self) -> float | None:
        """When its time is up, by the monotonic clock; None where nobody knows, or it has not begun."""
        if self._source.held is not None:
            left = self._source.seconds_left
            return None if left is None else self.asked_s + left
        if self._told_end_s is not None:
            return self._told_end_s
        if self.ready_s is None or self._source.walltime_s is None:
            return None
        # It began some time before its workers were seen, for how long only the batch system could tell.
        return self.ready_s - STATUS_S + self._source.walltime_s

    def start(self, step: Path, nodes: int) -> Future[int]:
        """Start a step on nodes that are free; the future has its launcher's exit status, or what went wrong."""
        future: Future[int] = Future()
        self._under_way.append(future)
        self._wishes.put((step, nodes, future))
        return future

    def give_back(self) -> None:
        """Have it ended; returns at once."""
        self._is_unwanted.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has been given back; whether it was in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _keep(self) -> None:
        executor: MPIExecutor | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            executor = make_executor(self._source, self.name, self._folder)
            executor.start()  # type: ignore[no-untyped-call]
            executor.scale_out_facade(1)
            self.job_id = executor.blocks_to_job_id.get("0")
            self.queued_s = time.monotonic()
            self._serve(executor)
        except Exception as error:  # whatever Parsl met: the driver is told, and the log has the whole of it
            LOGGER.exception("allocation %s", self.name)
            self._note_end(f"{self.name} could not be kept: {type(error).__name__}: {error}")
        finally:
            self._note_end(f"{self.name} was given back")
            try:
                if executor is not None:
                    _give_back(executor)
            except Exception:  # the batch system ends it at its walltime in any case
                LOGGER.exception("giving back allocation %s", self.name)

    def _serve(self, executor: MPIExecutor) -> None:
        looked_s = -STATUS_S
        while not self._is_unwanted.is_set() and self.ended_s is None:
            with contextlib.suppress(
                queue.Empty
            ):  # no wish for a while is no fault: the nodes are looked at in any case
                step, nodes, future = self._wishes.get(timeout=WISH_S)
                _submit(executor, step, nodes, self._source, future)
            if time.monotonic() - looked_s >= (STATUS_S if self.ready_s is not None else STATUS_S / 4):
                looked_s = time.monotonic()
                self._look(executor)

    def _look(self, executor: MPIExecutor) -> None:
        status = executor.status().get("0")
        workers = [manager for manager in executor.connected_managers() if manager["active"]]
        if status is not None and status.terminal:
            self._note_end(self._words(status))
        elif workers and self.ready_s is None:
            self._ask_for_its_end()
            self.ready_s = time.monotonic()
        elif self.ready_s is not None and not workers:
            self._note_end(f"{self._called} has lost touch with its first node")

    def _ask_for_its_end(self) -> None:
        """Workers may take minutes to report, of a walltime that has begun."""
        if self._source.held is not None or self.job_id is None:
            return
        asked_s = time.monotonic()
        left = seconds_left(self._source.scheduler, self.job_id)
        self._told_end_s = None if left is None else asked_s + left

    @property
    def _called(self) -> str:
        if self.job_id is None or self._source.held is not None:
            return "the allocation"
        return f"allocation {self.job_id}"

    def _words(self, status: JobStatus) -> str:
        """What there is to say of an allocation that has ended, the batch system's own words first."""
        if self.job_id is None:  # it was never had
            message = status.message or "no answer"
            return " ".join((message.partition("stderr=")[2] or message).split())
        said = why_ended(self._source.scheduler, self.job_id) if self._source.held is None else None
        said = said or status.message or str(status.state.name).lower()
        errors = (status.stderr_summary or "").strip().splitlines() if self.ready_s is None else []
        return f"{self._called} has ended: {said}" + (f": {errors[-1]}" if errors else "")

    def _note_end(self, why: str) -> None:
        """Keep the first reason, and let whoever waits for a step of it know."""
        if self.ended_s is None:
            self.why = why
            self.ended_s = time.monotonic()
        for future in self._under_way:
            _settle(future, ConnectionError(self.why))


def _submit(executor: MPIExecutor, step: Path, nodes: int, source: NodeSource, future: Future[int]) -> None:
    resources = {"num_nodes": nodes, "ranks_per_node": 1}
    options = list(source.settings.launcher_options)
    task = executor.submit(run_step, resources, str(step), source.launcher, options)

    task.add_done_callback(lambda done: _settle(future, done.exception() or done.result()))


def _settle(future: Future[int], outcome: BaseException | int) -> None:
    """Settle a future that Parsl's thread and the keeper's may both want to settle: the first counts."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _give_back(executor: MPIExecutor) -> None:
    jobs = list(executor.blocks_to_job_id.values())
    if jobs and executor.provider is not None:
        executor.provider.cancel(jobs)
    executor.shutdown()
