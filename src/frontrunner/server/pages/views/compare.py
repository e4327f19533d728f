"""What the page that compares shows: two recipes choice by choice and figure by figure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from frontrunner.results.explain import Appearance, explain
from frontrunner.results.records import Standing
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.views.columns import FIGURES


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One line: what is compared, both values in words, and whether they differ."""

    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        return self.first != self.second


@dataclass(frozen=True, kw_only=True)
class RecipeComparison:
    """Two recipes. `speed_ratio` is the second's tokens/s over the first's, None where either was not measured.

    `same_problem` says whether their figures may be held against each other at all.
    """

    first_id: str
    second_id: str
    first: Appearance
    second: Appearance
    figures: tuple[Pair, ...]
    choices: tuple[Pair, ...]
    speed_ratio: float | None
    same_problem: bool


def compare_recipes(store: Store, first: str, second: str) -> RecipeComparison:
    """The recipes with these ids; raises as `explain` does."""
    one, other = explain(store, first), explain(store, second)
    left, right = (
        next((row for row in found.appearances if row.standing is not None), found.appearances[0])
        for found in (one, other)
    )
    ratio = None
    if left.standing is not None and right.standing is not None:
        ratio = right.standing.tokens_per_s / left.standing.tokens_per_s
    return RecipeComparison(
        first_id=one.recipe_id,
        second_id=other.recipe_id,
        first=left,
        second=right,
        figures=_figures(left.standing, right.standing),
        choices=_choices(one.recipe, other.recipe),
        speed_ratio=ratio,
        same_problem=dict(left.campaign.problem_summary) == dict(right.campaign.problem_summary),
    )


def _figures(first: Standing | None, second: Standing | None) -> tuple[Pair, ...]:
    columns = [column.of(lambda found: found) for column in FIGURES]
    return tuple(
        Pair(name=column.label or column.title, first=column.cell(first), second=column.cell(second))
        for column in columns
    )


def _choices(first: Recipe, second: Recipe) -> tuple[Pair, ...]:
    """Every choice of a recipe, and the replicas that follow; those that differ come first."""
    names = [field.name for field in fields(Recipe)]
    names.insert(names.index("context_parallel") + 1, "data_parallel")
    pairs = [
        Pair(name=name.replace("_", " "), first=choice(first, name), second=choice(second, name)) for name in names
    ]
    return tuple(sorted(pairs, key=lambda pair: not pair.differs))


def choice(recipe: Recipe, name: str) -> str:
    """One choice of a recipe in words."""
    value = getattr(recipe, name)
    if isinstance(value, Sharding):
        return recipe.sharding_name
    if name == "layers_per_stage":
        return recipe.layers_name
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
