"""The running service: its store, the processes that it started, its cache, and what it responds
with.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import html
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from cachetools import LRUCache, TTLCache
from fastapi import Depends, Header, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Scope

from frontrunner.exchange import exported
from frontrunner.results.courses import Courses
from frontrunner.results.store import open_store
from frontrunner.server.auth import CALLER, Access, Caller, LoginLinks, Role
from frontrunner.server.drivers import Drivers, Replays
from frontrunner.server.errors import (
    IDEMPOTENCY_KEY,
    PROBLEM,
    Forbidden,
    TooMany,
    problem,
    status_of,
)
from frontrunner.server.pages.rendering import assets, render, sign_in_page
from frontrunner.server.requests import API
from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    bad_value,
    did_you_mean,
    shown,
    shown_key,
)
from frontrunner.spaces.space import Survey
from frontrunner.spaces.validation import invalid_input
from frontrunner.store import LocalStore
from frontrunner.text import to_json
from frontrunner.views.report import Reported, reported

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
SLOW_THREADS = 2
MOST_REPORTED = 4
"""Campaigns of which what reports and figures show is kept: some 30 MB for each with 100,000
trials.
"""
LEAST_ZIPPED, ZIP_LEVEL = 2000, 4
MOST_KEY_CHARACTERS = 200
MOST_REPEATS = 1024
REPEATS_S = 24 * 3600.0
TITLES = {403: "Not allowed", 404: "Not found"}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{status} - frontrunner</title>
<link rel="stylesheet" href="{style}"></head>
<body><main><h1>{status}</h1><p>{message}</p><p>{hint}</p><p><a href="/">All campaigns</a></p></main></body></html>
"""  # noqa: E501
"""For requests that are refused before it is known who sends them."""
NOTICE = "<p>{message}</p><p>{hint}</p>"
"""For parts of a page."""
PLACES = ("body", "query", "path", "header")


class ServedStore(LocalStore):
    """The service's store: what it exports holds neither commands, which a client would run, nor a
    site's lines.
    """

    def export(
        self, recipe: str | Mapping[str, object], *, to: str, campaign: str | Path | None = None
    ) -> str:
        """See `LocalStore.export`."""
        return exported(self, recipe, to=to, campaign=campaign, for_client=True)


class Service:
    """One running service over one store, which is created if missing."""

    def __init__(self, settings: ServiceSettings) -> None:
        limits = settings.limits
        self.settings = settings
        self.access, self.links = Access(settings.token_file), LoginLinks()
        self.store = open_store(settings.store, create=True)
        self.local = ServedStore(is_open=self.store)
        self.drivers, self.replays = Drivers(self.store, settings), Replays(settings)
        self.slow_work, self.starts = (
            anyio.CapacityLimiter(SLOW_THREADS),
            anyio.CapacityLimiter(SLOW_THREADS),
        )
        self.streams = anyio.CapacityLimiter(limits.streams)
        self.repeats = Repeats()
        self.cache = Cache(limits.cache_s, limits.cache_bytes)
        self.courses = Courses()
        self._surveys: LRUCache[str, Survey] = LRUCache(MOST_REPORTED)
        self._reported: LRUCache[tuple[int, str], Kept] = LRUCache(MOST_REPORTED)
        self._reported_lock = Lock()

    def report(self, name: str, version: str | None = None) -> Reported:
        """Return what a campaign's report and figures show, read once per version: by default after
        every write.
        """
        campaign = self.store.campaign(name)
        state = f"{campaign.updated_at} {campaign.outcomes}"
        wanted = state if version is None else version
        with self._reported_lock:
            kept: Kept = self._reported.setdefault((campaign.id, campaign.created_at), Kept())
        with kept.lock:  # those who ask at the same time wait for the first
            if kept.found is None or (wanted not in kept.versions and kept.state != state):
                kept.found, kept.state, kept.versions = (
                    reported(self.store, name, self._surveys),
                    state,
                    set(),
                )
            kept.versions.add(wanted)
            return kept.found

    async def slowly(self, work: Callable[[], T], *, starts: bool = False) -> T:
        """Run work that takes seconds on a thread of its own: no question, and no start, waits for
        the others.
        """
        return await anyio.to_thread.run_sync(
            work, limiter=self.starts if starts else self.slow_work
        )


@dataclass
class Kept:
    """What a campaign's report shows in a state, and the versions that it was asked for as."""

    state: str = ""
    versions: set[str] = field(default_factory=set)
    found: Reported | None = None
    lock: Lock = field(default_factory=Lock)


class Cache:
    """Responses by question, each made once per `ttl_s` however many clients ask; emptied by every
    change.
    """

    def __init__(self, ttl_s: float, most_bytes: int) -> None:
        self._kept: TTLCache[Hashable, Response] = TTLCache(
            most_bytes, ttl_s, getsizeof=lambda kept: len(kept.body)
        )
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def response(
        self,
        key: Hashable,
        make: Callable[[], Coroutine[Any, Any, Response]],
        *,
        zipped: bool = False,
    ) -> Response:
        """Return the response to a question, made by the first of those who ask at the same
        time.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            kept: Response | None = self._kept.get(key)
            if kept is None:
                kept = await make()
                if zipped:
                    await compress(kept)
                if hasattr(kept, "body") and len(kept.body) <= self._kept.maxsize:
                    self._kept[key] = kept
            return kept

    def clear(self) -> None:
        """Forget every response."""
        self._kept.clear()


async def compress(response: Response) -> None:
    """Send a body of some size by gzip; figures of large campaigns become a tenth of what they
    are.
    """
    body = bytes(getattr(response, "body", b""))
    if len(body) < LEAST_ZIPPED or "content-encoding" in response.headers:
        return
    # On a thread: meanwhile others are served.
    response.body = await anyio.to_thread.run_sync(lambda: gzip.compress(body, ZIP_LEVEL, mtime=0))
    response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))
    response.headers.add_vary_header("accept-encoding")


class Repeats:
    """Responses to requests that start something, by their Idempotency-Key: one that is repeated
    starts it once.

    They are kept for `REPEATS_S`, and end with the service. Refusals are not kept: what was refused
    may be tried again.
    """

    def __init__(self) -> None:
        self._kept: TTLCache[tuple[object, str], tuple[bytes, Response]] = TTLCache(
            MOST_REPEATS, REPEATS_S
        )
        self._locks: WeakValueDictionary[tuple[object, str], asyncio.Lock] = WeakValueDictionary()

    async def response(
        self, request: Request, make: Callable[[], Coroutine[Any, Any, Response]]
    ) -> Response:
        """Return the response to the first request with this key, once there is one."""
        given = request.headers.get(IDEMPOTENCY_KEY)
        if given is None:
            return await make()
        if not 0 < len(given) <= MOST_KEY_CHARACTERS:
            raise bad_value(IDEMPOTENCY_KEY, given, f"1 to {MOST_KEY_CHARACTERS} characters")
        key = (request.scope.get(CALLER), given)
        asked = hashlib.sha256(
            f"{request.method} {request.url.path}?{request.url.query}\n".encode()
            + await request.body()
        ).digest()
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in self._kept:
                self._kept[key] = asked, await make()
            first, kept = self._kept[key]
            if first != asked:
                what = f"{IDEMPOTENCY_KEY} {shown(given)} was sent with another request"
                raise InvalidInput(what, hint="send a new key with each new request")
            return kept


class OnceRoute(APIRoute):
    """Route whose responses to all but GET are kept by the request's Idempotency-Key."""

    def get_route_handler(self) -> Handler:
        """Return the route's handler behind what is kept."""
        handler = super().get_route_handler()

        async def once(request: Request) -> Response:
            if request.method == "GET":
                return await handler(request)
            repeats: Repeats = request.app.state.service.repeats
            return await repeats.response(request, lambda: handler(request))

        return once


class CachedRoute(OnceRoute):
    """Route whose responses to GET are cached by caller, host, path and query; other methods empty
    the cache.
    """

    def get_route_handler(self) -> Handler:
        """Return the route's handler behind the cache."""
        handler = super().get_route_handler()

        async def cached(request: Request) -> Response:
            cache: Cache = request.app.state.service.cache
            if request.method == "GET":
                zipped = "gzip" in request.headers.get("accept-encoding", "")
                key = (
                    request.scope.get(CALLER),
                    request.headers.get("host"),
                    request.url.path,
                    request.url.query,
                    zipped,
                )
                return await cache.response(key, lambda: handler(request), zipped=zipped)
            try:
                return await handler(request)
            finally:
                cache.clear()

        return cached


# Coroutines, though they wait for nothing: FastAPI would run plain functions on a thread.
async def the_service(request: Request) -> Service:
    """Return the service that a request is sent to."""
    return cast("Service", request.app.state.service)


async def the_caller(request: Request) -> Caller:
    """Return who sends the request."""
    return cast("Caller", request.scope[CALLER])


async def the_role(request: Request) -> Role:
    """Return the role of the request's caller."""
    return (await the_caller(request)).role


async def operator(request: Request) -> None:
    """Refuse everyone but the operator."""
    if await the_role(request) is not Role.OPERATOR:
        raise Forbidden(
            "a reader's token may read, not launch or stop", hint="use an operator's token"
        )


async def unhurried(request: Request) -> None:
    """Refuse an address that has tried too often to sign in."""
    wait_s = request.app.state.sign_ins.wait_s(request.client.host if request.client else "")
    if wait_s > 0:
        raise TooMany("too many attempts to sign in", hint=f"wait {int(wait_s) + 1} s")


async def known_parameters(request: Request) -> None:
    """Refuse a query parameter that the route does not have."""
    path = API + request.scope["route"].path_format.removeprefix(API)
    described = request.app.openapi()["paths"][path][request.method.lower()]
    known = [one["name"] for one in described.get("parameters", ()) if one["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            raise InvalidInput(
                f"unknown parameter {shown_key(name)}", hint=did_you_mean(name, known)
            )


async def idempotency_key(
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=MOST_KEY_CHARACTERS,
            description="Repeated within a day it starts nothing twice.",
        ),
    ] = None,
) -> None:
    """Describe the header, which `OnceRoute` reads."""
    del idempotency_key


ServiceOf = Annotated[Service, Depends(the_service)]
CallerOf = Annotated[Caller, Depends(the_caller)]
RoleOf = Annotated[Role, Depends(the_role)]
OPERATOR = [Depends(operator)]
STARTS = [*OPERATOR, Depends(idempotency_key)]
"""Dependencies of requests that start something."""


def answer(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a value as a JSON response; FastAPI's own serialization would leave out derived
    figures.
    """
    return Response(
        to_json(value), status_code=status, headers=headers, media_type="application/json"
    )


def error_response(
    scope: Scope,
    status: int,
    message: str,
    *,
    kind: str = "Refused",
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error as a response, a page where the Accept header names HTML outside the API."""
    given = Headers(scope=scope)
    if "text/html" not in given.get("accept", "") or str(scope["path"]).startswith("/api/"):
        content = problem(status, message, kind=kind, hint=hint)
        return JSONResponse(content, status_code=status, headers=headers, media_type=PROBLEM)
    if status == 401 and "hx-request" not in given:
        page: str = sign_in_page(scope)
    elif CALLER not in scope or "hx-request" in given:
        form, words = (
            NOTICE if "hx-request" in given else PAGE,
            {"message": message, "hint": hint or ""},
        )
        escaped = {name: html.escape(text[:1].upper() + text[1:]) for name, text in words.items()}
        page = form.format(status=status, style=assets()["style.css"], **escaped)
    else:
        title = TITLES.get(status, "This request cannot be served")
        page = render(
            "refusal.html", here=None, status=status, title=title, message=message, hint=hint
        )
    return Response(page, status_code=status, media_type="text/html", headers=headers)


def response_of(scope: Scope, error: FrontrunnerError, store: str) -> Response:
    """Return one of our errors as a response that reveals where the store is to operators alone."""
    message, hint, caller = (
        error.message.removesuffix(f" in {store}"),
        error.hint,
        scope.get(CALLER),
    )
    if caller is None or caller.role is not Role.OPERATOR:
        message, hint = without_store(message, store), hint and without_store(hint, store)
    return error_response(scope, status_of(error), message, kind=type(error).__name__, hint=hint)


def without_store(text: str, store: str) -> str:
    """Return a text without the address of the store, the host of its server and the folder of its
    file.
    """
    text = text.removesuffix(f" in {store}")
    scheme, is_url, rest = store.partition("://")
    is_server = is_url and not scheme.startswith("sqlite")
    place = (
        urlsplit(f"//{rest}").hostname if is_server else str(Path(rest if is_url else store).parent)
    )
    for part, instead in ((store, "the store"), (place or "", "...")):
        text = text.replace(part, instead) if len(part) > 1 else text  # "." and "/" are in any text
    return text


def from_validation(complaints: Sequence[Mapping[str, Any]]) -> FrontrunnerError:
    """Convert FastAPI's validation errors into one of ours."""
    first = complaints[0]
    place = first["loc"]
    return invalid_input(
        [{**first, "loc": place[1:] if place[:1] and place[0] in PLACES else place}]
    )
