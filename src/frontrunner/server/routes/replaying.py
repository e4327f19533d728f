"""Replays: full training runs of stored recipes on the service's machine."""

from __future__ import annotations

from fastapi import APIRouter, Response

from frontrunner.server.answers import answer
from frontrunner.server.models import ReplayBody
from frontrunner.server.replays import Replay
from frontrunner.server.routes.parameters import RecipeId
from frontrunner.server.state import OPERATOR, ServiceOf

router = APIRouter(tags=["replays"])


@router.get("/replays", response_model=list[Replay])
def all_replays(service: ServiceOf) -> Response:
    """Every replay that a service on this store has started."""
    return answer(service.replays.all())


@router.get("/replays/{recipe_id}", response_model=Replay)
def one_replay(service: ServiceOf, recipe_id: RecipeId) -> Response:
    """How far a replay is, with the newest of its steps; by the recipe's whole id."""
    return answer(service.replays.one(recipe_id))


@router.post("/replays", response_model=Replay, status_code=201, dependencies=OPERATOR)
async def start(service: ServiceOf, body: ReplayBody) -> Response:
    """Start a replay, or go on with one from its newest checkpoint."""
    return answer(await service.slowly(lambda: service.replays.start(body.settings())), status=201)


@router.post("/replays/{recipe_id}/stop", response_model=Replay, dependencies=OPERATOR)
def stop(service: ServiceOf, recipe_id: RecipeId) -> Response:
    """End a replay; its checkpoints stay."""
    return answer(service.replays.stop(recipe_id))
