"""Nodes of an attempt: their names, and what the files of its step say against some of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from frontrunner.evaluators.nodes.agent import NodeReport, Step, StepFolder
from frontrunner.evaluators.runs.files import tail
from frontrunner.results.nodes import AttemptNodes
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome

FIRST_LINES = 1000
WORD = re.compile(r"[\w.-]+")
Reports = Mapping[int, NodeReport | None]


def attempt_nodes(folder: Path, outcome: Outcome | None) -> AttemptNodes | None:
    """Return the nodes of the step in a run folder; None where there is none, as of probes on the
    driver's machine.

    `outcome` is None where its driver or a batch system ended the attempt, which says nothing of
    its nodes.
    """
    files = StepFolder(folder)
    if (step := files.step()) is None:
        return None
    reports = {node: files.report(node) for node in range(step.nodes)}
    planned = {_label(name): name for name in step.hosts}
    names = {
        node: planned.get(_label(report.host), report.host)
        for node, report in reports.items()
        if report is not None
    }
    missing = [name for name in step.hosts if name not in names.values()]
    # A node that never reported has no place among the others: launchers may order them anew.
    names |= dict(zip((node for node in reports if node not in names), missing, strict=False))
    troubles = {} if outcome is None else _troubles(step, reports, outcome)
    if (
        len(troubles) == step.nodes > 1
        and isinstance(outcome, Failure)
        and outcome.kind is FailureKind.LOST
    ):
        troubles = _blamed_by_launcher(files.launcher_log, names) or troubles
    ordered = tuple(dict.fromkeys(names[node] for node in sorted(names)))
    found = {names[node]: why for node, why in sorted(troubles.items()) if node in names}
    return AttemptNodes(names=ordered, troubles=found) if ordered else None


def _blamed_by_launcher(log: Path, names: Mapping[int, str]) -> dict[int, str]:
    """Return the nodes that a launcher's output names first: launchers state whose task ended, then
    end the others.
    """
    for line in tail(log, FIRST_LINES).splitlines():
        words = set(map(_label, WORD.findall(line)))
        if found := {node: line.strip() for node, name in names.items() if _label(name) in words}:
            return found
    return {}


def _label(host: str) -> str:
    return host.partition(".")[0]


def _troubles(step: Step, reports: Reports, outcome: Outcome) -> dict[int, str]:
    if isinstance(outcome, Measurement):
        return (
            {} if outcome.telemetry is None else outcome.telemetry.slow_nodes(step.ranks_per_node)
        )
    if outcome.kind is FailureKind.LOST:
        return _lost(reports, outcome)
    if any(map(_was_interrupted, reports.values())):
        return {}
    if outcome.kind is FailureKind.HUNG:
        return dict.fromkeys(reports, outcome.message)
    is_crash = outcome.kind is FailureKind.CRASHED
    return (
        _named(reports, lambda report: _ended_badly(report, lambda status: status != 0))
        if is_crash
        else {}
    )


def _lost(reports: Reports, outcome: Failure) -> dict[int, str]:
    """Return the nodes that the first sign names which any of them shows; without a sign all,
    unless a signal came.

    Launchers end the agents of the other nodes when one has gone.
    """
    signs: tuple[Callable[[NodeReport | None], str | None], ...] = (
        lambda report: None if report is None else report.trouble,
        lambda report: (
            None if report and (report.running or report.interrupted) else "its agent did not begin"
        ),
        lambda report: None if report and report.ended else "its agent vanished",
        lambda report: (
            None if _was_interrupted(report) else _ended_badly(report, lambda status: status < 0)
        ),
    )
    named = next(filter(None, (_named(reports, sign) for sign in signs)), None)
    return named or (
        {}
        if any(map(_was_interrupted, reports.values()))
        else dict.fromkeys(reports, outcome.message)
    )


def _was_interrupted(report: NodeReport | None) -> bool:
    return report is not None and report.interrupted is not None


def _named(reports: Reports, sign: Callable[[NodeReport | None], str | None]) -> dict[int, str]:
    return {node: why for node, report in reports.items() if (why := sign(report)) is not None}


def _ended_badly(report: NodeReport | None, is_bad: Callable[[int], bool]) -> str | None:
    """Return how a rank of the node ended that was not killed on purpose."""
    found: Iterator[str] = iter(())
    if report is not None:
        own = {
            rank: status for rank, status in report.statuses.items() if rank not in report.killed
        }
        found = (
            f"rank {rank} ended with "
            + (f"signal {-status}" if status < 0 else f"exit status {status}")
            for rank, status in sorted(own.items())
            if is_bad(status)
        )
    return next(found, None)
