"""The built-in trainer: its ranks read a job, write their steps and a result, and are followed by
these files.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from frontrunner.evaluators.nodes.base import Processes, Start
from frontrunner.evaluators.nodes.child_processes import KILL_GRACE_S, PEER_GRACE_S
from frontrunner.evaluators.nodes.fork_server import ProcessKind, ServerSettings
from frontrunner.evaluators.programs.base import Program, Watch, with_log, written
from frontrunner.evaluators.programs.corpus import corpus
from frontrunner.evaluators.programs.jobs import (
    MakeJob,
    disk_folder,
    probe_job,
    why_not_trained,
    with_best,
)
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.runs.classify import Evidence, Verdict, classify
from frontrunner.evaluators.runs.files import tail, why_disk_full, write_text
from frontrunner.evaluators.runs.measure import measurement, nodes_used, tokens_per_step
from frontrunner.evaluators.runs.run_folder import MEETING, RunFolder, StepCounter
from frontrunner.evaluators.runs.settings import TORCH_DEVICES
from frontrunner.evaluators.trainer.job import Job
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    refuse_unstorable,
)


class RankProgram(Program):
    """The built-in trainer, as a probe or a profile: `make_job` says which."""

    def __init__(self, setup: ProbeSetup, make_job: MakeJob = probe_job) -> None:
        super().__init__(setup)
        self._make_job = make_job
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)

    @property
    def server(self) -> ServerSettings:
        """Return what the servers have that fork the ranks."""
        return rank_server(self.setup)

    def why_refused(self, order: ProbeOrder) -> Failure | None:
        """Return why the trainer cannot run a recipe, or None."""
        reason = why_not_trained(order.recipe, self.setup.problem)
        if reason is None:
            return None
        return Failure(kind=FailureKind.ILLEGAL_FOR_ENGINE, message=reason.text)

    def prepare(self, order: ProbeOrder) -> Start:
        """Write the job of the ranks."""
        job = self._make_job(self.setup, order.recipe, order.run_folder, self.tokens)
        write_job(order, job, self.setup)
        return Start(kind=ProcessKind.RANKS, scratch=self.scratch(order))

    def watch(self, order: ProbeOrder, processes: Processes) -> RankWatch:
        """Follow the ranks."""
        return RankWatch(order, self.setup, processes)

    def scratch(self, order: ProbeOrder) -> Path | None:
        """Return the folder for what the ranks offload to a disk, or None."""
        return disk_folder(self.setup, order.recipe, order.run_folder)

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome on disk, or what the ranks had finished measuring when their driver
        died.
        """
        return harvest(order, self.setup)


class RankWatch(Watch):
    """Follows the ranks of an order; `written_to` is the folder of what they write beside their
    logs.
    """

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, processes: Processes) -> None:
        super().__init__(order, setup, processes)
        self.written_to = self.folder
        self._steps = StepCounter(order.run_folder)
        self._failed_s: float | None = None
        self._killed_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether every rank has, or those that are left cannot be; not before it is known
        who ended them.
        """
        processes = self.processes
        if processes.is_interrupted and not processes.have_succeeded:
            return self.lost is not None
        cannot_end = self._killed_s is not None and time.monotonic() - self._killed_s > KILL_GRACE_S
        return cannot_end or self.lost is not None or not processes.running

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
        """Note progress, and have the ranks end if a deadline has passed or one of them has
        failed.
        """
        processes = self.processes
        processes.read()
        self.note_begin()
        if any(processes.statuses.values()):
            self._failed_s = self._failed_s or time.monotonic()
        if self.began_s is not None:
            if self._steps.advance():
                self.progressed_s = time.monotonic()
            self.overdue = self.overdue or self.find_overdue(self._steps.steps_done)
            failed = self._failed_s is not None and time.monotonic() - self._failed_s > PEER_GRACE_S
            if self.overdue is not None or failed:
                self.end()
        if self.lost is None and not processes.have_succeeded:
            self.lost = processes.why_lost(
                have_begun=self.began_s is not None, have_ended=not processes.running
            )
        return self.has_ended

    def end(self) -> None:
        """Have the ranks that are left end."""
        self._killed_s = self._killed_s or time.monotonic()
        super().end()

    def outcome(self) -> Outcome:
        """Return what the ranks measured if all of them ended well, else why not."""
        outcome = _from_result(self.folder, self.order, self.setup, self.node_seconds)
        has_failed = self._failed_s is not None or self.lost is not None
        if outcome is not None and not (isinstance(outcome, Measurement) and has_failed):
            return outcome
        verdict, log = self.verdict()
        message = verdict.message
        if left := ", ".join(map(str, self.processes.stuck_pids)):
            message += f"; killed, and not ended within {KILL_GRACE_S:g} s: process {left}"
        failure = Failure(kind=verdict.kind, message=message, node_seconds=self.node_seconds)
        return with_log(failure, log)

    def verdict(self) -> tuple[Verdict, Path]:
        """Return why the ranks ended without a result, and the log that explains it."""
        processes, ranks = self.processes, range(self.processes.count)
        evidence = Evidence(
            statuses=processes.statuses,
            errors=self.written_to.errors(len(ranks)),
            log_tails={rank: tail(self.folder.log(rank)) for rank in ranks},
            overdue=self.overdue,
            killed_by_us=frozenset(processes.killed),
            kernel_oom_kills=processes.kernel_oom_kills,
            lost=self.lost,
            disk_full=why_disk_full(self.written_to.path),
        )
        found = classify(evidence)
        return found, (self.lost and processes.log) or self.folder.log(found.rank)


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


def rank_server(setup: ProbeSetup) -> ServerSettings:
    """Return what a fork server has that forks ranks on one machine."""
    return ServerSettings(environment=rank_environment(setup), engines=setup.engines)


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
