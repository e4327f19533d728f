"""Actions: plan and launch campaigns, signal their drivers, start and stop replays."""

from __future__ import annotations

from fastapi import APIRouter, Response

from frontrunner.evaluators.analytic.estimates import ShownPlan
from frontrunner.planning import plan_of
from frontrunner.server.drivers import Word
from frontrunner.server.replays import Replay
from frontrunner.server.requests import (
    CampaignBody,
    LaunchAnswer,
    PlanBody,
    RegisteredAnswer,
    ReplayBody,
    SignalAnswer,
    campaign_from,
    campaign_table,
    hiding_contents,
)
from frontrunner.server.responses import answer
from frontrunner.server.routes.questions import CampaignName, RecipeId
from frontrunner.server.service import OPERATOR, CachedRoute, ServiceOf

control = APIRouter(tags=["control"], dependencies=OPERATOR, route_class=CachedRoute)
planning = APIRouter(tags=["planning"])
replays = APIRouter(tags=["replays"])


@planning.get("/registered", response_model=RegisteredAnswer)
def registered(service: ServiceOf) -> Response:
    """Return the sites, trainers, data and tables that a launch or a plan may name."""
    return answer(service.settings.registered.about())


@planning.post("/plan", response_model=ShownPlan)
async def plan(service: ServiceOf, body: PlanBody) -> Response:
    """Estimate every legal recipe of a campaign; nothing is run or stored."""

    def planned() -> ShownPlan:
        settings = service.settings
        with hiding_contents(body, settings.registered):
            file = campaign_from(body, settings.registered, most_points=settings.limits.plan_points)
            return plan_of(file.spec).shown(body.top)

    return answer(await service.slowly(planned))


@control.post("/campaigns", response_model=LaunchAnswer, status_code=201)
async def launch(service: ServiceOf, body: CampaignBody) -> Response:
    """Start a campaign; the response comes once it is in the store and its driver has begun."""
    table = campaign_table(body, service.settings.registered)
    return answer(await service.slowly(lambda: service.drivers.launch(table)), status=201)


@control.post("/campaigns/{name}/resume", response_model=LaunchAnswer)
async def resume(service: ServiceOf, name: CampaignName) -> Response:
    """Continue a campaign where it stopped."""
    return answer(await service.slowly(lambda: service.drivers.resume(name)))


def _add_signal(word: Word, description: str) -> None:
    @control.post(f"/campaigns/{{name}}/{word}", response_model=SignalAnswer, name=word, description=description)
    def signal(service: ServiceOf, name: CampaignName) -> Response:
        return answer(service.drivers.tell(name, word))


_add_signal("pause", "Let running probes finish, start no more, and leave the campaign paused.")
_add_signal("stop", "Let running probes finish, start no more, and leave the campaign stopped.")
_add_signal("cancel", "End running probes at once; their trials are tried again when the campaign is resumed.")


@replays.get("/replays", response_model=list[Replay])
def all_replays(service: ServiceOf) -> Response:
    """Return every replay that a service on this store has started."""
    return answer(service.replays.all())


@replays.get("/replays/{recipe_id}", response_model=Replay)
def one_replay(service: ServiceOf, recipe_id: RecipeId) -> Response:
    """Return the progress of a replay, by the recipe's whole id."""
    return answer(service.replays.one(recipe_id))


@replays.post("/replays", response_model=Replay, status_code=201, dependencies=OPERATOR)
async def start_replay(service: ServiceOf, body: ReplayBody) -> Response:
    """Start a replay, or continue one from its newest checkpoint."""
    return answer(await service.slowly(lambda: service.replays.start(body.settings())), status=201)


@replays.post("/replays/{recipe_id}/stop", response_model=Replay, dependencies=OPERATOR)
def stop_replay(service: ServiceOf, recipe_id: RecipeId) -> Response:
    """End a replay; its checkpoints stay."""
    return answer(service.replays.stop(recipe_id))
