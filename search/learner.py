"""What the strategies that learn from outcomes have in common, whichever library chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.search.candidates import Candidates
from frontrunner.search.strategy import Told
from frontrunner.spaces.recipe import Recipe


class Learner(ABC):
    """Keeps the contract of `Strategy`; a subclass chooses among open rows and learns from outcomes.

    Failures are withheld from the subclass until the first measurement: what a failed recipe is worth can
    only be said in comparison, and until then the subclass chooses at random anyway.
    """

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._pending: set[int] = set()
        self._told: set[int] = set()
        self._withheld: list[tuple[int, Failure]] | None = []  # None after the first measurement

    def ask(self, count: int) -> list[Recipe]:
        """Up to `count` legal recipes that were neither proposed nor told before; empty when none is left."""
        chosen: list[int] = []
        # The last ones are proposed whatever a model thinks of them, so the libraries always have a choice.
        if self._candidates.open_count <= count:
            for row in self._candidates.open_rows().tolist():
                self._take(row, chosen)
        while len(chosen) < count and self._candidates.open_count > 0:
            for row in self._choose(count - len(chosen)):
                self._take(row, chosen)
        return [self._candidates.recipes[row] for row in chosen]

    def _take(self, row: int, chosen: list[int]) -> None:
        self._candidates.take(row)
        self._pending.add(row)
        self._proposed(row)
        chosen.append(row)

    def tell(self, told: Told) -> None:
        """Learn of an outcome. A recipe that is not of the surveyed space teaches nothing."""
        row = self._candidates.row(told.recipe)
        if row is None:
            return
        self._candidates.take(row)
        self._told.add(row)
        self._end_pending(row)
        outcome = told.outcome
        if isinstance(outcome, Measurement):
            self._learn_measurement(row, outcome)
            withheld, self._withheld = self._withheld, None
            for failed_row, failure in withheld or ():
                self._learn_failure(failed_row, failure)
        elif not outcome.policy.counts_against_recipe:
            return
        elif self._withheld is not None:
            self._withheld.append((row, outcome))
        else:
            self._learn_failure(row, outcome)

    def forget(self, recipe: Recipe) -> None:
        """Let a proposal that was never measured be proposed again; any other recipe is left as it is."""
        row = self._candidates.row(recipe)
        if row in self._pending and row is not None:
            self._end_pending(row)
            self._candidates.give_back(row)

    def _end_pending(self, row: int) -> None:
        if row in self._pending:
            self._pending.remove(row)
            self._no_longer_proposed(row)

    @abstractmethod
    def _choose(self, count: int) -> list[int]:
        """Between one and `count` different open rows; more than `count` are open."""

    @abstractmethod
    def _learn_measurement(self, row: int, measurement: Measurement) -> None:
        """Take the measurement of a row into account."""

    @abstractmethod
    def _learn_failure(self, row: int, failure: Failure) -> None:
        """Take into account that a row failed for a reason that counts against it. Some row was measured."""

    def _proposed(self, row: int) -> None:  # noqa: B027 - a hook that may stay empty
        """A row was proposed and has no outcome yet."""

    def _no_longer_proposed(self, row: int) -> None:  # noqa: B027 - a hook that may stay empty
        """A proposed row was told or forgotten."""
