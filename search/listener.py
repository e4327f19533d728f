"""Listeners: how the driver reports progress to terminals, pages and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from frontrunner.results.outcome import FailureKind, Measurement, Outcome, combined, undisturbed
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


@dataclass(kw_only=True)
class View:
    """A campaign as its driver sees it, kept up to date for listeners.

    A recipe that was measured several times counts as in the ranking, by what its measurements pool
    to; one that failed after a measurement does not count until it is measured again. `best` has
    the highest tokens/s over `divisor`.
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
    _measurements: dict[str, Sequence[Measurement]] = field(default_factory=dict)
    _pooled: dict[str, Ended] = field(default_factory=dict)

    def count(self, ended: Ended) -> None:
        """Take in an outcome."""
        self.last.append(ended)
        outcome, name = ended.outcome, ended.recipe_id
        if isinstance(outcome, Measurement):
            before = self._measurements.get(name, ())
            self._measurements[name] = counting = undisturbed([*before, outcome])
            self._pooled[name] = pooled = replace(ended, outcome=combined(counting))
            if before:
                self._find_best()
            elif self.best is None or self._rate(pooled) > self._rate(self.best):
                self.best = pooled
        elif not ended.will_retry:
            self.failures[outcome.kind] = self.failures.get(outcome.kind, 0) + 1
            if outcome.policy.counts_against_recipe and name in self._pooled:
                del self._pooled[name]
                self._find_best()
        self.measured = len(self._pooled)

    def has_measured(self, recipe_id: str) -> bool:
        """Return whether a recipe has a measurement that counts."""
        return recipe_id in self._pooled

    def _find_best(self) -> None:
        self.best = max(self._pooled.values(), key=self._rate, default=None)

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
