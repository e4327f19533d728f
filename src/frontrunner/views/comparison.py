"""Comparison of recipes: figures, choices and the parts of the estimated step, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.results.states import TrialState
from frontrunner.results.status import Appearance, Explanation, Status
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.recipe import DIMENSIONS, Dimension, Recipe
from frontrunner.text import node_time, plain, seconds
from frontrunner.views.columns import FIGURES, ORIGINS, PARTS, Column, used
from frontrunner.views.terminal import console, ruled_table

DIFFERENT_PROBLEMS = "the recipes are of different problems: their figures are not comparable"
DIFFERENT_ORIGINS = "figures of different origin: no ratio of them shows which recipe is faster"
Row = tuple[str, tuple[str, ...]]
NOT_COMPARED = ("name", "run_root", "file", "changes")
"""Keys of a specification that say nothing of the search."""
CITED = "source"
"""Key of where a cluster's figures come from: a citation, which differs with the cluster."""
COMPARABLE = (
    "model", "parameters", "cluster", "device", "devices", "sequence_length", "global_batch",
    "precision", "figures",
)  # fmt: skip
"""Keys of a campaign's summary that rates depend on; its others are of what was sought, tokens and
prices.
"""
LONGEST_VALUE = 120
ABSENT = "-"


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the values of a document, each with the keys that lead to it and in words."""
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from _leaves(inside, (*path, key))
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for number, inside in enumerate(value, start=1):
            yield from _leaves(inside, (*path, str(number)))
    elif value not in (None, [], {}):
        text = ", ".join(map(_in_words, value)) if isinstance(value, list) else _in_words(value)
        yield path, text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else plain(str(value))
    )


def differences(documents: Sequence[Mapping[str, object]]) -> tuple[Row, ...]:
    """Return what differs between documents of one kind, by words: those of the problem first."""
    found = [
        {
            path: text
            for path, text in _leaves(dict(one))
            if path[0] not in NOT_COMPARED and path[-1] != CITED
        }
        for one in documents
    ]
    paths = dict.fromkeys(path for one in found for path in one)
    rows = {path: tuple(one.get(path, ABSENT) for one in found) for path in paths}
    # The sections follow one another as in a campaign file, the problem's before how it is
    # searched.
    differing = sorted(
        (path for path in rows if len(set(rows[path])) > 1), key=lambda path: path[0] != "problem"
    )
    return tuple((_named(path), rows[path]) for path in differing)


def _specification(campaign: Campaign) -> dict[str, Any]:
    """Return a campaign's specification as a document, its baseline in words instead of choice by
    choice.
    """
    found: dict[str, Any] = json.loads(campaign.spec_json)
    baseline = stored_spec(campaign).search.baseline
    return (
        found
        if baseline is None
        else found | {"search": found["search"] | {"baseline": baseline.describe()}}
    )


def _named(path: Sequence[str]) -> str:
    words = [
        one.replace("_", " ")
        for one in (path[1:] if path[0] == "problem" and len(path) > 1 else path)
    ]
    return words[0] if len(words) == 1 else f"{words[0]}: {' '.join(words[1:])}"


@dataclass(frozen=True, kw_only=True)
class ComparedCampaigns:
    """Campaigns side by side: rows have a name and a cell per campaign; `differing` is what was
    stated differently.
    """

    names: tuple[str, ...]
    origins: tuple[str, ...]
    same_problem: bool
    differing: tuple[Row, ...]
    figures: tuple[Row, ...]


def compare_campaigns(sides: Sequence[Status]) -> ComparedCampaigns:
    """Compare campaigns: what of their specifications differs, and how far each came."""
    specs = [_specification(side.campaign) for side in sides]
    columns: list[Column[Status]] = [
        column.of(lambda side: side.best and side.best.standing) for column in FIGURES
    ]
    about: dict[str, Callable[[Status], str]] = {
        "state": lambda side: side.state_in_words,
        "best recipe": lambda side: side.best.recipe_id if side.best else ABSENT,
        "its choices": lambda side: side.best.recipe.describe() if side.best else ABSENT,
        "measured, failed": lambda side: (
            f"{side.trials[TrialState.MEASURED]:,}, {side.trials[TrialState.FAILED]:,}"
        ),
        "legal recipes": lambda side: f"{side.campaign.legal_recipes:,}",
        "spent": lambda side: (
            ABSENT
            if side.campaign.figures == IMPORTED
            else node_time(side.campaign.node_seconds_spent)
        ),
        "figures are": lambda side: side.campaign.figures,
    }
    return ComparedCampaigns(
        names=tuple(side.campaign.name for side in sides),
        origins=tuple(dict.fromkeys(side.campaign.figures for side in sides)),
        same_problem=all(spec.get("problem") == specs[0].get("problem") for spec in specs),
        differing=differences(specs),
        figures=(
            *((name, tuple(map(cell, sides))) for name, cell in about.items()),
            *(
                (one.label or one.title, tuple(map(one.cell, sides)))
                for one in used(columns, sides)
            ),
        ),
    )


def _print_tables(names: Sequence[str], tables: Mapping[str, Sequence[Row]]) -> None:
    """Print tables by their titles, but empty ones, with a column for each name."""
    out = console()
    for title, rows in tables.items():
        if rows:
            table = ruled_table(title, "", *((name, "right fold") for name in names))
            for name, cells in rows:
                table.add_row(name, *cells)
            out.print(table)
            out.print()


def print_campaign_comparison(found: ComparedCampaigns) -> None:
    """Print campaigns side by side, what differs in them first."""
    out = console()
    if len(found.origins) > 1:
        out.say(f"warning: {DIFFERENT_ORIGINS}", style="yellow")
    if not found.same_problem:
        out.say(
            "warning: the campaigns are of different problems: their rates are not comparable",
            style="yellow",
        )
    _print_tables(
        found.names, {"what differs": found.differing, "how far they came": found.figures}
    )
    if not found.differing:
        out.say("the campaigns have the same specification")


@dataclass(frozen=True, kw_only=True)
class ComparedRecipes:
    """Recipes side by side, each by its first appearance; rows have a name and a cell per recipe.

    `speed_ratios` are measured tokens/s over the first recipe's, None where one of the two was not
    measured or their problems differ. `problem` is what differs in their problems; `parts` are
    those of the estimated step times, empty where a recipe is not estimated.
    """

    recipe_ids: tuple[str, ...]
    campaigns: tuple[str, ...]
    origins: tuple[str, ...]
    same_problem: bool
    speed_ratios: tuple[float | None, ...]
    figures: tuple[Row, ...]
    differing: tuple[Row, ...]
    equal: tuple[Row, ...]
    problem: tuple[Row, ...] = ()
    parts: tuple[Row, ...] = ()


def choice(recipe: Recipe, dimension: Dimension) -> str:
    """Return one choice of a recipe in words."""
    value = recipe.layers_name if dimension.kind == "layers" else dimension.of(recipe)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def compare_recipes(
    sides: Sequence[Explanation], estimates: Sequence[Breakdown] = ()
) -> ComparedRecipes:
    """Compare stored recipes figure by figure and choice by choice."""
    shown = [side.appearances[0] for side in sides]
    problems = [[one.campaign.problem_summary.get(key) for key in COMPARABLE] for one in shown]
    rates = [one.standing.tokens_per_s if one.standing else None for one in shown]
    same = all(problem == problems[0] for problem in problems)
    recipes = [side.recipe for side in sides]
    choices: list[Row] = [
        (one.name.replace("_", " "), tuple(choice(of, one) for of in recipes))
        for one in DIMENSIONS.values()
    ]
    own = [{one.name: one.shown() for one in recipe.custom} for recipe in recipes]
    names = sorted({name for of in own for name in of})
    choices += [(name, tuple(of.get(name, "default") for of in own)) for name in names]
    choices.append(("data parallel", tuple(str(recipe.data_parallel) for recipe in recipes)))
    differs = [len(set(cells)) > 1 for _, cells in choices]
    times = [
        {**one.estimate.step_parts_s, "step": one.estimate.step_time_s or 0.0} for one in estimates
    ]
    columns: list[Column[Appearance]] = [column.of(lambda row: row.standing) for column in FIGURES]
    return ComparedRecipes(
        recipe_ids=tuple(side.recipe_id for side in sides),
        campaigns=tuple(one.campaign.name for one in shown),
        origins=tuple(dict.fromkeys(one.campaign.figures for one in shown)),
        same_problem=same,
        speed_ratios=tuple(
            rate / rates[0] if same and rate and rates[0] else None for rate in rates
        ),
        figures=tuple(
            (one.label or one.title, tuple(map(one.cell, shown))) for one in used(columns, shown)
        ),
        differing=tuple(row for row, other in zip(choices, differs, strict=True) if other),
        equal=tuple(row for row, other in zip(choices, differs, strict=True) if not other),
        problem=differences(
            [{"problem": json.loads(one.campaign.spec_json).get("problem")} for one in shown]
        ),
        parts=tuple(
            (title, tuple(seconds(parts[name]) if parts.get(name) else ABSENT for parts in times))
            for name, title in {**PARTS, "step": "step"}.items()
            if any(parts.get(name, 0.0) for parts in times)
        ),
    )


def print_comparison(found: ComparedRecipes) -> None:
    """Print recipes side by side: what was measured, the choices that differ, where the estimated
    steps go.
    """
    out = console()
    for origin in found.origins:
        if origin in ORIGINS:
            out.say(ORIGINS[origin], style="yellow")
    if not found.same_problem:
        out.say(f"warning: {DIFFERENT_PROBLEMS}", style="yellow")
    ratios = tuple("-" if ratio is None else f"{ratio:.2f}" for ratio in found.speed_ratios)
    measured = (
        ("campaign", found.campaigns),
        ("tokens/s over the first's", ratios),
        *found.figures,
    )
    sections = {
        "problems that differ": found.problem,
        "figures": measured,
        "choices that differ": found.differing,
        "estimated parts of the step": found.parts,
    }
    _print_tables(found.recipe_ids, sections)
    if not found.differing:
        out.say("the recipes do not differ")
