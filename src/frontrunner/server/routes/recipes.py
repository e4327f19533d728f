"""Questions about recipes: rankings, fronts, pages with filters, and one recipe in full."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from frontrunner.front import OnFront, checked_objectives
from frontrunner.results.explain import Explanation
from frontrunner.results.pages import RecipePage
from frontrunner.results.ranking import RankBy, RankedRecipe
from frontrunner.server.answers import AnswersOf
from frontrunner.server.questions import RecipeQuestion
from frontrunner.server.routes.parameters import CampaignName, RecipeId
from frontrunner.server.secrets import explanation_told
from frontrunner.server.state import LocalOf
from frontrunner.travel_api import TARGETS

router = APIRouter(tags=["recipes"])
ExportTarget = Annotated[str, Query(json_schema_extra={"enum": list(TARGETS)})]
MaxMemory = Annotated[float | None, Query(gt=0, le=1e9, description="No rank above so many 1e9 bytes.")]


@router.get("/campaigns/{name}/best", response_model=list[RankedRecipe])
def best(
    answers: AnswersOf,
    store: LocalOf,
    name: CampaignName,
    top: Annotated[int, Query(ge=1, le=1000)] = 10,
    by: RankBy = RankBy.TOKENS,
    max_memory_gb: MaxMemory = None,
) -> Response:
    """A campaign's recipes, best first."""
    return answers.about((name,), lambda: store.best(name, top=top, by=by, max_memory_gb=max_memory_gb))


@router.get("/campaigns/{name}/pareto", response_model=list[RankedRecipe])
def pareto(answers: AnswersOf, store: LocalOf, name: CampaignName) -> Response:
    """The recipes that no other beats in both tokens/s and peak memory."""
    return answers.about((name,), lambda: store.pareto(name))


@router.get("/campaigns/{name}/front", response_model=list[OnFront])
def front(
    answers: AnswersOf,
    store: LocalOf,
    name: CampaignName,
    objective: Annotated[list[str], Query(min_length=2, max_length=3, examples=[["tokens", "nodes"]])],
) -> Response:
    """The recipes that no other beats in all the objectives named: tokens, memory (headroom), nodes."""
    wanted = checked_objectives(objective)
    return answers.about((name,), lambda: store.front(name, objectives=wanted))


@router.get("/campaigns/{name}/recipes", response_model=RecipePage)
def recipes(
    answers: AnswersOf, store: LocalOf, name: CampaignName, asked: Annotated[RecipeQuestion, Query()]
) -> Response:
    """A campaign's measured recipes that pass the filters, best first, with their ranks among all."""

    def found() -> object:
        return store.recipes(
            name,
            by=asked.by,
            max_memory_gb=asked.max_memory_gb,
            page=asked.page,
            page_size=asked.page_size,
            **asked.filters,
        )

    return answers.about((name,), found)


@router.get("/recipes/{recipe_id}", response_model=Explanation)
def one_recipe(answers: AnswersOf, store: LocalOf, recipe_id: RecipeId) -> Response:
    """Everything that the store knows of a recipe, and why it ranks where it does."""
    return answers.about_recipe(recipe_id, lambda: explanation_told(store.show(recipe_id)))


@router.get("/recipes/{recipe_id}/export", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def exported(store: LocalOf, recipe_id: RecipeId, to: ExportTarget) -> Response:
    """A recipe in the words of another tool, as a batch script, or as a recipe file."""
    return Response(store.export(recipe_id, to=to), media_type="text/plain; charset=utf-8")
