"""Recipes around one: with another value of one dimension, and on other numbers of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from frontrunner.spaces.custom import CustomKnob
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import Reason, why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe, custom_dimension
from frontrunner.spaces.space import DEGREES, Space, Survey


def choices_of(recipe: Recipe, survey: Survey) -> dict[str, Choice]:
    """Return the recipe's value of each dimension; without a pipeline, the first schedule that is
    listed.
    """
    found = {name: survey.dimension(name).of(recipe) for name in survey.dimensions}
    if found["schedule"] == "none":
        found["schedule"] = survey.dimensions["schedule"][0]
    return found


def variant(recipe: Recipe, survey: Survey, **changed: Choice) -> Recipe | Reason:
    """Return the recipe with other values of these dimensions, or why that is not legal."""
    found = survey.recipe_at(choices_of(recipe, survey) | changed)
    return found if isinstance(found, Reason) else why_illegal(found, survey.problem) or found


def scaled(recipe: Recipe, survey: Survey, devices: int, *, weak: bool) -> Recipe | Reason:
    """Return the recipe with more or fewer replicas, so that it uses this many devices, or why that
    is not legal.

    Strong scaling keeps the global batch, weak scaling that of each replica, by the accumulation.
    """
    accumulation, replica = recipe.accumulation, recipe.devices // recipe.data_parallel
    if devices % replica:
        text = (
            f"a replica of {' x '.join(f'{name} {getattr(recipe, name)}' for name in DEGREES)} does"
            " not divide"
        )
        return Reason("devices-divide", f"{text} {devices} devices")
    if not weak:
        at_once, batch = recipe.micro_batch_seqs * (devices // replica), recipe.global_batch_seqs
        if batch % at_once:
            text = (
                f"micro-batch {recipe.micro_batch_seqs} x {devices // replica} replicas does not"
                " divide"
            )
            return Reason("global-batch", f"{text} global batch {batch}")
        accumulation = batch // at_once
    return variant(recipe, survey, devices=devices, accumulation=accumulation)


def sweep(space: Space, recipe: Recipe, problem: Problem) -> Survey:
    """Survey a recipe, and those of the space that differ from it in one dimension."""
    survey = _around(space, recipe, problem)
    from frontrunner.spaces.enumeration import (
        look_at,
    )  # numpy, which a campaign file's checks do without

    own = {name: survey.dimension(name).of(recipe) for name in survey.dimensions}
    return look_at(
        survey,
        (
            choices_of(recipe, survey) | {name: value}
            for name, values in survey.dimensions.items()
            for value in values
            if value != own[name]
        ),
    )


def scale(space: Space, recipe: Recipe, problem: Problem) -> Survey:
    """Survey a recipe on the space's numbers of devices, by strong and by weak scaling."""
    survey = _around(space, recipe, problem)
    from frontrunner.spaces.enumeration import look_at

    own = choices_of(recipe, survey)

    def points() -> Iterator[Mapping[str, Choice]]:
        for devices in sorted(map(int, survey.dimensions["devices"])):
            for weak in (False, True):
                found = scaled(recipe, survey, devices, weak=weak)
                accumulation = (
                    recipe.accumulation if isinstance(found, Reason) else found.accumulation
                )
                yield own | {"devices": devices, "accumulation": accumulation}

    return look_at(survey, points())


def _around(space: Space, recipe: Recipe, problem: Problem) -> Survey:
    """Return a survey of the recipe alone, in the space with the recipe's own values added."""
    from frontrunner.spaces.enumeration import look_at

    dimensions = dict(space.dimensions(problem.cluster))
    for name, values in dimensions.items():
        own = space.dimension(name).of(recipe)
        dimensions[name] = values if own in (*values, "none") else (*values, own)
    empty = Survey.of_nothing(problem, dimensions, space.custom)
    survey = look_at(empty, [choices_of(recipe, empty)])
    if survey.recipes != (recipe,):
        found = (
            survey.recipes[0].describe() if survey.recipes else next(iter(survey.examples.values()))
        )
        raise InvalidInput(
            f"{recipe.describe()} is not what its values of a space's dimensions give: {found}"
        )
    return survey


AROUND: Mapping[str, Callable[[Space, Recipe, Problem], Survey]] = {"sweep": sweep, "scale": scale}
"""What the strategies that look around `search.baseline` measure of a space."""


def with_values(space: Space, recipe: Recipe, **values: tuple[Choice, ...]) -> Space:
    """Return the space of the recipe's own values, with these values of some dimensions besides."""
    given = {name: one.of(recipe) for name, one in DIMENSIONS.items()}
    own: dict[str, tuple[Choice, ...]] = {
        name: (value,) if value != "" else () for name, value in given.items()
    }
    own["accumulation"] = own["accumulation"] if space.accumulation else ()
    if own["schedule"] == (
        "none",
    ):  # there is no pipeline; one that a sweep makes has the space's first schedule
        own["schedule"] = space.schedule[:1]
    listed: dict[str, Any] = {
        name: tuple(dict.fromkeys((*values.get(name, ()), *own[name]))) for name in own
    }
    knobs = {
        one.name: CustomKnob(values=(one.value,), flag=one.flag, env=one.env)
        for one in recipe.custom
    }
    for name, knob in space.custom.items():
        value = custom_dimension(name, knob).of(recipe)
        if value in knob.values:  # the recipe may be of another campaign
            tried = tuple(dict.fromkeys((*values.get(name, ()), value)))
            knobs[name] = replace(
                knob, values=tried, default=knob.default if knob.default in tried else None
            )
    return replace(space, **listed, custom=knobs)
