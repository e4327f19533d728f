"""Listeners: how the driver reports progress to terminals, pages and tests."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from frontrunner.results.outcome import FailureKind, Measurement, Outcome
from frontrunner.results.records import EventData, Figures
from frontrunner.results.states import CampaignState
from frontrunner.search.budget import Limit
from frontrunner.search.running_attempt import RunningProbe
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.recipe import Recipe

LAST_OUTCOMES = 6


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A probe that has ended; `number` is its trial's."""

    number: int
    recipe: Recipe
    recipe_id: str
    outcome: Outcome
    will_retry: bool

    @property
    def tokens_per_s(self) -> float:
        """The measured rate, 0 for a failure."""
        return self.outcome.tokens_per_s if isinstance(self.outcome, Measurement) else 0.0


def _no_store(number: int) -> Ended:
    raise LookupError(f"trial {number}: this view has no store to read it from")


@dataclass(kw_only=True)
class View:
    """A campaign as its driver sees it, kept up to date for listeners.

    A recipe that was measured several times counts as in the ranking, by what its measurements pool
    to; one that failed after a measurement does not count until it is measured again. `best` has
    the highest tokens/s over `divisor`. Of the others only that rate is kept, by the number of the
    trial: `pooled` reads a trial from the store, with what its measurements pool to.
    """

    name: str
    strategy: str
    legal_recipes: int
    figures: Figures = "measured"
    divisor: Callable[[Recipe], float] = lambda _: 1.0
    limits: tuple[Limit, ...] = ()
    seconds_left: float | None = None
    running: tuple[RunningProbe, ...] = ()
    measured: int = 0
    failures: dict[FailureKind, int] = field(default_factory=dict)
    best: Ended | None = None
    outlook: Outlook | None = None
    last: deque[Ended] = field(default_factory=lambda: deque(maxlen=LAST_OUTCOMES))
    pooled: Callable[[int], Ended] = _no_store
    _rates: array[float] = field(default_factory=lambda: array("d"))
    _was_measured: bytearray = field(default_factory=bytearray)

    def count(self, ended: Ended, pooled: Measurement | None = None) -> None:
        """Take in an outcome; `pooled` is what the trial's measurements pool to, where it is at
        hand.
        """
        self.last.append(ended)
        outcome, number = ended.outcome, ended.number
        if isinstance(outcome, Measurement):
            self._count_measurement(ended, pooled)
        elif not ended.will_retry:
            self.failures[outcome.kind] = self.failures.get(outcome.kind, 0) + 1
            if outcome.policy.counts_against_recipe and self.has_measured(number):
                self._rates[number] = math.nan
                self.measured -= 1
                self._find_best()

    def _count_measurement(self, ended: Ended, pooled: Measurement | None) -> None:
        number = ended.number
        missing = number + 1 - len(self._rates)
        self._rates.extend([math.nan] * missing)
        self._was_measured.extend(bytes(max(0, missing)))
        if pooled is not None:
            ended = replace(ended, outcome=pooled)
        elif self._was_measured[number]:
            ended = self.pooled(number)
        self._was_measured[number] = True
        if not self.has_measured(number):
            self.measured += 1
        self._rates[number] = self._rate(ended)
        if self.best is None or self._place(ended) > self._place(self.best):
            self.best = ended
        elif number == self.best.number:
            self.best = ended
            self._find_best()

    def has_measured(self, number: int) -> bool:
        """Return whether the trial of this number has a measurement that counts."""
        return number < len(self._rates) and not math.isnan(self._rates[number])

    def _find_best(self) -> None:
        """Have `best` be the fastest trial, of equally fast ones the first."""
        if self.measured == 0:
            self.best = None
            return
        fastest = int(np.nanargmax(np.array(self._rates)))
        if self.best is None or fastest != self.best.number:
            self.best = self.pooled(fastest)

    def _place(self, ended: Ended) -> tuple[float, int]:
        return self._rate(ended), -ended.number

    def _rate(self, ended: Ended) -> float:
        return ended.tokens_per_s / self.divisor(ended.recipe)


class Listener:
    """Receives events on the driver's thread; methods must return quickly and not raise. The base
    ignores them.
    """

    def began(self, view: View) -> None:
        """The driver holds the campaign and has read what was measured before."""

    def probe_began(self, view: View, number: int, recipe: Recipe) -> None:
        """A probe was started."""

    def probe_ended(self, view: View, ended: Ended) -> None:
        """A probe has ended and its outcome is stored."""

    def noticed(self, view: View, kind: str, data: EventData) -> None:
        """Something else happened: a harvest, a strategy that failed, a request to stop."""

    def ticked(self, view: View) -> None:
        """Time has passed; a few times a second."""

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """The driver has let go of the campaign."""
