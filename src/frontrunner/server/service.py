"""The running service: its store, the processes that it started, its cache; and FastAPI dependencies on them.

Dependencies are coroutines, though they wait for nothing: FastAPI would run each plain function on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from cachetools import TTLCache
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from frontrunner.results.store import Store
from frontrunner.server.auth import ROLE, LoginLinks, Role, Tokens
from frontrunner.server.drivers import Drivers
from frontrunner.server.errors import Forbidden
from frontrunner.server.replays import Replays
from frontrunner.server.settings import ServiceSettings
from frontrunner.store import LocalStore

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, kw_only=True)
class Service:
    """One running service."""

    settings: ServiceSettings
    tokens: Tokens
    links: LoginLinks
    store: Store
    drivers: Drivers
    replays: Replays
    slow_work: anyio.CapacityLimiter
    streams: anyio.CapacityLimiter
    cache: Cache

    async def slowly(self, work: Callable[[], T]) -> T:
        """Run work that takes seconds on a thread of its own, so that quick questions do not wait for it."""
        return await anyio.to_thread.run_sync(work, limiter=self.slow_work)


class Cache:
    """Responses by question, each made once per `ttl_s` however many clients ask; emptied by every change."""

    def __init__(self, ttl_s: float, most_bytes: int) -> None:
        self._kept: TTLCache[Hashable, Response] = TTLCache(most_bytes, ttl_s, getsizeof=lambda kept: len(kept.body))
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def response(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        """Return the response to a question, made by the first of those who ask at the same time."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            kept: Response | None = self._kept.get(key)
            if kept is None:
                kept = await make()
                if hasattr(kept, "body") and len(kept.body) <= self._kept.maxsize:
                    self._kept[key] = kept
            return kept

    def clear(self) -> None:
        """Forget every response."""
        self._kept.clear()


class CachedRoute(APIRoute):
    """Route whose responses to GET are cached by role, path and query; other methods empty the cache."""

    def get_route_handler(self) -> Handler:
        """Return the route's handler behind the cache."""
        handler = super().get_route_handler()

        async def cached(request: Request) -> Response:
            cache: Cache = request.app.state.service.cache
            if request.method == "GET":
                key = (request.scope.get(ROLE), request.url.path, request.url.query)
                return await cache.response(key, lambda: handler(request))
            try:
                return await handler(request)
            finally:
                cache.clear()

        return cached


async def the_service(request: Request) -> Service:
    """Return the service that a request is sent to."""
    service: Service = request.app.state.service
    return service


async def the_store(request: Request) -> Store:
    """Return the open store, for the functions of `frontrunner.results`."""
    return (await the_service(request)).store


async def the_local_store(request: Request) -> LocalStore:
    """Return the questions to the open store."""
    return LocalStore(is_open=await the_store(request))


async def the_role(request: Request) -> Role:
    """Return the role of the request's token."""
    role: Role = request.scope[ROLE]
    return role


async def operator(request: Request) -> None:
    """Refuse everyone but the operator."""
    if await the_role(request) is not Role.OPERATOR:
        raise Forbidden("a reader's token may read, not launch or stop", hint="use the operator's token")


ServiceOf = Annotated[Service, Depends(the_service)]
StoreOf = Annotated[Store, Depends(the_store)]
LocalOf = Annotated[LocalStore, Depends(the_local_store)]
RoleOf = Annotated[Role, Depends(the_role)]
OPERATOR = [Depends(operator)]
