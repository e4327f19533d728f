"""One probe in flight: its job on disk, its progress and deadlines, the ends of its ranks, and its outcome on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.classify import Evidence, classify
from frontrunner.evaluators.probe.files import is_disk_full, tail, why_disk_full, write_json
from frontrunner.evaluators.probe.measure import measurement, nodes_used, tokens_per_step
from frontrunner.evaluators.probe.processes import kernel_oom_kills
from frontrunner.evaluators.probe.run_folder import RunFolder, StepCounter
from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, refuse_unstorable

PEER_GRACE_S = 2.0
"""How long the other ranks may go on after one has failed, to write what they know."""

KILL_GRACE_S = 15.0
"""How long killed ranks may take to end; one that waits for its device or disk may never do so."""


class Deadlines:
    """The deadlines of one probe, by a monotonic clock: for each step, and for the whole."""

    def __init__(self, settings: ProbeSettings) -> None:
        self._settings = settings
        self._began_s = self._last_progress_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self._began_s

    def progressed(self) -> None:
        """Note progress: the next step has its full time."""
        self._last_progress_s = time.monotonic()

    def overdue(self, steps_done: int, *, missing: str = "progress") -> tuple[FailureKind, str] | None:
        """Return the deadline that has passed, as a kind of failure and a message, or None."""
        settings = self._settings
        if time.monotonic() - self._last_progress_s > settings.step_deadline_s:
            limit = f"probe.step_deadline_s = {settings.step_deadline_s:g} s"
            return FailureKind.HUNG, f"no {missing} within {limit}, after {steps_done} steps"
        if self.seconds > settings.deadline_s:
            limit = f"probe.deadline_s = {settings.deadline_s:g} s"
            return FailureKind.TOO_SLOW, f"{steps_done} of at most {settings.most_steps} steps within {limit}"
        return None


class Watch:
    """Follows one probe by a monotonic clock that starts when its ranks do.

    `statuses` maps each rank that has ended to its exit code, or minus its signal; `killed` holds the ranks that were
    killed on purpose; `overdue` is the deadline that passed; `lost` is to be set to what ended and took the ranks
    along. The owner of the watch does the killing.
    """

    def __init__(self, order: ProbeOrder, settings: ProbeSettings) -> None:
        self.order = order
        self.statuses: dict[int, int] = {}
        self.killed: set[int] = set()
        self.overdue: tuple[FailureKind, str] | None = None
        self.lost: str | None = None
        self._settings = settings
        self._steps = StepCounter(order.run_folder)
        self._pids: tuple[int, ...] = ()
        self._oom_kills_before = kernel_oom_kills()
        self._deadlines = Deadlines(settings)
        self._first_failure_s: float | None = None
        self._first_kill_s: float | None = None

    def began(self, pids: tuple[int, ...]) -> None:
        """Note that the ranks have started; deadlines count from now."""
        self._pids = pids
        self._deadlines = Deadlines(self._settings)

    def rank_ended(self, rank: int, status: int) -> None:
        """Note how a rank ended."""
        self.statuses[rank] = status
        if status != 0 and self._first_failure_s is None:
            self._first_failure_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the time since the ranks started; 0 before."""
        return self._deadlines.seconds if self._pids else 0.0

    @property
    def has_failed(self) -> bool:
        """Return whether any rank ended with an error or by a signal, or all of them with what is lost."""
        return self._first_failure_s is not None or self.lost is not None

    @property
    def has_ended(self) -> bool:
        """Return whether every rank has, or those that are left cannot be killed."""
        if self._first_kill_s is not None and time.monotonic() - self._first_kill_s > KILL_GRACE_S:
            return True
        return self.lost is not None or len(self.statuses) == self.order.recipe.devices

    @property
    def unended(self) -> list[int]:
        """Return the process ids of the ranks that were killed on purpose and have not ended."""
        return [pid for rank, pid in enumerate(self._pids) if rank in self.killed and rank not in self.statuses]

    @property
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory since the order, on the whole machine."""
        return kernel_oom_kills() - self._oom_kills_before

    @property
    def progress(self) -> Progress:
        """Return phase and steps."""
        phase = "starting" if not self._pids else "stepping" if self._steps.is_built else "building"
        return Progress(phase=phase, steps_done=self._steps.steps_done, steps_total=self._settings.most_steps)

    def look(self) -> Iterator[int]:
        """Note progress; yield the process ids to kill because a deadline has passed or a rank has failed."""
        if not self._pids:
            return
        if self._steps.advance():
            self._deadlines.progressed()
        if self.overdue is None:
            self.overdue = self._deadlines.overdue(self._steps.steps_done)
        failed = self._first_failure_s is not None and time.monotonic() - self._first_failure_s > PEER_GRACE_S
        if self.overdue is not None or failed:
            yield from self.kill()

    def kill(self) -> Iterator[int]:
        """Yield the process ids of the ranks that have not ended, which then count as killed on purpose."""
        for rank, pid in enumerate(self._pids):
            if rank not in self.statuses:
                self.killed.add(rank)
                self._first_kill_s = self._first_kill_s or time.monotonic()
                yield pid


def write_job(order: ProbeOrder, job: dict[str, Any], setup: ProbeSetup) -> Path:
    """Write the ranks' job to the order's run folder, with the step time that an adaptive probe has to beat."""
    order.run_folder.mkdir(parents=True, exist_ok=True)
    adaptive = (job["probe"] or {}).get("adaptive")
    if order.best_tokens_per_s is not None and adaptive is not None:
        adaptive["best_step_time_s"] = tokens_per_step(order.recipe, setup.problem) / order.best_tokens_per_s
    path = RunFolder(order.run_folder).job
    write_json(path, job)
    return path


def conclude(probe: Watch, setup: ProbeSetup, *, log: Path | None = None) -> Finished:
    """Put the outcome of a probe that has ended on disk and return it; `log` explains its failure best, if given."""
    folder, order = RunFolder(probe.order.run_folder), probe.order
    folder.remove_unfinished()
    node_seconds = probe.seconds * nodes_used(order.recipe, setup.problem)
    outcome = _from_result(folder, order, setup, node_seconds)
    if outcome is None or (isinstance(outcome, Measurement) and probe.has_failed):
        outcome = _failure(probe, folder, node_seconds, log)
    return Finished(token=order.token, outcome=_written(folder, outcome))


def harvest(order: ProbeOrder, setup: ProbeSetup) -> Outcome | None:
    """Return the outcome on disk, or what the order's ranks had finished measuring when their driver died."""
    folder = RunFolder(order.run_folder)
    folder.remove_unfinished()
    outcome = folder.outcome()
    if outcome is not None:
        return outcome
    node_seconds = folder.busy_seconds() * nodes_used(order.recipe, setup.problem)
    outcome = _from_result(folder, order, setup, node_seconds)
    return None if outcome is None else _written(folder, outcome)


def _failure(probe: Watch, folder: RunFolder, node_seconds: float, log: Path | None) -> Failure:
    world_size = probe.order.recipe.devices
    verdict = classify(
        Evidence(
            statuses=probe.statuses,
            errors=folder.errors(world_size),
            log_tails=folder.log_tails(world_size),
            overdue=probe.overdue,
            killed_by_us=frozenset(probe.killed),
            kernel_oom_kills=probe.kernel_oom_kills,
            lost=probe.lost,
            disk_full=why_disk_full(folder.path),
        )
    )
    message = verdict.message
    if probe.lost is None and probe.unended:
        pids = ", ".join(map(str, probe.unended))
        message += f"; killed, and not ended within {KILL_GRACE_S:g} s: process {pids}"
    log = log or folder.log(verdict.rank)
    return Failure(kind=verdict.kind, message=message, log_tail=tail(log), log_path=str(log), node_seconds=node_seconds)


def _written(folder: RunFolder, outcome: Outcome) -> Outcome:
    """Write the outcome down where there is room for it; a crash where there is none is not the recipe's fault.

    On a full disk nothing is lost without the file: a measurement follows from `result.json`, which exists, and a
    failure that its driver does not live to store belongs to a lost attempt.
    """
    try:
        folder.write_outcome(outcome)
    except OSError as error:
        if not is_disk_full(error):
            raise
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.CRASHED:
            message = f"{outcome.message}; its run folder is full: {error}"
            return replace(outcome, kind=FailureKind.LOST, message=message)
    return outcome


def _from_result(folder: RunFolder, order: ProbeOrder, setup: ProbeSetup, node_seconds: float) -> Outcome | None:
    """Return the outcome that follows from `result.json`; None where it is missing, damaged or another attempt's."""
    try:
        result = folder.result()
        if result is None or not folder.owns(result):
            return None
        outcome = measurement(result, order.recipe, setup.problem, node_seconds)
        refuse_unstorable(outcome)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError):
        return None
    if isinstance(outcome, Measurement):
        return outcome
    log = folder.log(0)
    return replace(outcome, log_tail=tail(log), log_path=str(log))
