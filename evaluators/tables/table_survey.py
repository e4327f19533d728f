"""The recipes of a table's problem as a surveyed space: what is in no row is illegal, and so costs no probe."""

from __future__ import annotations

from collections.abc import Iterable

from frontrunner.spaces.choices import Choice
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Point, Space, Survey

DIMENSIONS = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "micro_batch_seqs",
    "virtual_stages",
    "schedule",
    "sharding",
    "recompute",
    "sequence_parallel",
)
"""What a table's recipes differ in; accumulation follows from the fixed global batch."""


def survey_of(recipes: Iterable[Recipe], problem: Problem) -> Survey:
    """The space of exactly these recipes, all of which use the cluster's devices alike. They are not judged again."""
    legal = {_values(recipe): recipe for recipe in recipes}
    chosen = {name: tuple(dict.fromkeys(values[place] for values in legal)) for place, name in enumerate(DIMENSIONS)}
    neutral = Space().dimensions(problem.cluster)
    used = {"devices": tuple(dict.fromkeys(recipe.devices for recipe in legal.values()))}
    dimensions = {name: (chosen | used).get(name, values) or values for name, values in neutral.items()}
    points: dict[Point, Recipe] = {}
    for values, recipe in legal.items():
        own: dict[str, Choice] = dict(zip(DIMENSIONS, values, strict=True)) | {"devices": recipe.devices}
        points[tuple(own.get(name, dimensions[name][0]) for name in dimensions)] = recipe
    return Survey(problem=problem, dimensions=dimensions, legal=points)


def _values(recipe: Recipe) -> Point:
    schedule = recipe.schedule if recipe.pipeline_parallel > 1 else "1f1b"
    return (
        recipe.tensor_parallel,
        recipe.pipeline_parallel,
        recipe.context_parallel,
        recipe.micro_batch_seqs,
        recipe.virtual_stages,
        schedule,
        recipe.sharding_name,
        recipe.recompute,
        recipe.sequence_parallel,
    )
