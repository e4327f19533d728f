"""Strategies that follow a list made beforehand: the space's own order, or a shuffle of it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from frontrunner.search.strategy import Told
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey


class Listed:
    """Proposes recipes in the order of a list. Outcomes change nothing but what is left.

    A recipe that was forgotten comes again before the list goes on. Asking for one recipe and telling it
    takes the same time however long the list is.
    """

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._recipes = recipes
        self._place = {recipe: place for place, recipe in enumerate(recipes)}
        self._next_place = 0
        self._forgotten: list[int] = []  # a heap of places
        self._proposed: set[Recipe] = set()
        self._told: set[Recipe] = set()

    def ask(self, count: int) -> list[Recipe]:
        """Up to `count` recipes that were neither proposed nor told: forgotten ones first, then the list."""
        chosen: list[Recipe] = []
        while len(chosen) < count:
            recipe = self._pop()
            if recipe is None:
                break
            if recipe not in self._proposed and recipe not in self._told:
                self._proposed.add(recipe)
                chosen.append(recipe)
        return chosen

    def tell(self, told: Told) -> None:
        """Leave the recipe out from now on."""
        self._proposed.discard(told.recipe)
        self._told.add(told.recipe)

    def forget(self, recipe: Recipe) -> None:
        """Let a proposal that was never measured be proposed again; any other recipe is left as it is."""
        if recipe in self._proposed:
            self._proposed.remove(recipe)
            heapq.heappush(self._forgotten, self._place[recipe])

    def _pop(self) -> Recipe | None:
        if self._forgotten:
            return self._recipes[heapq.heappop(self._forgotten)]
        if self._next_place == len(self._recipes):
            return None
        self._next_place += 1
        return self._recipes[self._next_place - 1]


def exhaustive(survey: Survey, _: int) -> Listed:
    """Every legal recipe, in the order of the space's choices; the seed plays no part."""
    return Listed(survey.recipes)


def shuffled(survey: Survey, seed: int) -> Listed:
    """Every legal recipe, in an order that the seed alone decides: random search without repeats."""
    recipes = list(survey.recipes)
    random.Random(seed).shuffle(recipes)  # noqa: S311 - no secret
    return Listed(recipes)
