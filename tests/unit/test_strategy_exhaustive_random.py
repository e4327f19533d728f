"""The strategies that follow a list: their order, and that what is forgotten comes first."""

from __future__ import annotations

import random

from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.search.strategies.exhaustive_random import Listed
from frontrunner.search.strategy import Told
from frontrunner.spaces.recipe import Recipe

RECIPES = [Recipe(devices=1, micro_batch_seqs=size, accumulation=1) for size in range(1, 41)]


def lost(recipe: Recipe) -> Told:
    return Told(recipe=recipe, outcome=Failure(kind=FailureKind.LOST, message="gone"))


def test_recipes_come_in_the_order_of_the_list():
    listed = Listed(RECIPES)
    assert listed.ask(3) + listed.ask(100) == RECIPES
    assert listed.ask(1) == []


def test_forgotten_recipes_come_first_and_in_order():
    listed = Listed(RECIPES)
    listed.ask(5)
    listed.forget(RECIPES[3])
    listed.forget(RECIPES[1])
    assert listed.ask(3) == [RECIPES[1], RECIPES[3], RECIPES[5]]


def test_a_forgotten_recipe_that_is_told_later_does_not_come_again():
    listed = Listed(RECIPES)
    listed.ask(2)
    listed.forget(RECIPES[0])
    listed.tell(lost(RECIPES[0]))
    assert listed.ask(1) == [RECIPES[2]]


def test_any_order_of_calls_proposes_what_a_plain_set_says():
    for seed in range(30):
        chance, listed = random.Random(seed), Listed(RECIPES)
        free, proposed = set(RECIPES), set()
        for _ in range(120):
            action = chance.choice(["ask", "tell", "tell any", "forget"])
            if action == "ask":
                count = chance.randint(1, 4)
                batch = listed.ask(count)
                assert len(set(batch)) == len(batch) == min(count, len(free))
                assert free.issuperset(batch)
                free -= set(batch)
                proposed |= set(batch)
            elif action == "tell any" or (action == "tell" and proposed):
                pool = RECIPES if action == "tell any" else sorted(proposed, key=RECIPES.index)
                recipe = chance.choice(pool)
                listed.tell(lost(recipe))
                free.discard(recipe)
                proposed.discard(recipe)
            elif action == "forget" and proposed:
                recipe = chance.choice(sorted(proposed, key=RECIPES.index))
                listed.forget(recipe)
                proposed.discard(recipe)
                free.add(recipe)
        assert set(listed.ask(1000)) == free
