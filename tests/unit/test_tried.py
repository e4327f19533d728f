"""What a driver remembers of the recipes that it has tried."""

from __future__ import annotations

from dataclasses import replace

from frontrunner.results.outcome import ProbeEnding, Telemetry
from frontrunner.search.tried import MORE_ROWS, TriedRecipes
from frontrunner.spaces.columns import RecipeColumns
from support.campaigns import spec_of, tiny
from support.rankings import measurement

SPEC = spec_of(tiny())
SURVEY = SPEC.space.survey(SPEC.problem)
FIRST, SECOND, *_ = SURVEY.recipes
DISTURBED = Telemetry(foreign_limit=0.1, foreign_share=(0.4,), foreign_processes=("make 7",))
FULL = measurement((1.0, 1.0), 1)
CUT = replace(measurement((0.5, 0.5), 1), ended=ProbeEnding.SLOWER)


def test_tried_recipes_are_remembered_one_by_one() -> None:
    tried = TriedRecipes(SURVEY.recipes)
    tried.propose(FIRST)
    tried.measured(SECOND, [replace(FULL, telemetry=DISTURBED)], 1.0)
    assert (tried.is_proposed(FIRST), tried.is_proposed(SECOND)) == (True, False)
    assert (tried.measurements(FIRST), tried.measurements(SECOND)) == (0, 1)
    assert (tried.is_disturbed(FIRST), tried.is_disturbed(SECOND)) == (False, True)
    tried.measured(SECOND, [FULL, FULL], 1.0)
    assert (tried.measurements(SECOND), tried.is_disturbed(SECOND)) == (2, False)
    tried.failed(SECOND)
    assert tried.measurements(SECOND) == 0


def test_tried_recipes_may_lie_outside_of_the_space() -> None:
    strangers = [replace(FIRST, accumulation=1000 + number) for number in range(3 * MORE_ROWS)]
    tried = TriedRecipes(SURVEY.recipes)
    for number, recipe in enumerate(strangers):
        assert not tried.is_proposed(recipe)
        tried.propose(recipe)
        tried.measured(recipe, [FULL] * (1 + number % 4), 1.0)
    assert all(map(tried.is_proposed, strangers))
    assert [tried.measurements(one) for one in strangers] == [
        1 + number % 4 for number in range(len(strangers))
    ]
    assert not any(map(tried.is_proposed, SURVEY.recipes))
    assert tried.measured_less_than(2) == strangers[0]


def test_leaders_without_a_full_measurement_are_named_until_they_are_confirmed() -> None:
    tried = TriedRecipes(RecipeColumns.of([FIRST]))
    assert tried.unconfirmed_leaders() == []
    tried.measured(FIRST, [FULL], 1.0)
    tried.measured(SECOND, [CUT], 1.0)
    assert tried.unconfirmed_leaders() == [SECOND]
    tried.allow_repeat(SECOND, allowed=False)
    assert tried.unconfirmed_leaders() == []
    tried.allow_repeat(SECOND, allowed=True)
    tried.failed(SECOND)
    assert tried.unconfirmed_leaders() == []
    tried.measured(SECOND, [CUT, CUT], 1.0)
    assert tried.unconfirmed_leaders() == [SECOND]
    tried.confirm(SECOND)
    assert tried.unconfirmed_leaders() == []


def test_recipes_with_too_few_measurements_are_wanted_unless_they_may_not_be_repeated() -> None:
    tried = TriedRecipes(SURVEY.recipes)
    assert tried.measured_less_than(2) is None
    tried.measured(FIRST, [FULL], 1.0)
    tried.measured(SECOND, [FULL], 1.0)
    assert tried.measured_less_than(2) == FIRST
    tried.allow_repeat(FIRST, allowed=False)
    assert tried.measured_less_than(2) == SECOND
    assert tried.measured_less_than(1) is None
