"""A probe under way, as its driver keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.protocol import Evaluator, ProbeOrder, Progress
from frontrunner.results.records import Attempt, Trial
from frontrunner.search.listener import RunningProbe


@dataclass(frozen=True, kw_only=True)
class Flight:
    """An attempt under way; `started_s` is by the monotonic clock, `nodes` how many it occupies.

    `progress` tells how far it is: a probe that waits for nodes spends nothing.
    """

    trial: Trial
    attempt: Attempt
    order: ProbeOrder
    started_s: float
    nodes: int
    progress: Callable[[str], Progress | None]

    @property
    def node_seconds(self) -> float:
        """What it has spent so far."""
        told = self.progress(self.order.token)
        if told is not None and told.node_seconds is not None:
            return told.node_seconds
        return self.nodes * (time.monotonic() - self.started_s)


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
            progress=evaluator.progress(flight.order.token),
        )
        for flight in flights
    )
