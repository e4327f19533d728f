"""Comparison of recipes: figures, choices and the parts of the estimated step, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.results.status import Appearance, Explanation
from frontrunner.spaces.recipe import Dimension, Recipe, dimensions_of
from frontrunner.text import seconds
from frontrunner.views.columns import FIGURES, ORIGINS, PARTS, Column, used
from frontrunner.views.terminal import console, ruled_table

DIFFERENT_PROBLEMS = "the recipes are of different problems: their figures are not comparable"
Row = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class ComparedRecipes:
    """Recipes side by side, each by its first appearance; rows have a name and a cell per recipe.

    `speed_ratios` are measured tokens/s over the first recipe's, None where one of the two was not measured or their
    problems differ. `parts` are those of the estimated step times, empty where a recipe is not estimated.
    """

    recipe_ids: tuple[str, ...]
    campaigns: tuple[str, ...]
    origins: tuple[str, ...]
    same_problem: bool
    speed_ratios: tuple[float | None, ...]
    figures: tuple[Row, ...]
    differing: tuple[Row, ...]
    equal: tuple[Row, ...]
    parts: tuple[Row, ...] = ()


def choice(recipe: Recipe, dimension: Dimension) -> str:
    """Return one choice of a recipe in words."""
    value = recipe.layers_name if dimension.kind == "layers" else dimension.of(recipe)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def compare_recipes(sides: Sequence[Explanation], estimates: Sequence[Breakdown] = ()) -> ComparedRecipes:
    """Compare stored recipes figure by figure and choice by choice."""
    shown = [side.appearances[0] for side in sides]
    problems = [dict(one.campaign.problem_summary) for one in shown]
    rates = [one.standing.tokens_per_s if one.standing else None for one in shown]
    same = all(problem == problems[0] for problem in problems)
    recipes = [side.recipe for side in sides]
    stated = dimensions_of(*recipes)
    choices: list[Row] = [(one.name.replace("_", " "), tuple(choice(of, one) for of in recipes)) for one in stated]
    own = [{one.name: one.shown() for one in recipe.custom} for recipe in recipes]
    names = sorted({name for of in own for name in of})
    choices += [(name, tuple(of.get(name, "default") for of in own)) for name in names]
    choices.append(("data parallel", tuple(str(recipe.data_parallel) for recipe in recipes)))
    differs = [len(set(cells)) > 1 for _, cells in choices]
    times = [{**one.estimate.step_parts_s, "step": one.estimate.step_time_s} for one in estimates]
    columns: list[Column[Appearance]] = [column.of(lambda row: row.standing) for column in FIGURES]
    return ComparedRecipes(
        recipe_ids=tuple(side.recipe_id for side in sides),
        campaigns=tuple(one.campaign.name for one in shown),
        origins=tuple(dict.fromkeys(one.campaign.figures for one in shown)),
        same_problem=same,
        speed_ratios=tuple(rate / rates[0] if same and rate and rates[0] else None for rate in rates),
        figures=tuple((one.label or one.title, tuple(map(one.cell, shown))) for one in used(columns, shown)),
        differing=tuple(row for row, other in zip(choices, differs, strict=True) if other),
        equal=tuple(row for row, other in zip(choices, differs, strict=True) if not other),
        parts=tuple(
            (title, tuple(seconds(parts[name]) if parts.get(name) else "-" for parts in times))
            for name, title in {**PARTS, "step": "step"}.items()
            if any(parts.get(name, 0.0) for parts in times)
        ),
    )


def print_comparison(found: ComparedRecipes) -> None:
    """Print recipes side by side: what was measured, the choices that differ, where the estimated steps go."""
    out = console()
    for origin in found.origins:
        if origin in ORIGINS:
            out.say(ORIGINS[origin], style="yellow")
    if not found.same_problem:
        out.say(f"warning: {DIFFERENT_PROBLEMS}", style="yellow")
    heads = [(one, "right") for one in found.recipe_ids]
    ratios = tuple("-" if ratio is None else f"{ratio:.2f}" for ratio in found.speed_ratios)
    measured = (("campaign", found.campaigns), ("tokens/s over the first's", ratios), *found.figures)
    parts = found.parts
    sections = {"figures": measured, "choices that differ": found.differing, "estimated parts of the step": parts}
    for title, rows in sections.items():
        if rows:
            table = ruled_table(title, "", *heads)
            for name, cells in rows:
                table.add_row(name, *cells)
            out.print(table)
            out.print()
    if not found.differing:
        out.say("the recipes do not differ")
