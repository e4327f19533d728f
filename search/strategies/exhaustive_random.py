"""Strategies that follow a list: the space's own order, or a shuffle of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

from frontrunner.search.strategy import Told
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey


class Listed:
    """Proposes recipes in the order of a list; outcomes only remove what was told."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._told: set[Recipe] = set()
        self._left = (recipe for recipe in recipes if recipe not in self._told)

    def ask(self, count: int) -> list[Recipe]:
        """Return up to `count` recipes that were neither proposed nor told."""
        return list(islice(self._left, count))

    def tell(self, told: Told) -> None:
        """Leave the recipe out from now on."""
        self._told.add(told.recipe)


def exhaustive(survey: Survey, _: int) -> Listed:
    """Propose every legal recipe in the order of the space's choices; the seed plays no part."""
    return Listed(survey.recipes)


def shuffled(survey: Survey, seed: int) -> Listed:
    """Propose every legal recipe in an order that only the seed decides: random search without repeats."""
    recipes = list(survey.recipes)
    random.Random(seed).shuffle(recipes)  # noqa: S311 - no secret
    return Listed(recipes)
