"""The application: guards around routes, and our errors as answers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from frontrunner import __version__
from frontrunner.results.cells import DamagedCell
from frontrunner.results.store import Store, open_store
from frontrunner.server.access import Access
from frontrunner.server.answers import Memory
from frontrunner.server.description import describe
from frontrunner.server.drivers import Drivers
from frontrunner.server.guards import BodyKind, KnownHost, SameOrigin, SecureHeaders
from frontrunner.server.mistakes import mistake_in
from frontrunner.server.models import ErrorAnswer
from frontrunner.server.pressure import BodySize, HeadSize, RequestRate
from frontrunner.server.refusals import refusal, refusal_of
from frontrunner.server.replays import Replays
from frontrunner.server.routes import campaigns, control, events, operations, planning, recipes, replaying, reports
from frontrunner.server.settings import ServiceSettings
from frontrunner.server.state import Service
from frontrunner.server.tokens import OneTimeLinks, make_tokens, read_tokens
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.store import LocalStore

API = "/api/v1"
SLOW_THREADS = 2
"""How many launches and plans are worked on at a time."""
ROUTERS = (
    campaigns.router,
    recipes.router,
    reports.router,
    events.router,
    control.router,
    planning.router,
    replaying.router,
    operations.api,
)
"""The routes under `API`; `operations.router` holds those beside it."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "Refused"},
    "5XX": {"model": ErrorAnswer, "description": "Not possible now"},
}
DESCRIPTION = """Campaigns over HTTP. Answers have the shape that the commands print with `--json`; errors are
`{"error": {"kind", "message", "hint"}}`. Send a token as `Authorization: Bearer TOKEN`."""
logger = logging.getLogger("frontrunner.server")


def create_app(settings: ServiceSettings, *, pages: Sequence[APIRouter] = ()) -> FastAPI:
    """The service over one store, which is made where there is none.

    `pages` are routers outside of `API`, whose errors browsers see as pages. Raises as `open_store` and `make_tokens`
    do.
    """
    tokens = read_tokens(settings.token_file) if settings.token_file.exists() else make_tokens(settings.token_file)
    store = open_store(settings.store, create=True)
    service = Service(
        settings=settings,
        tokens=tokens,
        links=OneTimeLinks(),
        store=store,
        local=LocalStore(is_open=store),
        drivers=Drivers(store, settings),
        replays=Replays(store, settings),
        slow_work=anyio.CapacityLimiter(SLOW_THREADS),
        streams=anyio.CapacityLimiter(settings.limits.streams),
        summaries={},
    )
    app = FastAPI(
        title="frontrunner",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
        middleware=_guards(service),
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.memory = Memory(most_bytes=settings.limits.remembered_bytes)
    app.state.reports = reports.ReportCache()
    for router in ROUTERS:
        app.include_router(router, prefix=API, responses=REFUSALS)
    for router in (*pages, operations.router):  # the first that knows an address answers
        app.include_router(router)
    _answer_errors(app)
    describe(app, settings.registered)
    return app


def _guards(service: Service) -> list[Middleware]:
    """Outermost first: each sees only what those before it let pass."""
    settings = service.settings
    return [
        Middleware(SecureHeaders),
        Middleware(HeadSize, limits=settings.limits),
        Middleware(KnownHost, names=settings.host_names),
        Middleware(RequestRate, limits=settings.limits),
        Middleware(SameOrigin),
        Middleware(Access, tokens=service.tokens),
        Middleware(BodySize, limits=settings.limits),
        Middleware(BodyKind),
    ]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Answer with few threads, which take turns anyway; close the store at the end, and leave the drivers be."""
    service: Service = app.state.service
    anyio.to_thread.current_default_thread_limiter().total_tokens = service.settings.limits.threads
    try:
        yield
    finally:
        service.store.close()


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(FrontrunnerError)
    async def ours(request: Request, error: FrontrunnerError) -> Response:
        store: Store = request.app.state.service.store
        named = store.damaged(error) if isinstance(error, DamagedCell) else error
        return refusal_of(request.scope, named, store.url)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return refusal(request.scope, error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refusal_of(request.scope, mistake_in(error.errors()), "")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal(request.scope, 500, "the service failed on this request; its log says more")
