"""What the routes share: the open store, the processes that were started, and who asks; as FastAPI dependencies.

They are coroutines, though they wait for nothing: FastAPI would call each plain function on a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from frontrunner.results.store import Store
from frontrunner.results.summaries import Known
from frontrunner.server.drivers import Drivers
from frontrunner.server.errors import Forbidden
from frontrunner.server.replays import Replays
from frontrunner.server.settings import ServiceSettings
from frontrunner.server.tokens import ROLE, OneTimeLinks, Role, Tokens
from frontrunner.store import LocalStore

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Service:
    """One running service."""

    settings: ServiceSettings
    tokens: Tokens
    links: OneTimeLinks
    store: Store
    local: LocalStore
    drivers: Drivers
    replays: Replays
    slow_work: anyio.CapacityLimiter
    streams: anyio.CapacityLimiter
    summaries: Known

    async def slowly(self, work: Callable[[], T]) -> T:
        """Do what takes seconds on a thread of its own, so that quick questions do not wait for it."""
        return await anyio.to_thread.run_sync(work, limiter=self.slow_work)


async def the_service(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.app.state.service
    return service


async def the_store(service: Annotated[Service, Depends(the_service)]) -> Store:
    """The open store, for the functions of `frontrunner.results`."""
    return service.store


async def the_local_store(service: Annotated[Service, Depends(the_service)]) -> LocalStore:
    """Return the questions to the open store."""
    return service.local


async def the_role(request: Request) -> Role:
    """Whose token the request carries."""
    role: Role = request.scope[ROLE]
    return role


async def operator(role: Annotated[Role, Depends(the_role)]) -> None:
    """Refuse everybody but the operator."""
    if role is not Role.OPERATOR:
        raise Forbidden("a reader's token may look, not launch or stop", hint="use the operator's token")


ServiceOf = Annotated[Service, Depends(the_service)]
StoreOf = Annotated[Store, Depends(the_store)]
LocalOf = Annotated[LocalStore, Depends(the_local_store)]
RoleOf = Annotated[Role, Depends(the_role)]
OPERATOR = [Depends(operator)]
