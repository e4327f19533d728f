"""A training probe's beginning and end on disk, wherever its ranks run: the job they read, the outcome they came to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.classify import Evidence, classify
from frontrunner.evaluators.probe.files import tail, write_json
from frontrunner.evaluators.probe.jobs import aim_at
from frontrunner.evaluators.probe.measure import measurement, nodes_used, tokens_per_step
from frontrunner.evaluators.probe.room import is_full, why_no_room
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.probe.watch import KILL_GRACE_S, Watch
from frontrunner.evaluators.protocol import Finished, ProbeOrder, ProbeSetup
from frontrunner.results.outcome import Failure, FailureKind, Measurement, refuse_unstorable


def write_job(order: ProbeOrder, job: dict[str, Any], setup: ProbeSetup) -> Path:
    """Put what the ranks are asked to do into the order's run folder, with the speed that they are to beat."""
    order.run_folder.mkdir(parents=True, exist_ok=True)
    if order.best_tokens_per_s is not None:
        best_step_time_s = tokens_per_step(order.recipe, setup.problem) / order.best_tokens_per_s
        aim_at(job, best_step_time_s=best_step_time_s)
    path = RunFolder(order.run_folder).job
    write_json(path, job)
    return path


def conclude(probe: Watch, setup: ProbeSetup, *, log: Path | None = None) -> Finished:
    """The outcome of a probe that has ended, on disk; `log` tells more of its failure than the ranks' own do."""
    folder, order = RunFolder(probe.order.run_folder), probe.order
    folder.clear()
    node_seconds = probe.seconds * nodes_used(order.recipe, setup.problem)
    outcome = _from_result(folder, order, setup, node_seconds)
    if outcome is None or (isinstance(outcome, Measurement) and probe.has_failed):
        outcome = _failure(probe, folder, node_seconds, log)
    return Finished(token=order.token, outcome=_kept(folder, outcome))


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
            no_room=why_no_room(folder.path),
        )
    )
    log = log or folder.log(verdict.rank)
    return Failure(
        kind=verdict.kind,
        message=verdict.message + _what_stays(probe),
        log_tail=tail(log),
        log_path=str(log),
        node_seconds=node_seconds,
    )


def _what_stays(probe: Watch) -> str:
    if probe.lost is not None or not probe.unended:
        return ""
    return f"; killed, and not ended within {KILL_GRACE_S:g} s: process {', '.join(map(str, probe.unended))}"


def harvested(order: ProbeOrder, setup: ProbeSetup) -> Measurement | Failure | None:
    """The outcome on disk, or what the order's ranks had finished measuring when their driver died."""
    folder = RunFolder(order.run_folder)
    folder.clear()
    outcome = folder.outcome()
    if outcome is not None:
        return outcome
    node_seconds = folder.busy_seconds() * nodes_used(order.recipe, setup.problem)
    outcome = _from_result(folder, order, setup, node_seconds)
    return None if outcome is None else _kept(folder, outcome)


def _kept(folder: RunFolder, outcome: Measurement | Failure) -> Measurement | Failure:
    """The outcome, written down where there is room for it; a crash where there is none is nothing of the recipe's.

    On a full disk nothing is lost without the file: a measurement follows from `result.json`, which is there, and a
    failure that its driver does not live to store is one of an attempt that was lost.
    """
    try:
        folder.write_outcome(outcome)
    except OSError as error:
        if not is_full(error):
            raise
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.CRASHED:
            message = f"{outcome.message}; its run folder is full: {error}"
            return replace(outcome, kind=FailureKind.LOST, message=message)
    return outcome


def _from_result(
    folder: RunFolder, order: ProbeOrder, setup: ProbeSetup, node_seconds: float
) -> Measurement | Failure | None:
    """The outcome that follows from `result.json`; None where there is none, or it is damaged or of another attempt."""
    try:
        result = folder.result()
        if result is None or not folder.is_meant(result):
            return None
        outcome = measurement(result, order.recipe, setup.problem, node_seconds)
        refuse_unstorable(outcome)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError):
        return None
    if not isinstance(outcome, Failure):
        return outcome
    log = folder.log(0)
    return replace(outcome, log_tail=tail(log), log_path=str(log))
