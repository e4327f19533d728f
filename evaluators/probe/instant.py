"""Evaluators whose outcomes are there at once, computed or looked up: they run nothing."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.protocol import Finished, ProbeOrder, Progress
from frontrunner.results.outcome import Outcome
from frontrunner.spaces.recipe import Recipe


class Instant(ABC):
    """Keeps the contract of `Evaluator`; a subclass says what becomes of a recipe."""

    measures_here = False

    def __init__(self) -> None:
        self._ready: list[ProbeOrder] = []

    @abstractmethod
    def _outcome(self, recipe: Recipe) -> Outcome:
        """What becomes of one recipe."""

    def start(self, order: ProbeOrder) -> None:
        """Take an order; its outcome is ready at the next `finished`."""
        self._ready.append(order)

    def finished(self, timeout_s: float) -> list[Finished]:
        """All orders taken since the last call; with none it waits, as a real evaluator would."""
        if not self._ready:
            time.sleep(timeout_s)
        done = [self._finish(order) for order in self._ready]
        self._ready.clear()
        return done

    def _finish(self, order: ProbeOrder) -> Finished:
        outcome = self._outcome(order.recipe)
        order.run_folder.mkdir(parents=True, exist_ok=True)
        RunFolder(order.run_folder).write_outcome(outcome)
        return Finished(token=order.token, outcome=outcome)

    def progress(self, token: str) -> Progress | None:
        """Nothing: an outcome is there before it can be asked for."""
        del token
        return None

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """The outcome on disk, or None."""
        folder = RunFolder(order.run_folder)
        folder.clear()
        return folder.outcome()

    def close(self) -> None:
        """Forget what was not handed out."""
        self._ready.clear()
