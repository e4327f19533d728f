"""The outcomes of a campaign as its store has them, so that a driver need not keep them itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from frontrunner.results.outcome import Measurement, Outcome, combined
from frontrunner.results.store import Store
from frontrunner.search.listener import Ended
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


class KnownOutcomes(Protocol):
    """What a driver can look up of the outcomes that it has heard of."""

    def told(self) -> Iterable[tuple[Recipe, Outcome]]:
        """Return the measurements that count and the failures that ended a trial, oldest first."""

    def measurements(self, recipe: Recipe) -> Sequence[Measurement]:
        """Return the measurements of a recipe that count, oldest first."""


class StoredOutcomes:
    """The outcomes of one campaign, read from its store at each call.

    An outcome is in the store before a strategy or a listener learns of it.
    """

    def __init__(self, store: Store, campaign_id: int, problem: Problem) -> None:
        self._store, self._campaign_id, self._problem = store, campaign_id, problem

    def told(self) -> Iterable[tuple[Recipe, Outcome]]:
        """Return what `KnownOutcomes` says."""
        return self._store.final_outcomes(self._campaign_id)

    def measurements(self, recipe: Recipe) -> Sequence[Measurement]:
        """Return what `KnownOutcomes` says."""
        name = recipe_id(self._problem, recipe)
        return self._store.trial_measurements(self._campaign_id, recipe_id=name)[1]

    def pooled(self, number: int) -> Ended:
        """Return a measured trial with what its measurements pool to."""
        trial, measurements = self._store.trial_measurements(self._campaign_id, number=number)
        return Ended(
            number=trial.number,
            recipe=trial.recipe,
            recipe_id=trial.recipe_id,
            outcome=combined(measurements),
            will_retry=False,
        )
