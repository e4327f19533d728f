"""The strategies that follow a list."""

from __future__ import annotations

from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.search.strategies.candidates import Listed
from frontrunner.search.strategy import Told
from frontrunner.spaces.recipe import Recipe

RECIPES = [Recipe(devices=1, micro_batch_seqs=size, accumulation=1) for size in range(1, 41)]


def lost(recipe: Recipe) -> Told:
    return Told(recipe=recipe, outcome=Failure(kind=FailureKind.LOST, message="gone"))


def test_recipes_come_in_the_order_of_the_list():
    listed = Listed(RECIPES)
    assert listed.ask(3) + listed.ask(100) == RECIPES
    assert listed.ask(1) == []


def test_told_recipes_are_left_out_wherever_the_list_is():
    listed = Listed(RECIPES)
    listed.ask(2)
    for recipe in (RECIPES[0], RECIPES[3]):
        listed.tell(lost(recipe))
    assert listed.ask(3) == [RECIPES[2], *RECIPES[4:6]]
