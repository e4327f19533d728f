"""Recipes in other tools' words: what is written is read back to the same recipe, and nothing is dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontrunner.evaluators.formats import names
from frontrunner.evaluators.formats.given import Given
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from support.formats import problem, recipes

PROBLEM = problem()
HEADER = ("a recipe of 'x' $(y) `z`", "line\nbreak")
GENERATED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def as_read(recipe: Recipe) -> Recipe:
    """What never travels, at its default."""
    return replace(recipe, engine="torch", replication="replicate")


@pytest.mark.parametrize("name", names.FORMATS)
@GENERATED
@given(data=st.data())
def test_what_can_be_said_is_read_back_to_the_same_recipe(name: str, data: st.DataObject) -> None:
    recipe = data.draw(recipes(PROBLEM))
    reason = names.why_not(name, PROBLEM, recipe)
    if reason is not None:
        with pytest.raises(InvalidInput, match="cannot be told this recipe"):
            names.export(name, PROBLEM, recipe)
        return
    text = names.render(name, PROBLEM, recipe, HEADER)
    stated = {"engine": "torch"} | ({"devices": recipe.devices} if name == "nemo" else {})
    assert names.read(name, PROBLEM, Given(text=text, stated=stated)) == as_read(recipe)
