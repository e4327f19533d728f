"""The page that compares campaigns, or recipes, side by side: what differs in their problems
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from frontrunner.evaluators.analytic.breakdown import Breakdown, breakdown
from frontrunner.recipe_actions import first_measurement
from frontrunner.results.pages import MOST_COMPARED, compare, newest_names
from frontrunner.results.status import Explanation, explain, status
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.server.pages.rendering import page
from frontrunner.server.requests import redacted
from frontrunner.server.service import CachedRoute, Service, ServiceOf, without_store
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, NotFound, bad_value
from frontrunner.views.charts.campaign import courses
from frontrunner.views.charts.recipe import steps_beside
from frontrunner.views.comparison import (
    DIFFERENT_ORIGINS,
    DIFFERENT_PROBLEMS,
    compare_campaigns,
    compare_recipes,
)

router = APIRouter(route_class=CachedRoute)
MOST_NAMES = 200
Several = Annotated[list[Annotated[str, Query(max_length=64)]], Query(max_length=MOST_NAMES)]


@router.get("/compare")
def compared(
    service: ServiceOf,
    campaign: Several = [],  # noqa: B006 - FastAPI copies it
    recipe: Several = [],  # noqa: B006
) -> Response:
    """Campaigns, or recipes (of one campaign), side by side; without either, the forms to choose
    them.
    """
    store = service.store
    names, recipes = [name for name in campaign if name], [one for one in recipe if one]
    within = names[0] if len(names) == 1 and recipes else None
    problem = ""
    values: dict[str, Any] = {}
    nothing = dict.fromkeys(
        ("sides", "table", "shared", "total", "courses", "steps", "beside", "layouts")
    )
    try:
        if recipes:
            values = _recipes(store, recipes, within)
        elif names:
            values = _campaigns(service, names)
    except (InvalidInput, NotFound) as error:
        problem = without_store(error.message, store.url)
    chosen = names if "sides" in values else []
    known = newest_names(store, MOST_NAMES)
    known += [name for name in chosen if name not in known]
    return page(
        "compare.html",
        here="/compare",
        known=known,
        chosen=_fields(chosen or (known * 2)[:2]),
        recipes=_fields(recipes or ["", ""]),
        within=within,
        problem=problem,
        different_problems=DIFFERENT_PROBLEMS,
        different_origins=DIFFERENT_ORIGINS,
        **nothing | values,
    )


def _fields(chosen: Sequence[str]) -> list[str]:
    """Return what the fields of a form hold: what was chosen, and room for one more."""
    return [*chosen, ""][:MOST_COMPARED]


def _campaigns(service: Service, names: Sequence[str]) -> dict[str, Any]:
    store = service.store
    found = compare(store, names)
    with store.database.reading():
        sides = [redacted(status(store, name)) for name in names]
    summaries = [side.campaign for side in found.sides]
    read = service.courses.of(store, summaries)
    bests: dict[str, Breakdown] = {}
    for side in sides:
        if side.best is not None:
            _add_breakdown(
                bests, side.campaign.name, explain(store, side.best.recipe_id, side.campaign.name)
            )
    return {
        "sides": sides,
        "table": compare_campaigns(sides),
        "shared": found.shared,
        "total": found.total,
        "courses": courses({one.name: (read[one.id], one.outcomes) for one in summaries}),
        "steps": steps_beside(bests),
    }


def _recipes(store: Store, ids: Sequence[str], within: str | None) -> dict[str, Any]:
    if not 2 <= len(ids) <= MOST_COMPARED:
        raise bad_value("recipes", ", ".join(ids), f"2 to {MOST_COMPARED} to compare")
    found = [explain(store, one, within) for one in ids]
    parts: dict[str, Breakdown] = {}
    for one in found:
        _add_breakdown(parts, f"{one.recipe.layout()} {one.recipe_id[:6]}", one)
    layouts = [one.recipe.layout() for one in found]
    return {"beside": compare_recipes(found), "layouts": layouts, "steps": steps_beside(parts)}


def _add_breakdown(parts: dict[str, Breakdown], named: str, found: Explanation) -> None:
    """Add the breakdown of a recipe as its first appearance has it, unless the formulas do not
    cover it.
    """
    lead = replace(found, appearances=found.appearances[:1])
    with suppress(FrontrunnerError):
        problem = stored_spec(lead.appearances[0].campaign).problem
        parts[named] = breakdown(found.recipe, problem, first_measurement(lead, ""))
