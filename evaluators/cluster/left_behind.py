"""Steps whose driver is gone: their ranks may use their nodes for as long as the driver's lifeline lets them.

A probe that began beside them would be measured on devices, memory and a network that are not its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from frontrunner.evaluators.cluster.step import Step, StepFolder
from frontrunner.evaluators.probe.run_folder import RunFolder

LAST_END_S = 15.0
"""Assumed: how long after their lifeline's silence the ranks of a step are gone, and their last files are seen."""
LONG_AGO_S = 3600.0
"""Beyond its deadline a step is over, however far the clocks of this host and the file server are apart."""


class LeftBehind:
    """The steps of run folders that no driver follows any more; each is told to end at once."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Folders without a step, or with an outcome, are left alone."""
        found = [(StepFolder(folder), _open_step(folder)) for folder in folders]
        self._steps = [(folder, step) for folder, step in found if step is not None]
        for folder, _ in self._steps:
            folder.raise_flag(folder.cancel)
        self._began_s = time.monotonic()

    def have_ended(self) -> bool:
        """Whether every node has told so, or has had the time after which nothing can run there any more."""
        waited_s = time.monotonic() - self._began_s
        self._steps = [
            (folder, step)
            for folder, step in self._steps
            if waited_s < step.silence_s + LAST_END_S and not _every_node_has_ended(folder, step)
        ]
        return not self._steps


def was_interrupted(folder: Path) -> bool:
    """Whether somebody has told the nodes of a folder's step to end, as a batch system does that takes them away."""
    step = _step(folder)
    if step is None:
        return False
    reports = [StepFolder(folder).report(node) for node in range(step.nodes)]
    return any(report is not None and report.interrupted is not None for report in reports)


def _step(folder: Path) -> Step | None:
    path = folder / "step.json"
    try:
        return Step.read(path) if path.exists() else None
    except (OSError, ValueError):
        return None  # of another version, or damaged: nobody could say what to wait for


def _open_step(folder: Path) -> Step | None:
    step = _step(folder)
    if step is None or RunFolder(folder).outcome() is not None:
        return None
    age_s = time.time() - (folder / "step.json").stat().st_mtime
    return None if age_s > step.deadline_s + LONG_AGO_S else step


def _every_node_has_ended(folder: StepFolder, step: Step) -> bool:
    reports = [folder.report(node) for node in range(step.nodes)]
    return all(report is not None and report.ended for report in reports)
