"""The application: middleware around routes, and errors as responses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from cachetools import TTLCache
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from frontrunner import __version__
from frontrunner.results.rows import DamagedCell
from frontrunner.results.store import open_store
from frontrunner.server.auth import LoginLinks, make_tokens, read_tokens
from frontrunner.server.drivers import Drivers
from frontrunner.server.middleware import middleware
from frontrunner.server.openapi import ERRORS, describe
from frontrunner.server.replays import Replays
from frontrunner.server.responses import error_response, from_validation, response_of
from frontrunner.server.routes import actions, operations, questions
from frontrunner.server.service import Cache, Service
from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.store import LocalStore

API = "/api/v1"
SLOW_THREADS = 2
"""How many launches and plans are worked on at a time."""
ROUTERS = (
    questions.campaigns,
    questions.recipes,
    questions.reports,
    questions.events,
    actions.control,
    actions.planning,
    actions.replays,
    operations.links,
)
"""The routers under `API`."""
DESCRIPTION = """Campaigns over HTTP. Responses have the shape that the commands print with `--json`; errors are
`{"error": {"kind", "message", "hint"}}`. Send a token as `Authorization: Bearer TOKEN`."""
logger = logging.getLogger("frontrunner.server")


def create_app(settings: ServiceSettings, *, pages: Sequence[APIRouter] = ()) -> FastAPI:
    """Return the service over one store, which is created if missing.

    `pages` are routers outside of `API`, whose errors browsers see as pages. Raises as `open_store` and `make_tokens`
    do.
    """
    tokens = read_tokens(settings.token_file) if settings.token_file.exists() else make_tokens(settings.token_file)
    store = open_store(settings.store, create=True)
    limits = settings.limits
    service = Service(
        settings=settings,
        tokens=tokens,
        links=LoginLinks(),
        store=store,
        local=LocalStore(is_open=store),
        drivers=Drivers(store, settings),
        replays=Replays(store, settings),
        slow_work=anyio.CapacityLimiter(SLOW_THREADS),
        streams=anyio.CapacityLimiter(limits.streams),
        cache=Cache(limits.cache_s, limits.cache_bytes),
    )
    app = FastAPI(
        title="frontrunner",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
        middleware=middleware(settings, tokens),
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.reported = TTLCache(questions.MOST_REPORTED, min(questions.REPORT_TTL_S, 10 * limits.cache_s))
    for router in ROUTERS:
        app.include_router(router, prefix=API, responses=ERRORS)
    for router in (*pages, operations.scraped, operations.outside):  # the first match responds
        app.include_router(router)
    _handle_errors(app, service)
    describe(app, settings.registered)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Respond with few threads, which take turns anyway; at the end close the store and leave the drivers running."""
    service: Service = app.state.service
    anyio.to_thread.current_default_thread_limiter().total_tokens = service.settings.limits.threads
    try:
        yield
    finally:
        service.store.close()


def _handle_errors(app: FastAPI, service: Service) -> None:
    @app.exception_handler(FrontrunnerError)
    async def ours(request: Request, error: FrontrunnerError) -> Response:
        named = service.store.damaged(error) if isinstance(error, DamagedCell) else error
        return response_of(request.scope, named, service.store.url)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return error_response(request.scope, error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return response_of(request.scope, from_validation(error.errors()), "")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(request.scope, 500, "the service failed on this request; see its log")
