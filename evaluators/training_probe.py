"""The training probe: a short real training run of a recipe, started warm, watched and ended from outside."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.classify import Evidence, classify
from frontrunner.evaluators.corpus import corpus
from frontrunner.evaluators.files import tail, write_json
from frontrunner.evaluators.fork_client import ForkClient, RankExited, RanksStarted, Report, ServerLost
from frontrunner.evaluators.jobs import probe_job
from frontrunner.evaluators.measure import measurement
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.run_folder import RunFolder, StepCounter
from frontrunner.evaluators.settings import ProbeSettings
from frontrunner.results.outcome import Failure, FailureKind, Measurement

POLL_S = 0.1
PEER_GRACE_S = 2.0
"""How long the other ranks may go on after one has failed, to write what they know."""


@dataclass(kw_only=True)
class _Running:
    """One probe in flight; all times by the monotonic clock."""

    order: ProbeOrder
    folder: RunFolder
    started_s: float
    last_progress_s: float
    steps: StepCounter
    oom_kills_before: int
    pids: tuple[int, ...] = ()
    statuses: dict[int, int] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    first_failure_s: float | None = None
    overdue: tuple[FailureKind, str] | None = None
    server_lost: bool = False

    @property
    def world_size(self) -> int:
        """One rank a device."""
        return self.order.recipe.devices

    @property
    def has_ended(self) -> bool:
        """Whether every rank has."""
        return self.server_lost or len(self.statuses) == self.world_size


class TrainingProbe:
    """The `Evaluator` that trains: the ranks of each probe are forked from one warm server."""

    def __init__(self, setup: ProbeSetup) -> None:
        """Make the token file if it is not there yet, and start the fork server, which warms up meanwhile."""
        self._setup = setup
        setup.work_folder.mkdir(parents=True, exist_ok=True)
        self.tokens = corpus(setup.data, setup.work_folder, setup.problem)
        self._rendezvous = Path(tempfile.mkdtemp(prefix="frontrunner-"))
        self._running: dict[str, _Running] = {}
        self._client = self._start_server()

    def _start_server(self) -> ForkClient:
        return ForkClient(self._setup.work_folder / "fork-server.log", rank_environment(self._setup))

    def start(self, order: ProbeOrder) -> None:
        """Fork the ranks of one probe."""
        folder = RunFolder(order.run_folder)
        order.run_folder.mkdir(parents=True, exist_ok=True)
        write_json(folder.job, probe_job(self._setup, order.recipe, order.run_folder, self.tokens))
        now = time.monotonic()
        self._running[order.token] = _Running(
            order=order,
            folder=folder,
            started_s=now,
            last_progress_s=now,
            steps=StepCounter(order.run_folder),
            oom_kills_before=kernel_oom_kills(),
        )
        self._client.start(
            order.token,
            job=folder.job,
            world_size=order.recipe.devices,
            rendezvous=self._rendezvous / order.token,
            logs=order.run_folder,
        )

    def finished(self, timeout_s: float) -> list[Finished]:
        """Watch the running probes for up to `timeout_s`, or until one of them has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, min(POLL_S, deadline - time.monotonic()))
            for report in self._client.reports(left):
                self._hear(report)
            for probe in self._running.values():
                self._watch(probe)
            ended = [token for token, probe in self._running.items() if probe.has_ended]
            if ended or time.monotonic() >= deadline:
                return [self._conclude(self._running.pop(token)) for token in ended]

    def _hear(self, report: Report) -> None:
        if isinstance(report, ServerLost):
            for probe in self._running.values():
                probe.server_lost = True
            self._client.close()
            self._client = self._start_server()
        elif isinstance(report, RanksStarted):
            self._running[report.token].pids = report.pids
        elif isinstance(report, RankExited) and report.token in self._running:
            probe = self._running[report.token]
            probe.statuses[report.rank] = report.status
            if report.status != 0 and probe.first_failure_s is None:
                probe.first_failure_s = time.monotonic()

    def _watch(self, probe: _Running) -> None:
        """Note progress; end the ranks when a deadline has passed, or when one of them has failed."""
        now = time.monotonic()
        if probe.steps.advance():
            probe.last_progress_s = now
        if probe.overdue is None:
            probe.overdue = _overdue(probe, self._setup.probe, now)
        failed = probe.first_failure_s is not None and now - probe.first_failure_s > PEER_GRACE_S
        if probe.overdue is not None or failed:
            self._kill(probe)

    def _kill(self, probe: _Running) -> None:
        for rank, pid in enumerate(probe.pids):
            if rank not in probe.statuses:
                probe.killed.add(rank)
                self._client.kill_rank(pid)

    def _conclude(self, probe: _Running) -> Finished:
        """The outcome, on disk."""
        seconds = (time.monotonic() - probe.started_s) * nodes_used(probe.order.recipe.devices, self._setup)
        outcome = _from_result(probe.folder, probe.order, self._setup, seconds)
        if outcome is None or (isinstance(outcome, Measurement) and probe.first_failure_s is not None):
            outcome = _failure(probe, seconds)
        if isinstance(outcome, Failure) and not outcome.log_path:
            outcome = _with_log(outcome, probe.folder, 0)
        probe.folder.write_outcome(outcome)
        (self._rendezvous / probe.order.token).unlink(missing_ok=True)
        return Finished(token=probe.order.token, outcome=outcome)

    def progress(self, token: str) -> Progress | None:
        """Phase and steps of a running probe."""
        probe = self._running.get(token)
        if probe is None:
            return None
        total = self._setup.probe.warm_up_steps + self._setup.probe.measured_steps
        phase = "starting" if not probe.pids else "stepping" if probe.steps.is_built else "building"
        return Progress(phase=phase, steps_done=probe.steps.steps_done, steps_total=total)

    def harvest(self, order: ProbeOrder) -> Measurement | Failure | None:
        """The outcome on disk, or what its ranks had finished measuring when their driver died."""
        folder = RunFolder(order.run_folder)
        found = folder.outcome()
        if found is not None:
            return found
        outcome = _from_result(folder, order, self._setup, node_seconds=0.0)
        if outcome is not None:
            folder.write_outcome(outcome)
        return outcome

    def close(self) -> None:
        """Kill what still runs and end the fork server."""
        for probe in self._running.values():
            self._kill(probe)
        self._client.close()
        shutil.rmtree(self._rendezvous, ignore_errors=True)


def _overdue(probe: _Running, settings: ProbeSettings, now: float) -> tuple[FailureKind, str] | None:
    """Which deadline has passed: none, the one for a step, or the one for the whole probe."""
    done = probe.steps.steps_done
    if now - probe.last_progress_s > settings.step_deadline_s:
        limit = f"probe.step_deadline_s = {settings.step_deadline_s:g} s"
        return FailureKind.HUNG, f"no progress within {limit}, after {done} steps"
    if now - probe.started_s > settings.deadline_s:
        total = settings.warm_up_steps + settings.measured_steps
        return FailureKind.TOO_SLOW, f"{done} of {total} steps within probe.deadline_s = {settings.deadline_s:g} s"
    return None


def _from_result(
    folder: RunFolder, order: ProbeOrder, setup: ProbeSetup, node_seconds: float
) -> Measurement | Failure | None:
    """The outcome that follows from `result.json`; None where there is no such file or it is damaged."""
    try:
        result = folder.result()
        return None if result is None else measurement(result, order.recipe, setup.problem, node_seconds)
    except (KeyError, TypeError, ValueError):
        return None


def _failure(probe: _Running, node_seconds: float) -> Failure:
    verdict = classify(
        Evidence(
            statuses=probe.statuses,
            errors=probe.folder.errors(probe.world_size),
            log_tails=probe.folder.log_tails(probe.world_size),
            overdue=probe.overdue,
            killed_by_us=frozenset(probe.killed),
            kernel_oom_kills=kernel_oom_kills() - probe.oom_kills_before,
            server_lost=probe.server_lost,
        )
    )
    failure = Failure(kind=verdict.kind, message=verdict.message, node_seconds=node_seconds)
    return _with_log(failure, probe.folder, verdict.rank)


def _with_log(failure: Failure, folder: RunFolder, rank: int) -> Failure:
    log = folder.log(rank)
    return Failure(
        kind=failure.kind,
        message=failure.message,
        log_tail=tail(log),
        log_path=str(log),
        node_seconds=failure.node_seconds,
    )


def nodes_used(devices: int, setup: ProbeSetup) -> int:
    """Whole nodes that so many devices occupy."""
    return math.ceil(devices / setup.problem.cluster.devices_per_node)


def rank_environment(setup: ProbeSetup) -> dict[str, str]:
    """Environment of ranks on one machine: one thread each, and on CPU the loopback interface."""
    environment = {"OMP_NUM_THREADS": "1"}
    if setup.problem.cluster.backend == "cpu":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment


def kernel_oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer took since boot; 0 where the system does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
