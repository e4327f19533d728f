"""What recipes around one reach, measured and estimated: one dimension at a time, and over numbers
of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many, not_modelled
from frontrunner.results.states import TrialState
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Choice, Recipe
from frontrunner.spaces.space import Survey
from frontrunner.spaces.variants import scaled, variant

if TYPE_CHECKING:
    from frontrunner.results.arrays import Ended

Tried = Mapping[str, "Ended"]
"""The last attempt at each recipe, by its id."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A recipe with what it was measured to reach and its estimate, or why it is illegal.

    `outcome` is `measured`, the kind of a failure, or None where it was not tried.
    """

    recipe: Recipe | None
    recipe_id: str | None = None
    illegal: str | None = None
    outcome: str | None = None
    tokens_per_s: float | None = None
    peak_memory_bytes_max_rank: int | None = None
    estimate: Estimate | None = None

    @property
    def estimated_tokens_per_s(self) -> float | None:
        """The formulas' own, whatever was measured."""
        return None if self.estimate is None else self.estimate.tokens_per_s


def found_of(recipes: Sequence[Recipe | Reason], problem: Problem, tried: Tried) -> list[Found]:
    """Return what is known of these recipes, in order."""
    known = [
        recipe for recipe in recipes if isinstance(recipe, Recipe) and not_modelled(recipe) is None
    ]
    estimates = dict(zip(known, estimate_many(known, problem), strict=True)) if known else {}
    return [
        Found(recipe=None, illegal=recipe.text)
        if isinstance(recipe, Reason)
        else _found(recipe, recipe_id(problem, recipe), tried, estimates.get(recipe))
        for recipe in recipes
    ]


def _found(recipe: Recipe, name: str, tried: Tried, estimate: Estimate | None) -> Found:
    one = tried.get(name)
    outcome = None if one is None else "measured" if one.standing is not None else one.outcome
    is_over = one is not None and one.state in (TrialState.MEASURED, TrialState.FAILED)
    return Found(
        recipe=recipe,
        recipe_id=name,
        outcome=outcome if is_over else None,
        tokens_per_s=None if one is None else one.standing,
        peak_memory_bytes_max_rank=(one.peak_memory_bytes or None)
        if one is not None and one.standing
        else None,
        estimate=estimate,
    )


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A recipe with another value of one dimension, or with its own; changes are shares of that
    recipe's tokens/s.

    `expected_tokens_per_s` is what that recipe was measured to reach with the estimated change:
    errors that both estimates share cancel out.
    """

    dimension: str
    value: Choice
    is_own: bool
    found: Found
    change: float | None
    estimated_change: float | None
    expected_tokens_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class Sweep(Displayed):
    """A recipe, the `center`, with each value of some dimensions, one at a time."""

    center: Found
    variations: tuple[Variation, ...]


def _change(value: float | None, center: float | None) -> float | None:
    return None if not value or not center else value / center - 1


def variations(center: Recipe, dimension: str, survey: Survey, tried: Tried) -> Sweep:
    """Return a recipe with each value of one dimension; values that change nothing are left out."""
    values, own = survey.dimensions[dimension], survey.dimension(dimension).of(center)
    variants: dict[Choice, Recipe | Reason] = {}
    for value in values if isinstance(own, str) else sorted(values):
        one = center if value == own else variant(center, survey, **{dimension: value})
        if value == own or one != center:
            variants[value] = one
    first, *found = found_of([center, *variants.values()], survey.problem, tried)
    rows = []
    for value, its in zip(variants, found, strict=True):
        expected = _change(its.estimated_tokens_per_s, first.estimated_tokens_per_s)
        rows.append(
            Variation(
                dimension=dimension,
                value=value,
                is_own=value == own,
                found=its,
                change=_change(its.tokens_per_s, first.tokens_per_s),
                estimated_change=expected,
                expected_tokens_per_s=first.tokens_per_s * (1 + expected)
                if first.tokens_per_s and expected is not None
                else None,
            )
        )
    return Sweep(center=first, variations=tuple(rows))


def sweep(center: Recipe, survey: Survey, tried: Tried) -> Sweep:
    """Return a recipe with each value of every dimension of a survey that has a choice."""
    found = [variations(center, name, survey, tried) for name in varied_dimensions(survey)]
    rows = tuple(row for one in found for row in one.variations)
    return Sweep(center=found_of([center], survey.problem, tried)[0], variations=rows)


def varied_dimensions(survey: Survey) -> tuple[str, ...]:
    """Return the dimensions with a choice."""
    return tuple(name for name, choices in survey.dimensions.items() if len(choices) > 1)


@dataclass(frozen=True, kw_only=True)
class ScaledRecipe:
    """A recipe on a number of nodes; efficiencies are of tokens/s per device, over the fewest nodes
    measured.
    """

    nodes: int
    devices: int
    found: Found
    efficiency: float | None
    estimated_efficiency: float | None


@dataclass(frozen=True, kw_only=True)
class MeasuredScaling(Displayed):
    """A recipe with other numbers of replicas: strong scaling keeps its global batch, weak that of
    each replica.
    """

    strong: tuple[ScaledRecipe, ...]
    weak: tuple[ScaledRecipe, ...]


def measured_scaling(center: Recipe, survey: Survey, tried: Tried) -> MeasuredScaling:
    """Return a recipe over the numbers of devices of a survey, in rising order."""
    counts = sorted(map(int, survey.dimensions["devices"]))
    found = {}
    for weak in (False, True):
        recipes = [scaled(center, survey, count, weak=weak) for count in counts]
        found[weak] = tuple(
            _with_efficiency(counts, found_of(recipes, survey.problem, tried), survey.problem)
        )
    return MeasuredScaling(strong=found[False], weak=found[True])


def _with_efficiency(
    counts: Sequence[int], found: Sequence[Found], problem: Problem
) -> Iterator[ScaledRecipe]:
    """Yield the rows; both efficiencies are over the same count, the fewest nodes with a
    measurement.
    """
    first = next((place for place, one in enumerate(found) if one.tokens_per_s), None)
    if first is None:
        first = next((place for place, one in enumerate(found) if one.estimate), 0)

    def over(count: int, rate: float | None, of_first: float | None) -> float | None:
        return None if not rate or not of_first else (rate / count) / (of_first / counts[first])

    for count, one in zip(counts, found, strict=True):
        yield ScaledRecipe(
            nodes=-(-count // problem.cluster.devices_per_node),
            devices=count,
            found=one,
            efficiency=over(count, one.tokens_per_s, found[first].tokens_per_s),
            estimated_efficiency=over(
                count, one.estimated_tokens_per_s, found[first].estimated_tokens_per_s
            ),
        )
