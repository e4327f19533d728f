"""One knob at a time around the best recipe, as the Frontier study varies them (arXiv 2312.12705).

The other knobs stay as the best recipe has them; what follows from them moves with it: data parallelism follows
from the devices, and accumulation from the global batch where that is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from frontrunner.evaluators.analytic.estimates import Estimate
from frontrunner.evaluators.insight.collected import Collected, Missing
from frontrunner.evaluators.insight.knobs import setting, shown
from frontrunner.evaluators.insight.landscape import NOTHING_MEASURED
from frontrunner.evaluators.insight.predicted import predicted_speeds
from frontrunner.spaces.legality import Reason, why_illegal
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import recipe_at

FIRST = ("tensor_parallel", "pipeline_parallel", "micro_batch_seqs", "accumulation")
"""The knobs that the Frontier study varies, in its order; the space's others follow."""


class Source(StrEnum):
    """What a point of a curve rests on."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    FAILED = "failed"
    ILLEGAL = "illegal"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best recipe with one knob at `value`.

    `tokens_per_s` is None for what failed, is illegal, or is unknown to the formulas; `note` then says why. An
    estimate is the model's ratio to its own estimate of the best recipe, times what that was measured to reach.
    """

    value: Choice
    source: Source
    tokens_per_s: float | None
    note: str
    is_best: bool

    @property
    def label(self) -> str:
        """The value in words."""
        return shown(self.value)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One knob with a point for each of the space's values, in their order; numbers rise."""

    dimension: str
    points: tuple[Point, ...]

    @property
    def label(self) -> str:
        """The knob's name as axes print it."""
        return DIMENSIONS[self.dimension].label

    @property
    def can_move(self) -> bool:
        """Whether a value other than the best recipe's is legal."""
        return any(point.source is not Source.ILLEGAL and not point.is_best for point in self.points)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The curves around the best recipe.

    `curves` are of knobs that some other legal value is left for, `fixed` of the others. `accumulation_follows` says
    that it is no knob: the global batch is fixed.
    """

    best_id: str
    best: Recipe
    best_tokens_per_s: float
    curves: tuple[Curve, ...]
    fixed: tuple[Curve, ...]
    accumulation_follows: bool


def sensitivity(collected: Collected) -> Sensitivity | Missing:
    """The curves of every knob with a choice, around the fastest measured recipe."""
    if not collected.ranking:
        return NOTHING_MEASURED
    dimensions = collected.survey.dimensions
    varied = [name for name, values in dimensions.items() if len(values) > 1]
    if not varied:
        return Missing(reason="The space has one value for each knob: there is nothing to vary.")
    ordered = [name for name in FIRST if name in varied] + [name for name in varied if name not in FIRST]
    best = collected.ranking[0]
    curves = [_curve(name, collected) for name in ordered]
    if not any(curve.can_move for curve in curves):
        return Missing(reason="No knob can be moved alone: with one value changed, no recipe is legal.")
    return Sensitivity(
        best_id=best.recipe_id,
        best=best.recipe,
        best_tokens_per_s=best.standing.tokens_per_s,
        curves=tuple(curve for curve in curves if curve.can_move),
        fixed=tuple(curve for curve in curves if not curve.can_move),
        accumulation_follows="accumulation" not in dimensions,
    )


def _curve(dimension: str, collected: Collected) -> Curve:
    best = collected.ranking[0].recipe
    answers = dict(_variants(dimension, collected))
    recipes = [answer for answer in answers.values() if isinstance(answer, Recipe)]
    estimates = predicted_speeds([best, *recipes], collected)
    points = [_point(value, answer, estimates, collected) for value, answer in answers.items()]
    return Curve(dimension=dimension, points=tuple(points))


def _variants(dimension: str, collected: Collected) -> Iterator[tuple[Choice, Recipe | Reason]]:
    """The best recipe with each value of the space, or why there is none; values that change nothing are left out."""
    best, dimensions = collected.ranking[0].recipe, collected.survey.dimensions
    own = setting(best, dimension)
    values = sorted(dimensions[dimension]) if not isinstance(own, str) else list(dimensions[dimension])
    for value in values:
        choice = {name: setting(best, name) for name in dimensions} | {dimension: value}
        if choice["schedule"] == "none":
            choice["schedule"] = dimensions["schedule"][0]
        answer = recipe_at(choice, collected.problem)
        if isinstance(answer, Recipe):
            answer = why_illegal(answer, collected.problem) or answer
        if value == own or answer != best:
            yield value, answer


def _point(value: Choice, answer: Recipe | Reason, estimates: dict[Recipe, Estimate], collected: Collected) -> Point:
    source, tokens_per_s, note = Source.ILLEGAL, None, ""
    measured = {row.recipe: row.standing.tokens_per_s for row in collected.ranking}
    best = collected.ranking[0]
    if isinstance(answer, Reason):
        note = answer.text
    elif answer in measured:
        source, tokens_per_s = Source.MEASURED, measured[answer]
    elif answer in collected.final_failures:
        source, note = Source.FAILED, collected.final_failures[answer].kind.value
    elif answer in estimates and best.recipe in estimates:
        source, found = Source.ESTIMATED, estimates[answer]
        tokens_per_s = best.standing.tokens_per_s * found.tokens_per_s / estimates[best.recipe].tokens_per_s
        note = "" if found.fits else "estimated not to fit in memory"
    else:
        source, note = Source.UNKNOWN, "unknown to the formulas"
    return Point(value=value, source=source, tokens_per_s=tokens_per_s, note=note, is_best=answer == best.recipe)
