"""The application: middleware around routes, errors as responses, health and metrics, and its
server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from frontrunner.results.pages import campaign_page, newest_names
from frontrunner.results.records import CUT_OFF
from frontrunner.results.rows import DamagedCell
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import active_drivers
from frontrunner.results.store import Store
from frontrunner.server import routes
from frontrunner.server import service as serving
from frontrunner.server.errors import PROBLEM, problem
from frontrunner.server.middleware import RateLimit, middleware
from frontrunner.server.pages import (
    account,
    campaigns,
    comparing,
    explorer,
    listing,
    planning,
    recipes,
    rendering,
    steps,
)
from frontrunner.server.requests import API, Problem
from frontrunner.server.settings import KINDS, ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.version import __version__

BACKLOG = 128
GRACE_S = 3
METHODS = ("DELETE", "GET", "PATCH", "POST")
FIRST_REQUEST_S = 10.0
MOST_CAMPAIGNS = 200
"""The newest ones in the metrics: each is a label, and Prometheus keeps a series for each label
that it has seen.
"""
DESCRIPTION = """Campaigns over HTTP. Responses have the shape that the commands print with `--json`; errors are
problem details (RFC 9457) with a `kind` and the next step as `hint`. Send a token as `Authorization: Bearer TOKEN`."""  # noqa: E501
SCHEMES: dict[str, Any] = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": (
            "A token of the token file or of a user: an operator's may launch and stop, a reader's"
            " read."
        ),
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "description": "Set in a browser that signed in.",
    },
}
ERROR = problem(
    422, "unknown section [budgets]", kind="InvalidInput", hint="did you mean 'budget'?"
)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text, "content": {PROBLEM: {"example": ERROR}}}
    for status, text in (("4XX", "Refused"), ("5XX", "Not possible now"))
}
Samples = Iterable[tuple[Mapping[str, str], float]]
outside = APIRouter()
scraped = APIRouter(route_class=serving.CachedRoute)
logger = logging.getLogger("frontrunner.server")


def create_app(settings: ServiceSettings) -> FastAPI:
    """Return the service over one store, which is created if missing. Raises as `open_store` and
    `make_tokens` do.
    """
    service = serving.Service(settings)
    app = FastAPI(
        title="frontrunner",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
        middleware=middleware(settings, service.access),
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service, app.state.sign_ins = service, RateLimit(account.TRIES_PER_S, account.TRIES)
    for router in (routes.api, routes.uncached):
        app.include_router(
            router, prefix=API, responses=ERRORS, dependencies=[Depends(serving.known_parameters)]
        )
    pages = (
        account.router,
        listing.router,
        campaigns.router,
        explorer.router,
        recipes.router,
        comparing.router,
        steps.router,
        planning.router,
        rendering.router,
    )
    for router in (*pages, scraped, outside):
        app.include_router(router, include_in_schema=False)
    _handle_errors(app, service)
    _describe(app, service)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Respond with few threads, which take turns anyway; at the end close the store and leave the
    drivers running.
    """
    service: serving.Service = app.state.service
    anyio.to_thread.current_default_thread_limiter().total_tokens = service.settings.limits.threads
    try:
        yield
    finally:
        service.store.close()


def _handle_errors(app: FastAPI, service: serving.Service) -> None:
    @app.exception_handler(FrontrunnerError)
    async def ours(request: Request, error: FrontrunnerError) -> Response:
        named = service.store.damaged(error) if isinstance(error, DamagedCell) else error
        return serving.response_of(request.scope, named, service.store.url)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:  # with the methods of one of the routes of this path
            headers["Allow"] = ", ".join(sorted(_methods(app, request.scope)))
        if error.status_code == 405 and request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        return serving.error_response(
            request.scope, error.status_code, str(error.detail), headers=headers
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return serving.response_of(request.scope, serving.from_validation(error.errors()), "")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return serving.error_response(
            request.scope, 500, "the service failed on this request; see its log"
        )


def _methods(app: FastAPI, scope: Scope) -> set[str]:
    asked = {method: {**scope, "method": method} for method in METHODS}
    found = {
        one
        for one in METHODS
        if any(route.matches(asked[one])[0] is Match.FULL for route in app.routes)
    }
    return found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set())


def _describe(app: FastAPI, service: serving.Service) -> None:
    describe_routes = app.openapi

    @cache
    def described() -> dict[str, Any]:
        document = describe_routes()
        session = SCHEMES["session"] | {"name": service.access.cookie}
        document["components"]["securitySchemes"] = SCHEMES | {"session": session}
        document["security"] = [{name: []} for name in SCHEMES]
        for body in ("CampaignBody", "PlanBody"):
            for kind in KINDS:
                if names := service.settings.registered.names(kind):
                    document["components"]["schemas"][body]["properties"][kind]["anyOf"][0][
                        "enum"
                    ] = list(names)
        return document

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to extend it


@outside.get("/healthz")
def health(service: serving.ServiceOf) -> Response:
    """Report whether the service can read its store; open to all, and silent about everything
    else.
    """
    try:
        service.store.database.check_file_is_there()
        newest_names(service.store, 1)
    except FrontrunnerError as error:  # names the store's path, or the database's host and user
        logger.warning("/healthz: %s", error.message)
        return serving.answer({"status": "store not readable"}, status=503)
    return serving.answer({"status": "ok"})


@scraped.get("/metrics")
def prometheus(service: serving.ServiceOf) -> Response:
    """Return the store's figures for Prometheus, which sends a token by its `authorization`
    setting.
    """
    return Response(metrics(service.store), media_type=CONTENT_TYPE_LATEST)


def metrics(store: Store) -> bytes:
    """Return all metrics of a store in Prometheus' text format."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> None:
        family = Gauge(f"frontrunner_{name}", text, labels, registry=registry)
        for values, value in samples:
            (family.labels(**values) if values else family).set(value)

    known, held = campaign_page(store, page_size=MOST_CAMPAIGNS).items, active_drivers(store)
    # `figures` is a label so that simulated figures cannot be taken for measured ones in a graph.
    of = {one.name: {"campaign": one.name, "figures": one.figures} for one in known}
    per_campaign = ("campaign", "figures")
    in_state = Counter(one.state_in_words for one in known)
    states = (
        *CampaignState,
        CUT_OFF,
    )  # a campaign that is cut off counts as that only, not as running
    gauge(
        "campaigns",
        "Campaigns by state.",
        ("state",),
        [({"state": str(one)}, in_state[one]) for one in states],
    )
    trials = [
        (of[one.name] | {"state": state.value}, n)
        for one in known
        for state, n in one.probes.items()
    ]
    gauge("trials", "Trials of a campaign by state.", (*per_campaign, "state"), trials)
    queued = sum(one.probes[TrialState.QUEUED] for one in known)
    gauge("queue_trials", "Trials that wait for a probe.", (), [({}, queued)])
    spent = [(of[one.name], one.node_seconds_spent) for one in known]
    gauge("node_seconds", "Node-seconds spent.", per_campaign, spent)
    best = [
        (of[one.name], one.best_tokens_per_s) for one in known if one.best_tokens_per_s is not None
    ]
    gauge("best_tokens_per_second", "Tokens/s of the best recipe.", per_campaign, best)
    up = [({"campaign": one.campaign}, float(one.is_live)) for one in held]
    gauge("driver_up", "Whether a campaign's driver runs.", ("campaign",), up)
    ages = [({"campaign": one.campaign}, one.heartbeat_age_s) for one in held]
    gauge(
        "driver_heartbeat_age_seconds",
        "Seconds since a campaign's driver last wrote.",
        ("campaign",),
        ages,
    )
    return generate_latest(registry)


def listen(settings: ServiceSettings) -> socket.socket:
    """Return a socket on the settings' address; raise `FrontrunnerError` where it is taken or not
    ours.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the protocol is named; else answers wait 40 ms
    # for acknowledgements
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise FrontrunnerError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            hint="choose another with --port; --port 0 takes a free one",
        ) from None
    listener.listen(BACKLOG)
    return listener


class Connection(H11Protocol):
    """Connection of a client. One that waits for its client gives way to newer ones, and ends if it
    sends no request.

    So open connections that send nothing, or begin a request and do not end it, keep nobody else
    out.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the oldest waiting connection where the address has more than half of the limit, or
        all have it.
        """
        super().connection_made(transport)
        self.began_s, limit = self.loop.time(), self.limit_concurrency or 0
        known = [one for one in self.connections if isinstance(one, Connection)]
        mine = [one for one in known if one.address == self.address]
        if len(mine) > limit // 2:
            _oldest_waiting(mine).close()
        elif len(known) >= limit:  # at which the server refuses every request
            _oldest_waiting(known).close()
        self.loop.call_later(FIRST_REQUEST_S, self._close_if_silent)

    @property
    def address(self) -> str:
        """The client's host."""
        return (self.client or ("",))[0]

    @property
    def waits(self) -> bool:
        """Whether no request is being answered: none has come, or not all of one, or it was
        answered.
        """
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def close(self) -> None:
        """Close the connection, which no longer counts."""
        self.connections.discard(self)
        self.transport.close()

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.close()


def _oldest_waiting(among: list[Connection]) -> Connection:
    return min(
        (one for one in among if one.waits), key=lambda one: one.began_s
    )  # the newcomer waits, too


def run(app: FastAPI, settings: ServiceSettings, listener: socket.socket) -> None:
    """Serve plain HTTP/1.1 until a signal asks for the end; open streams are then cut after
    `GRACE_S`.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # none is trusted
        limit_concurrency=settings.limits.connections,
        h11_max_incomplete_event_size=settings.limits.header_bytes,
        timeout_graceful_shutdown=GRACE_S,
    )
    with suppress(KeyboardInterrupt):  # uvicorn ends in order, then raises the signal again
        uvicorn.Server(config).run(sockets=[listener])
