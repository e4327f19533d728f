"""A probe under way, as its driver keeps it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.protocol import QUEUED, Evaluator, Finished, ProbeOrder, Progress, Queueing
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.records import Attempt, Trial
from frontrunner.search.listener import RunningProbe


@dataclass(kw_only=True)
class Flight:
    """An attempt under way; `started_s` is by the monotonic clock, `nodes` how many it occupies.

    `held_since_s` is when it got its nodes, by the same clock: None while it waits for them, for which nothing is
    charged. An evaluator that says nothing of waiting has given them at once.
    """

    trial: Trial
    attempt: Attempt
    order: ProbeOrder
    started_s: float
    nodes: int
    held_since_s: float | None = field(init=False)
    _told: Progress | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.held_since_s = self.started_s

    def look(self, evaluator: Evaluator) -> Progress | None:
        """How far it has come; notes whether it holds its nodes."""
        self._told = progress = evaluator.progress(self.order.token)
        if progress is not None and progress.phase == QUEUED:
            self.held_since_s = None
        elif self.held_since_s is None:
            self.held_since_s = time.monotonic()
        return progress

    @property
    def node_seconds(self) -> float:
        """What it has spent so far."""
        if self._told is not None and self._told.node_seconds is not None:
            return self._told.node_seconds
        return 0.0 if self.held_since_s is None else self.nodes * (time.monotonic() - self.held_since_s)


def withdrawn(flights: Iterable[Flight], evaluator: Evaluator) -> list[Finished]:
    """Take back the flights that wait for nodes: each has lost its turn, which says nothing of its recipe."""
    if not isinstance(evaluator, Queueing):
        return []
    lost = Failure(kind=FailureKind.LOST, message="withdrawn while it waited for nodes", node_seconds=0.0)
    waiting = [flight.order.token for flight in flights if flight.held_since_s is None]
    return [Finished(token=token, outcome=lost, is_cut=True) for token in waiting if evaluator.withdraw(token)]


def new_folder(root: Path, trial: Trial) -> Path:
    """Make a folder that no other attempt has used: not one that the store never heard of, nor another store's."""
    number = 1
    while True:
        folder = root / f"{trial.number:05d}.{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def running_probes(flights: Iterable[Flight], evaluator: Evaluator) -> tuple[RunningProbe, ...]:
    """The flights as listeners see them, with how far each has come."""
    now = time.monotonic()
    return tuple(
        RunningProbe(
            number=flight.trial.number,
            recipe=flight.trial.recipe,
            seconds=now - flight.started_s,
            progress=flight.look(evaluator),
        )
        for flight in flights
    )
