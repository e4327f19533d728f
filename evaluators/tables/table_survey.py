"""The recipes of a table's problem as a surveyed space: what is in no row is illegal, and so costs no probe."""

from __future__ import annotations

from collections.abc import Iterable

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import FRAME, Point, Space, Survey

DIFFERING = (
    *(name for name in FRAME if name not in ("accumulation", "devices")), "sharding", "recompute", "sequence_parallel"
)  # fmt: skip
"""What a table's recipes differ in; accumulation follows from the fixed global batch."""


def survey_of(recipes: Iterable[Recipe], problem: Problem) -> Survey:
    """The space of exactly these recipes, all of which use the cluster's devices alike. They are not judged again."""
    legal = {_values(recipe): recipe for recipe in recipes}
    chosen = {name: tuple(dict.fromkeys(values[place] for values in legal)) for place, name in enumerate(DIFFERING)}
    neutral = Space().dimensions(problem.cluster)
    used = {"devices": tuple(dict.fromkeys(recipe.devices for recipe in legal.values()))}
    dimensions = {name: (chosen | used).get(name, values) or values for name, values in neutral.items()}
    points: dict[Point, Recipe] = {}
    for values, recipe in legal.items():
        own: dict[str, Choice] = dict(zip(DIFFERING, values, strict=True)) | {"devices": recipe.devices}
        points[tuple(own.get(name, dimensions[name][0]) for name in dimensions)] = recipe
    return Survey(problem=problem, dimensions=dimensions, legal=points)


def _values(recipe: Recipe) -> Point:
    values = {name: DIMENSIONS[name].of(recipe) for name in DIFFERING}
    return tuple((values | ({"schedule": "1f1b"} if recipe.pipeline_parallel == 1 else {})).values())
