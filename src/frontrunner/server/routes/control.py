"""What changes something: launching a campaign, and telling its driver to pause, go on, stop or cancel."""

from __future__ import annotations

from fastapi import APIRouter, Response

from frontrunner.server.answers import answer
from frontrunner.server.bodies import campaign_table
from frontrunner.server.drivers import Word
from frontrunner.server.models import CampaignBody, LaunchAnswer, SignalAnswer
from frontrunner.server.routes.parameters import CampaignName
from frontrunner.server.state import OPERATOR, ServiceOf

router = APIRouter(tags=["control"], dependencies=OPERATOR)


@router.post("/campaigns", response_model=LaunchAnswer, status_code=201)
async def launch(service: ServiceOf, body: CampaignBody) -> Response:
    """Start a campaign; answered once it is in the store and its driver has begun."""
    table = campaign_table(body, service.settings.registered)
    return answer(await service.slowly(lambda: service.drivers.launch(table)), status=201)


@router.post("/campaigns/{name}/resume", response_model=LaunchAnswer)
async def resume(service: ServiceOf, name: CampaignName) -> Response:
    """Go on with a campaign, wherever it was left."""
    return answer(await service.slowly(lambda: service.drivers.resume(name)))


@router.post("/campaigns/{name}/pause", response_model=SignalAnswer)
def pause(service: ServiceOf, name: CampaignName) -> Response:
    """Let running probes finish, start no more, and leave the campaign paused."""
    return _told(service, name, "pause")


@router.post("/campaigns/{name}/stop", response_model=SignalAnswer)
def stop(service: ServiceOf, name: CampaignName) -> Response:
    """Let running probes finish, start no more, and leave the campaign stopped."""
    return _told(service, name, "stop")


@router.post("/campaigns/{name}/cancel", response_model=SignalAnswer)
def cancel(service: ServiceOf, name: CampaignName) -> Response:
    """End running probes at once; their trials are tried again when the campaign is resumed."""
    return _told(service, name, "cancel")


def _told(service: ServiceOf, name: str, word: Word) -> Response:
    return answer(service.drivers.tell(name, word))
