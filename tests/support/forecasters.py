"""A forecaster for tests of the driver: a fixed order of recipes, with wishes and forecasts from
the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontrunner.results.outcome import Measurement
from frontrunner.search.strategies.candidates import Listed
from frontrunner.search.strategy import Evidence, Outlook, Told
from frontrunner.spaces.recipe import Recipe


class Forecaster(Listed):
    """Proposes in order, hears everything, and asks the test what to wish for and what to
    expect.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        *,
        wish: Callable[[Forecaster], Recipe | None] = lambda forecaster: None,
        expect: Callable[[Forecaster], Outlook | None] = lambda forecaster: None,
    ) -> None:
        super().__init__(recipes)
        self.heard: list[Told] = []
        self._wish = wish
        self._expect = expect

    def tell(self, told: Told) -> None:
        super().tell(told)
        self.heard.append(told)

    def remember(self, evidence: Sequence[Evidence]) -> None:
        raise NotImplementedError

    def outlook(self) -> Outlook | None:
        return self._expect(self)

    def worth_repeating(self) -> Recipe | None:
        return self._wish(self)

    def expected(self, recipe: Recipe) -> None:
        return None

    def times_measured(self, recipe: Recipe) -> int:
        return sum(
            told.recipe == recipe and isinstance(told.outcome, Measurement) for told in self.heard
        )


def measured_twice(recipe: Recipe) -> Callable[[Forecaster], Recipe | None]:
    """Wishes for a second measurement of the recipe, as soon as it has one."""
    return lambda forecaster: recipe if forecaster.times_measured(recipe) == 1 else None
