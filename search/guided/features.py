"""Recipes as rows of numbers in which a doubling of a degree is one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from frontrunner.spaces.recipe import DIMENSIONS, Recipe

Rows = npt.NDArray[np.float64]

_PLAIN = [one for one in DIMENSIONS.values() if not one.is_one_hot and one.kind != "sharding"]
COUNTS = (*(one.name for one in _PLAIN if one.kind == "count"), "data_parallel")
"""Taken as logarithms to the base 2."""
SHARDINGS = ("sharding_parameters", "sharding_gradients", "sharding_optimizer")
PLACES = tuple(one for one in _PLAIN if one.kind != "count")
"""Flags and choices, a step apart where their values are neighbors."""
ONE_HOT = tuple((one, value) for one in DIMENSIONS.values() if one.is_one_hot for value in one.values[1:])
NAMES = (*COUNTS, *SHARDINGS, *(one.name for one in PLACES), *(value for _, value in ONE_HOT))


def features(recipes: Sequence[Recipe]) -> Rows:
    """Return one row per recipe and one column for each of `NAMES`; one-hot columns are 0 or 1."""
    if not recipes:
        return np.empty((0, len(NAMES)))
    counts = np.array([[getattr(recipe, name) for name in COUNTS] for recipe in recipes], dtype=np.float64)
    others = np.array([_others(recipe) for recipe in recipes], dtype=np.float64)
    return np.hstack([np.log2(counts), others])


def _others(recipe: Recipe) -> list[float]:
    values = ((one, one.of(recipe)) for one in PLACES)
    return [
        *(_share(degree, recipe.copies) for degree in recipe.sharding.degrees),
        *(float(one.values.index(str(value)) if one.values else value) for one, value in values),
        *(float(one.of(recipe) == value) for one, value in ONE_HOT),
    ]


def _share(degree: int, copies: int) -> float:
    """How far something is spread: 0 not at all, 1 over all copies, in between by the logarithm."""
    return float(np.log(degree) / np.log(copies)) if copies > 1 else 0.0
