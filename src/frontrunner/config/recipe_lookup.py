"""Lookup of one recipe of a campaign's space, by its id or by choices that leave one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from frontrunner.config.campaign import keys_of
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, NotFound, NothingLegal, bad_value, did_you_mean, shown, shown_key
from frontrunner.spaces.recipe import Recipe, current_names
from frontrunner.spaces.space import Space
from frontrunner.spaces.validation import refuse_unusable_values, validate

LEAST_DIGITS = 4
MOST_CANDIDATES = 8


def one_recipe(spec: CampaignSpec, choices: Mapping[str, object]) -> Recipe:
    """Return the one legal recipe of the campaign's space with these values, which need not be among the space's own.

    Raises `InvalidInput` for an unknown dimension or value and for several recipes, and `NothingLegal` for none.
    """
    choices = current_names(choices)
    for key in choices:
        if key not in keys_of("space"):
            raise InvalidInput(f"unknown choice {shown_key(key)}", hint=did_you_mean(key, keys_of("space")))
    refuse_unusable_values(choices)
    space = asdict(spec.space) | {key: [value] for key, value in choices.items()}
    survey = validate(Space, space, prefix="space").survey(spec.problem)
    named = ", ".join(f"{key}={shown(value)}" for key, value in choices.items()) or "no choice made"
    if not survey.recipes:
        reasons = "; ".join(text for _, _, text in survey.refused_by_count())
        raise NothingLegal(f"no recipe with {named} is legal: {reasons}")
    if len(survey.recipes) > 1:
        columns = zip(survey.dimensions, zip(*survey.legal, strict=True), strict=True)
        open_ones = ", ".join(key for key, values in columns if len(set(values)) > 1)
        raise InvalidInput(
            f"{len(survey.recipes):,} recipes of the space have {named}", hint=f"name {open_ones} as well"
        )
    return survey.recipes[0]


def recipe_by_id(spec: CampaignSpec, beginning: str) -> Recipe:
    """Return the legal recipe of the campaign's space whose id has this prefix.

    Raises `InvalidInput` for fewer than `LEAST_DIGITS` characters, and `NotFound` unless exactly one recipe matches.
    """
    wanted = beginning.strip().lower()
    if len(wanted) < LEAST_DIGITS:
        raise bad_value("recipe id", beginning, f"at least the first {LEAST_DIGITS} characters of one")
    recipes = spec.survey().recipes
    found = {name: recipe for recipe in recipes if (name := recipe_id(spec.problem, recipe)).startswith(wanted)}
    if not found:
        raise NotFound(
            f"none of the {len(recipes):,} legal recipes of the space has an id that begins with {wanted!r}",
            hint="frontrunner plan FILE names recipes; choices as tensor_parallel=8 name one that the space lacks",
        )
    if len(found) > 1:
        candidates = ", ".join(sorted(found)[:MOST_CANDIDATES])
        raise NotFound(f"{len(found)} recipe ids of the space begin with {wanted!r}", hint=f"one of: {candidates}")
    return next(iter(found.values()))
