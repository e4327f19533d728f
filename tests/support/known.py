"""The outcomes that a driver was told of, kept in memory instead of in a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frontrunner.results.outcome import Measurement, Outcome, combined, undisturbed
from frontrunner.search.listener import Ended
from frontrunner.search.proposals import Proposals
from frontrunner.spaces.recipe import Recipe


class Known:
    """Implements `KnownOutcomes` over a list, to which a test adds as a driver adds to a store."""

    def __init__(self, outcomes: Iterable[tuple[Recipe, Outcome]] = ()) -> None:
        self.outcomes = list(outcomes)

    def told(self) -> list[tuple[Recipe, Outcome]]:
        counting = {id(one) for recipe, _ in self.outcomes for one in self.measurements(recipe)}
        return [
            (recipe, outcome)
            for recipe, outcome in self.outcomes
            if not isinstance(outcome, Measurement) or id(outcome) in counting
        ]

    def measurements(self, recipe: Recipe) -> Sequence[Measurement]:
        measured = [
            outcome
            for of, outcome in self.outcomes
            if of == recipe and isinstance(outcome, Measurement)
        ]
        return undisturbed(measured)

    def tell(self, proposals: Proposals, recipe: Recipe, outcome: Outcome) -> bool:
        """Add an outcome, then pass it on, as a driver does."""
        self.outcomes.append((recipe, outcome))
        return proposals.tell(recipe, outcome)


class PooledTrials:
    """The trials that a view was told of, by number, as `View.pooled` reads them from a store."""

    def __init__(self) -> None:
        self._ended: dict[int, list[Ended]] = {}

    def add(self, ended: Ended) -> Ended:
        """Add an outcome, and return it to be counted."""
        self._ended.setdefault(ended.number, []).append(ended)
        return ended

    def pooled(self, number: int) -> Ended:
        last = self._ended[number][-1]
        measured = [
            one.outcome for one in self._ended[number] if isinstance(one.outcome, Measurement)
        ]
        return Ended(
            number=number,
            recipe=last.recipe,
            recipe_id=last.recipe_id,
            outcome=combined(undisturbed(measured)),
            will_retry=False,
        )
