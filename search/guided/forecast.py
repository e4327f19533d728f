"""What the corrected model expects of recipes, with its error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from frontrunner.search.strategy import Forecast
from frontrunner.spaces.recipe import Recipe

Rows = npt.NDArray[np.float64]

NORMAL_95 = 1.96
"""Half the width of a normal distribution's middle 95 %, in standard deviations."""


def best_forecasts(recipes: Sequence[Recipe], mean: Rows, deviation: Rows, chance: Rows, count: int) -> list[Forecast]:
    """The `count` recipes of the highest speed times chance to run, the best first.

    `mean` and `deviation` are of the logarithm of tokens/s, a row a recipe, a measurement's noise included.
    """
    order = np.argsort(-(mean + np.log(np.maximum(chance, 1e-9))), kind="stable")[:count]
    spread = np.exp(NORMAL_95 * deviation)
    return [
        Forecast(
            recipe=recipes[row],
            tokens_per_s=float(np.exp(mean[row])),
            low=float(np.exp(mean[row]) / spread[row]),
            high=float(np.exp(mean[row]) * spread[row]),
            chance=float(chance[row]),
        )
        for row in order.tolist()
    ]
