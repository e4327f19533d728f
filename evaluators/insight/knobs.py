"""The knobs of a campaign: the dimensions of its space that have a choice, and a recipe's position on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import Survey


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A dimension with the values that recipes take on it, in the order of the space; numbers rise."""

    name: str
    values: tuple[Choice, ...]

    @property
    def label(self) -> str:
        """The name as axes print it."""
        return DIMENSIONS[self.name].label

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(isinstance(value, int) and not isinstance(value, bool) for value in self.values)

    def place(self, recipe: Recipe) -> int:
        """The index of the recipe's value among `values`."""
        return self.values.index(setting(recipe, self.name))


def setting(recipe: Recipe, dimension: str) -> Choice:
    """Return a recipe's own value on a dimension: a schedule without a pipeline is `none`, whatever was asked."""
    return DIMENSIONS[dimension].of(recipe)


def shown(value: Choice) -> str:
    """A value in words: flags are yes and no."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def knobs(survey: Survey, recipes: Sequence[Recipe]) -> tuple[Knob, ...]:
    """The dimensions with a choice in which these recipes differ."""
    found = []
    for name, choices in survey.dimensions.items():
        if len(choices) == 1:
            continue  # a lone schedule is `none` without a pipeline: that is the pipeline's doing
        present = {setting(recipe, name) for recipe in recipes}
        if len(present) > 1:
            found.append(Knob(name=name, values=tuple(sorted(present, key=_order(survey, name)))))
    return tuple(found)


def _order(survey: Survey, name: str) -> Callable[[Choice], tuple[int, str]]:
    """Numbers and flags by size; words as the space lists them, after those that it does not list."""
    listed = list(survey.dimensions[name])

    def key(value: Choice) -> tuple[int, str]:
        if not isinstance(value, str):
            return int(value), ""
        return (listed.index(value), "") if value in listed else (-1, value)

    return key
