"""Probes in flight: their deadlines, the ends of their ranks, and their outcomes, on disk before
they are reported.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from frontrunner.evaluators.probe import TORCH_DEVICES, processes
from frontrunner.evaluators.probe.classify import Evidence, Verdict, classify
from frontrunner.evaluators.probe.corpus import corpus
from frontrunner.evaluators.probe.files import is_disk_full, tail, why_disk_full, write_text
from frontrunner.evaluators.probe.fork_server import ForkClient, RanksStarted, ServerLost
from frontrunner.evaluators.probe.job import (
    MakeJob,
    disk_folder,
    probe_job,
    why_not_trained,
    with_best,
)
from frontrunner.evaluators.probe.measure import measurement, nodes_used, tokens_per_step
from frontrunner.evaluators.probe.run_folder import MEETING, RunFolder, StepCounter
from frontrunner.evaluators.protocol import (
    QUEUED,
    Evaluator,
    Finished,
    ProbeOrder,
    ProbeSetup,
    Progress,
)
from frontrunner.evaluators.trainer.job import Job
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    refuse_unstorable,
)

STUCK_S = 60.0
"""How long a probe waits for killed ranks of another that do not end; the campaign is paused
then.
"""


class Watch(ABC):
    """One probe in flight: `overdue` is the deadline that passed, `lost` what ended and took the
    ranks along.

    `is_cut`: the machine was taken away meanwhile.
    """

    is_cut = False

    def __init__(self, order: ProbeOrder, setup: ProbeSetup) -> None:
        self.order = order
        self.setup = setup
        self.folder = RunFolder(order.run_folder)
        self.overdue: tuple[FailureKind, str] | None = None
        self.lost: str | None = None
        self.lost_log: Path | None = None
        self.began_s: float | None = None
        self.progressed_s = 0.0
        self._oom_kills_before = processes.kernel_oom_kills()

    @abstractmethod
    def look(self) -> bool:
        """Note progress, end what is overdue, and return whether the probe has ended."""

    @abstractmethod
    def end(self) -> None:
        """End the probe's processes; return at once."""

    @abstractmethod
    def outcome(self) -> Outcome:
        """Return the outcome of a probe that has ended."""

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """Return phase and steps."""

    def begin(self) -> None:
        """Count deadlines from now on."""
        self.began_s = self.progressed_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the time since the start; 0 before."""
        return 0.0 if self.began_s is None else time.monotonic() - self.began_s

    @property
    def node_seconds(self) -> float:
        """Return what the probe has spent."""
        return self.seconds * nodes_used(self.order.recipe, self.setup.problem)

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory since the order, on the whole
        machine.
        """
        return processes.kernel_oom_kills() - self._oom_kills_before

    def find_overdue(
        self, steps_done: int, missing: str = "progress"
    ) -> tuple[FailureKind, str] | None:
        """Return the deadline that has passed, as a kind of failure and a message, or None."""
        settings, now = self.setup.probe, time.monotonic()
        if self.began_s is None:
            return None
        if now - self.progressed_s > settings.step_deadline_s:
            limit = f"probe.step_deadline_s = {settings.step_deadline_s:g} s"
            return FailureKind.HUNG, f"no {missing} within {limit}, after {steps_done} steps"
        if now - self.began_s > settings.deadline_s:
            limit = f"probe.deadline_s = {settings.deadline_s:g} s"
            return (
                FailureKind.TOO_SLOW,
                f"{steps_done} of at most {settings.most_steps} steps within {limit}",
            )
        return None


AnyWatch = TypeVar("AnyWatch", bound=Watch)


class WatchedProbes(Evaluator, Generic[AnyWatch]):
    """Base of evaluators whose probes take time: `_running` are those in flight, by token."""

    _poll_s = 0.1

    def __init__(self, setup: ProbeSetup) -> None:
        self._setup = setup
        self._running: dict[str, AnyWatch] = {}
        setup.work_folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def _poll(self, timeout_s: float) -> None:
        """Wait for up to `timeout_s`, and start or take note of whatever there is."""

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running probes for up to `timeout_s`, or until one of them has ended."""
        end_s = time.monotonic() + timeout_s
        while True:
            self._poll(max(0.0, min(self._poll_s, end_s - time.monotonic())))
            ended = [token for token, watch in self._running.items() if watch.look()]
            if ended or time.monotonic() >= end_s:
                return [self._conclude(self._running.pop(token)) for token in ended]

    def _conclude(self, watch: AnyWatch) -> Finished:
        watch.folder.remove_unfinished()
        outcome = written(watch.folder, watch.outcome())
        return Finished(token=watch.order.token, outcome=outcome, is_cut=watch.is_cut)

    def progress(self, token: str) -> Progress | None:
        """Return phase and steps of a running probe."""
        return self._running[token].progress if token in self._running else None


class QueuedProbes(WatchedProbes[AnyWatch]):
    """Base of evaluators whose orders wait in them until they can start."""

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__(setup)
        self._waiting: dict[str, tuple[ProbeOrder, float]] = {}  # and since when
        self._refused: list[Finished] = []

    def start(self, order: ProbeOrder) -> None:
        """Accept an order."""
        self._waiting[order.token] = order, time.monotonic()

    def _refuse(self, order: ProbeOrder, kind: FailureKind, message: str) -> None:
        """End an order that is not started; the next call of `finished` returns it."""
        order.run_folder.mkdir(parents=True, exist_ok=True)
        outcome = written(RunFolder(order.run_folder), Failure(kind=kind, message=message))
        self._refused.append(Finished(token=order.token, outcome=outcome))

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running probes for up to `timeout_s`, or until one of them has ended."""
        refused, self._refused = self._refused, []
        return [*refused, *super().finished(0.0 if refused else timeout_s)]

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits."""
        return self._waiting.pop(token, None) is not None

    def progress(self, token: str) -> Progress | None:
        """Return phase and steps of a probe; one that waits has spent nothing."""
        if token in self._waiting:
            return Progress(
                phase=QUEUED,
                steps_done=0,
                steps_total=self._setup.probe.most_steps,
                node_seconds=0.0,
            )
        return super().progress(token)


class RankedProbes(QueuedProbes[AnyWatch]):
    """Base of evaluators that train by our own ranks."""

    def __init__(self, setup: ProbeSetup) -> None:
        super().__init__(setup)
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)

    def start(self, order: ProbeOrder) -> None:
        """Accept an order, unless the built-in trainer cannot run its recipe."""
        reason = why_not_trained(order.recipe, self._setup.problem)
        if reason is None:
            super().start(order)
        else:
            self._refuse(order, FailureKind.ILLEGAL_FOR_ENGINE, reason.text)

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or what its ranks had finished measuring when their driver
        died.
        """
        return harvest(order, self._setup)


class RankWatch(Watch):
    """Follows the ranks of a probe; `killed` holds those that were killed on purpose, `pids` the
    ids of local ones.

    `written_to` is the folder of what they write beside their logs.
    """

    def __init__(self, order: ProbeOrder, setup: ProbeSetup) -> None:
        super().__init__(order, setup)
        self.written_to = self.folder
        self.statuses: dict[int, int] = {}
        self.killed: set[int] = set()
        self.pids: tuple[int, ...] = ()
        self._steps = StepCounter(order.run_folder)
        self._failed_s: float | None = None
        self._killed_s: float | None = None

    def rank_ended(self, rank: int, status: int) -> None:
        """Note how a rank ended."""
        self.statuses[rank] = status
        if status != 0 and self._failed_s is None:
            self._failed_s = time.monotonic()

    @property
    def have_all_ended(self) -> bool:
        """Return whether every rank has."""
        return len(self.statuses) == self.order.recipe.devices

    @property
    def has_ended(self) -> bool:
        """Return whether every rank has, or those that are left cannot be killed."""
        cannot_end = (
            self._killed_s is not None
            and time.monotonic() - self._killed_s > processes.KILL_GRACE_S
        )
        return cannot_end or self.lost is not None or self.have_all_ended

    @property
    def unended(self) -> list[int]:
        """Return the process ids of the ranks that were killed on purpose and have not ended."""
        if self.lost is not None:
            return []
        return [
            pid
            for rank, pid in enumerate(self.pids)
            if rank in self.killed and rank not in self.statuses
        ]

    @property
    def progress(self) -> Progress:
        """Return phase and steps."""
        phase = (
            "starting"
            if self.began_s is None
            else "stepping"
            if self._steps.is_built
            else "building"
        )
        return Progress(
            phase=phase,
            steps_done=self._steps.steps_done,
            steps_total=self.setup.probe.most_steps,
            node_seconds=self.node_seconds,
        )

    def look(self) -> bool:
        """Note progress, kill the ranks if a deadline has passed or one of them has failed."""
        if self.began_s is not None:
            if self._steps.advance():
                self.progressed_s = time.monotonic()
            self.overdue = self.overdue or self.find_overdue(self._steps.steps_done)
            failed = (
                self._failed_s is not None
                and time.monotonic() - self._failed_s > processes.PEER_GRACE_S
            )
            if self.overdue is not None or failed:
                self.end()
        return self.has_ended

    def end(self) -> None:
        """Kill the ranks that have not ended."""
        self.killed.update(set(range(self.order.recipe.devices)) - self.statuses.keys())
        self._killed_s = self._killed_s or time.monotonic()
        for pid in self.unended:
            processes.kill_rank(pid)

    def outcome(self) -> Outcome:
        """Return what the ranks measured if all of them ended well, else why not."""
        outcome = _from_result(self.folder, self.order, self.setup, self.node_seconds)
        has_failed = self._failed_s is not None or self.lost is not None
        if outcome is not None and not (isinstance(outcome, Measurement) and has_failed):
            return outcome
        verdict, log = self.verdict()
        message = verdict.message
        if left := ", ".join(map(str, self.unended)):
            message += (
                f"; killed, and not ended within {processes.KILL_GRACE_S:g} s: process {left}"
            )
        failure = Failure(kind=verdict.kind, message=message, node_seconds=self.node_seconds)
        return with_log(failure, log)

    def verdict(self) -> tuple[Verdict, Path]:
        """Return why the ranks ended without a result, and the log that explains it."""
        ranks = range(self.order.recipe.devices)
        evidence = Evidence(
            statuses=self.statuses,
            errors=self.written_to.errors(len(ranks)),
            log_tails={rank: tail(self.folder.log(rank)) for rank in ranks},
            overdue=self.overdue,
            killed_by_us=frozenset(self.killed),
            kernel_oom_kills=self.kernel_oom_kills,
            lost=self.lost,
            disk_full=why_disk_full(self.written_to.path),
        )
        found = classify(evidence)
        return found, (self.lost and self.lost_log) or self.folder.log(found.rank)


def write_job(order: ProbeOrder, job: Job, setup: ProbeSetup) -> Path:
    """Write the ranks' job to the order's run folder, with the step time that an adaptive probe has
    to beat.
    """
    order.run_folder.mkdir(parents=True, exist_ok=True)
    (order.run_folder / MEETING).unlink(missing_ok=True)
    if order.best_tokens_per_s is not None:
        job = with_best(job, tokens_per_step(order.recipe, setup.problem) / order.best_tokens_per_s)
    path = RunFolder(order.run_folder).job
    write_text(path, job.to_json())
    return path


def harvest(order: ProbeOrder, setup: ProbeSetup) -> Outcome | None:
    """Return the outcome on disk, or what the order's ranks had finished measuring when their
    driver died.
    """
    folder = RunFolder(order.run_folder)
    folder.remove_unfinished()
    if (outcome := folder.outcome()) is not None:
        return outcome
    node_seconds = folder.busy_seconds() * nodes_used(order.recipe, setup.problem)
    outcome = _from_result(folder, order, setup, node_seconds)
    return None if outcome is None else written(folder, outcome)


def with_log(failure: Failure, log: Path) -> Failure:
    """Return the failure with the log that explains it."""
    return replace(failure, log_tail=tail(log), log_path=str(log))


def written(folder: RunFolder, outcome: Outcome) -> Outcome:
    """Write the outcome down where there is room for it.

    A crash on a full disk is not the recipe's fault, and neither is what became of a probe whose
    folder was removed meanwhile: both are lost.
    """
    try:
        folder.write_outcome(outcome)
    except FileNotFoundError:
        message = (
            f"its run folder {folder.path} was removed while it ran; keep what cleans that file"
            " system away from it, or set store.run_folder"
        )
        return Failure(kind=FailureKind.LOST, message=message, node_seconds=outcome.node_seconds)
    except OSError as error:
        if not is_disk_full(error):
            raise
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.CRASHED:
            message = f"{outcome.message}; its run folder is full: {error}"
            return replace(outcome, kind=FailureKind.LOST, message=message)
    return outcome


def _from_result(
    folder: RunFolder, order: ProbeOrder, setup: ProbeSetup, node_seconds: float
) -> Outcome | None:
    """Return the outcome that follows from `result.json`; None where it is missing, damaged or
    another attempt's.
    """
    try:
        result = folder.own("result.json")
        if result is None:
            return None
        outcome = measurement(result, order.recipe, setup.problem, node_seconds)
        refuse_unstorable(outcome)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError):
        return None
    if isinstance(outcome, Failure):
        return with_log(outcome, folder.log(0))
    if outcome.telemetry is None:
        return outcome
    telemetry = replace(outcome.telemetry, foreign_limit=setup.probe.foreign_load_limit)
    return replace(outcome, telemetry=telemetry)


class TrainingProbe(RankedProbes[RankWatch]):
    """The `Evaluator` that trains on this machine: the ranks of each probe are forked from one warm
    server.
    """

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
        self._stuck = processes.running(self._stuck)
        if self._stuck:
            if any(time.monotonic() - since_s > STUCK_S for _, since_s in self._waiting.values()):
                raise processes.cannot_be_ended(self._stuck)
            return
        for order, _ in self._waiting.values():
            job = self._make_job(self._setup, order.recipe, order.run_folder, self.tokens)
            path = write_job(order, job, self._setup)
            self._running[order.token] = RankWatch(order, self._setup)
            scratch = disk_folder(self._setup, order.recipe, order.run_folder)
            self._server.start(
                order.token, job=path, world_size=order.recipe.devices, scratch=scratch
            )
        self._waiting.clear()

    def _poll(self, timeout_s: float) -> None:
        self._start_waiting()
        for report in self._server.reports(timeout_s):
            if isinstance(report, ServerLost):
                for watch in self._running.values():
                    watch.lost, watch.lost_log = (
                        "the fork server ended, and the ranks with it",
                        self._log,
                    )
                self._server.close()
                self._start_server()
            elif report.token not in self._running:
                continue  # a rank that ended after its probe was given up
            elif isinstance(report, RanksStarted):
                self._running[report.token].pids = report.pids
                self._running[report.token].begin()
            else:
                self._running[report.token].rank_ended(report.rank, report.status)

    def _conclude(self, watch: RankWatch) -> Finished:
        self._remove_offloaded(watch.order)
        for pid in watch.unended:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._stuck.append(psutil.Process(pid))
        return super()._conclude(watch)

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """See `harvest`."""
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
    """Return the environment of ranks on one machine; with DS_ACCELERATOR the fork server need not
    touch a device.
    """
    environment = {"OMP_NUM_THREADS": "1"}
    if "deepspeed" in setup.engines:
        environment["DS_ACCELERATOR"] = TORCH_DEVICES[setup.problem.cluster.backend]
    if setup.problem.cluster.backend == "cpu":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment
