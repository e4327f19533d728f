"""What the page of one recipe shows: how it cuts the model, where its time and memory go, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured, breakdown
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.results.explain import Appearance, Explanation, explain
from frontrunner.results.outcome import Measurement
from frontrunner.results.store import Store
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.starting import stored_spec
from frontrunner.travel_api import TARGETS
from frontrunner.views.charts.cut import Cut, cut
from frontrunner.views.charts.recipe import memory_bars, step_bars, step_times

MOST_STRIPS = 12
"""Of the newest measurements; the table below lists more."""


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """What a recipe can be exported to; `refused` says why it cannot, None where it can."""

    name: str
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class RecipeView:
    """One recipe. `leading` is the newest campaign that measured it, else the newest that tried.

    `breakdown`, `step` and `memory` are None where the formulas do not know the recipe: `why_no_breakdown` says so.
    """

    explanation: Explanation
    leading: Appearance
    problem: Problem
    cut: Cut
    breakdown: Breakdown | None
    why_no_breakdown: str
    step: dict[str, Any] | None
    memory: dict[str, Any] | None
    strip: dict[str, Any] | None
    exports: tuple[ExportTarget, ...]


def recipe_view(store: Store, recipe_id: str) -> RecipeView:
    """What the page shows of the recipe with this id, or a unique beginning of it; raises as `explain` does."""
    found = explain(store, recipe_id)
    leading = next((row for row in found.appearances if row.standing is not None), found.appearances[0])
    problem = stored_spec(leading.campaign).problem
    parts, why_not = None, ""
    try:
        parts = breakdown(found.recipe, problem, _measured(leading))
    except InvalidInput as error:
        why_not = error.message
    return RecipeView(
        explanation=found,
        leading=leading,
        problem=problem,
        cut=cut(found.recipe, problem.cluster, layers=problem.model.layers),
        breakdown=parts,
        why_no_breakdown=why_not,
        step=None if parts is None else step_bars(parts),
        memory=None if parts is None else memory_bars(parts),
        strip=step_times(_step_times(found.appearances)[:MOST_STRIPS]),
        exports=tuple(_export_target(name, problem, found.recipe) for name in TARGETS),
    )


def _export_target(name: str, problem: Problem, recipe: Recipe) -> ExportTarget:
    reason = TOOLS[name].why_not(problem, recipe) if name in TOOLS else None
    return ExportTarget(name=name, refused=None if reason is None else str(reason))


def _measured(row: Appearance) -> Measured | None:
    """What the estimate is held against; what was only simulated is no measurement."""
    if row.standing is None or row.campaign.figures != "measured":
        return None
    return Measured(
        store="",
        campaign=row.campaign.name,
        repeats=row.standing.repeats,
        step_time_s=row.standing.step_time_s_median,
        step_time_spread=row.standing.step_time_spread,
        tokens_per_s=row.standing.tokens_per_s,
        mfu=row.standing.mfu,
        peak_memory_bytes=row.standing.peak_memory_bytes_max_rank,
    )


def _step_times(appearances: Sequence[Appearance]) -> list[tuple[str, Sequence[float]]]:
    """The steps of each real measurement, the newest campaign first, the newest attempt of it first."""
    return [
        (f"{row.campaign.name} {row.trial.number}.{tried.attempt.number}", tried.outcome.step_times_s)
        for row in appearances
        if row.campaign.figures == "measured"
        for tried in reversed(row.attempts)
        if isinstance(tried.outcome, Measurement)
    ]
