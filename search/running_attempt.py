"""An attempt under way, and what its driver reports of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from frontrunner.evaluators.protocol import QUEUED, Evaluator, ProbeOrder, Progress
from frontrunner.results.records import Attempt, Trial
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class RunningProbe:
    """A running probe; `progress` is None where the evaluator reports none."""

    number: int
    recipe: Recipe
    seconds: float
    progress: Progress | None


@dataclass(kw_only=True)
class RunningAttempt:
    """An attempt under way; `held_since_s` is when it got its `nodes`, None while it waits, free of
    charge.
    """

    trial: Trial
    attempt: Attempt
    order: ProbeOrder
    started_s: float
    nodes: int
    held_since_s: float | None = field(init=False)
    _progress: Progress | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.held_since_s = self.started_s

    def update(self, evaluator: Evaluator) -> RunningProbe:
        """Ask the evaluator for its progress, and note whether it holds its nodes."""
        self._progress = progress = evaluator.progress(self.order.token)
        if progress is not None and progress.phase == QUEUED:
            self.held_since_s = None
        elif self.held_since_s is None:
            self.held_since_s = time.monotonic()
        seconds = time.monotonic() - self.started_s
        return RunningProbe(
            number=self.trial.number, recipe=self.trial.recipe, seconds=seconds, progress=progress
        )

    @property
    def node_seconds(self) -> float:
        """What it has spent so far."""
        if self._progress is not None and self._progress.node_seconds is not None:
            return self._progress.node_seconds
        return (
            0.0
            if self.held_since_s is None
            else self.nodes * (time.monotonic() - self.held_since_s)
        )
