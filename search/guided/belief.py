"""What `guided` expects over a map of two dimensions, stored with each proposal for the film of the
search.
"""

from __future__ import annotations

import numpy as np

from frontrunner.results.predictions import Belief
from frontrunner.search.guided.prior import Places, Rows
from frontrunner.spaces.recipe import Choice
from frontrunner.spaces.space import Survey, map_axes

MOST_CELLS = 100
"""Places of a map that a belief is stored of: all go into every proposal's event."""
LIKELY = 0.5
"""Chance from which on a recipe is expected to run."""


class BeliefMap:
    """The places of a survey's recipes on the map that the film of its search is drawn over by
    default.
    """

    def __init__(
        self, axes: tuple[str, str], places: list[tuple[Choice, Choice]], of_recipes: Places
    ) -> None:
        """`of_recipes` is the place of each recipe."""
        self._axes, self._places, self._of_recipes = axes, places, of_recipes

    @classmethod
    def of(cls, survey: Survey) -> BeliefMap | None:
        """Return the map; None where fewer than two dimensions vary, or where it has more than
        `MOST_CELLS` places.
        """
        varied = [name for name, values in survey.dimensions.items() if len(values) > 1]
        if len(varied) < 2:
            return None
        axes = map_axes(varied)
        (x, x_codes), (y, y_codes) = map(survey.places.column, axes)
        places = [(own, other) for own in x for other in y]
        return (
            cls(axes, places, x_codes.astype(np.intp) * len(y) + y_codes)
            if len(places) <= MOST_CELLS
            else None
        )

    def belief(self, log_rates: Rows, chances: Rows) -> Belief:
        """Return the rate of the fastest recipe that should run at each place, of the logarithms of
        tokens/s.
        """
        best, runs = np.full(len(self._places), -np.inf), chances >= LIKELY
        np.maximum.at(best, self._of_recipes[runs], log_rates[runs])
        rates = [float(f"{rate:.4g}") for rate in np.exp(best)]
        cells = ((*place, rate) for place, rate in zip(self._places, rates, strict=True) if rate)
        x, y = self._axes
        return Belief(x=x, y=y, cells=tuple(cells))
