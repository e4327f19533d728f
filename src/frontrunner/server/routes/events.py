"""A campaign's events as a stream."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from frontrunner.server.errors import TooMany
from frontrunner.server.routes.parameters import CampaignName
from frontrunner.server.state import ServiceOf
from frontrunner.server.streams import Follower, cursor_from, follow

router = APIRouter(tags=["events"])
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/campaigns/{name}/events", response_class=Response, responses=EVENT_STREAM)
async def events(
    service: ServiceOf,
    name: CampaignName,
    last_event_id: Annotated[str | None, Header(max_length=64, description="Go on after this event.")] = None,
) -> Response:
    """A campaign's history and outcomes as they are recorded, without an end; from its beginning, or after an id."""
    cursor = cursor_from(last_event_id)
    await anyio.to_thread.run_sync(lambda: service.store.campaign(name))  # an unknown one is 404, not a stream
    if service.streams.available_tokens < 1:
        raise TooMany(f"{service.settings.limits.streams} streams are open: no more may be")
    follower = Follower(service.store, name, cursor, service.settings.limits.events_a_batch)
    return StreamingResponse(follow(follower, service.streams), media_type="text/event-stream")
