"""The pages of recipes: one in full with its replay, and two side by side."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

from fastapi import APIRouter, Query, Response
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict

from frontrunner.results.compare import compare
from frontrunner.results.driving import stamp_of_recipe
from frontrunner.results.explain import explain
from frontrunner.results.pages import newest_names
from frontrunner.results.store import Store
from frontrunner.server.answers import AnswersOf
from frontrunner.server.models import ReplayBody, Steps
from frontrunner.server.pages.rendering import HTML, render
from frontrunner.server.pages.views.compare import choice, compare_recipes
from frontrunner.server.pages.views.recipe import RecipeView, recipe_view
from frontrunner.server.pages.views.replay import ReplayView, replay_view
from frontrunner.server.refusals import told_without_store
from frontrunner.server.routes.parameters import RecipeId
from frontrunner.server.state import OPERATOR, RoleOf, Service, ServiceOf, StoreOf
from frontrunner.server.tokens import Role
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.recipe import Recipe
from frontrunner.views.columns import ORIGINS

router = APIRouter()
MOST_NAMES = 200
Two = Annotated[list[Annotated[str, Query(max_length=64)]], Query(max_length=MOST_NAMES)]


class ReplayForm(BaseModel):
    """What the replay's form sends."""

    model_config = ConfigDict(extra="forbid")

    steps: Steps
    anyway: bool = False


@router.get("/recipes/{recipe_id}")
def one_recipe(answers: AnswersOf, service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """One recipe in full."""

    def made() -> str:
        view = recipe_view(service.store, recipe_id)
        card = replay_view(service.replays, view.explanation)
        return render(
            "recipe.html",
            here=None,
            view=view,
            recipe=view.explanation.recipe,
            notice=ORIGINS.get(view.leading.campaign.figures, ""),
            choices=_choices(view),
            can_be_replayed=card.can_be_replayed,
            replay=Markup(_replay(card, role)),  # noqa: S704 - what a template has made
        )

    def read_stamp() -> object:
        replays = service.replays
        return (
            stamp_of_recipe(service.store, recipe_id),
            replays.beginning_with(recipe_id),
            replays.checkpoint_steps(recipe_id),
        )

    return answers.text(read_stamp, made, HTML)


def _choices(view: RecipeView) -> list[tuple[str, str]]:
    recipe = view.explanation.recipe
    return [(field.name.replace("_", " "), choice(recipe, field.name)) for field in fields(Recipe)]


@router.get("/recipes/{recipe_id}/replay")
def replay_so_far(service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """How far the recipe's replay is."""
    return _shown(service, role, recipe_id)


@router.post("/recipes/{recipe_id}/replay", dependencies=OPERATOR)
async def start_replay(service: ServiceOf, role: RoleOf, recipe_id: RecipeId, form: ReplayForm) -> Response:
    """Start a replay, or go on with one."""
    body = ReplayBody(recipe_id=recipe_id, steps=form.steps, anyway=form.anyway)
    await service.slowly(lambda: service.replays.start(body.settings()))
    return _shown(service, role, recipe_id)


@router.post("/recipes/{recipe_id}/replay/stop", dependencies=OPERATOR)
def stop_replay(service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """End the recipe's replay; its checkpoints stay."""
    service.replays.stop(recipe_id)
    return _shown(service, role, recipe_id)


def _shown(service: Service, role: Role, recipe_id: str) -> Response:
    card = replay_view(service.replays, explain(service.store, recipe_id))
    return Response(_replay(card, role), media_type="text/html")


def _replay(card: ReplayView, role: Role) -> str:
    """The card with the recipe's replay, and the form that starts one."""
    return render("replay.html", view=card, replay=card.replay, may_change=role is Role.OPERATOR)


@router.get("/compare")
def compared(
    answers: AnswersOf,
    store: StoreOf,
    campaign: Two = [],  # noqa: B006 - FastAPI copies it
    recipe: Two = [],  # noqa: B006
) -> Response:
    """Two campaigns, or two recipes, side by side; without either, the forms that ask for them."""
    return answers.text(object, lambda: _comparison(store, campaign, recipe), HTML)


def _comparison(store: Store, campaign: list[str], recipe: list[str]) -> str:
    """The forms with what was typed, beside it what is wrong with that, or the answer below."""
    names = newest_names(store, MOST_NAMES)
    both, pair, problem = None, None, ""
    try:
        both = compare(store, *campaign) if len(campaign) == 2 else None
        pair = compare_recipes(store, *recipe) if len(recipe) == 2 else None
    except (InvalidInput, NotFound) as error:
        problem = told_without_store(error, store.url)
    if len(campaign) not in (0, 2) or len(recipe) not in (0, 2):
        problem = "choose two to compare"
    return render(
        "compare.html",
        here="/compare",
        names=names,
        chosen=campaign if both else (names * 2)[:2],
        recipes=[*recipe, "", ""][:2],
        campaigns=both,
        pair=pair,
        problem=problem,
    )
