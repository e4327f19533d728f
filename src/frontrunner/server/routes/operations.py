"""Health, metrics and login."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST

from frontrunner.results.pages import any_campaign
from frontrunner.server.auth import SESSION_S
from frontrunner.server.errors import Forbidden
from frontrunner.server.metrics import metrics
from frontrunner.server.middleware import COOKIE
from frontrunner.server.requests import LinkAnswer
from frontrunner.server.responses import answer
from frontrunner.server.service import CachedRoute, RoleOf, ServiceOf, StoreOf
from frontrunner.spaces.errors import FrontrunnerError

outside = APIRouter(include_in_schema=False)
scraped = APIRouter(include_in_schema=False, route_class=CachedRoute)
links = APIRouter(tags=["operations"])
logger = logging.getLogger("frontrunner.server")

HOME = "/api/v1/campaigns"
"""Where a browser goes first while no page is served."""
LOGGED_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>frontrunner</title>
<meta http-equiv="refresh" content="0; url=/"></head><body><p><a href="/">Continue</a></p></body></html>
"""


@outside.get("/healthz")
def health(store: StoreOf) -> Response:
    """Report whether the service can read its store; open to all, and silent about everything else."""
    try:
        any_campaign(store)
    except FrontrunnerError as error:  # names the store's path, or the database's host and user
        logger.warning("/healthz: %s", error.message)
        return answer({"status": "store not readable"}, status=503)
    return answer({"status": "ok"})


@scraped.get("/metrics")
def prometheus(store: StoreOf) -> Response:
    """Return the store's figures for Prometheus, which sends a token by its `authorization` setting."""
    return Response(metrics(store), media_type=CONTENT_TYPE_LATEST)


@outside.get("/login")
def login(service: ServiceOf, code: Annotated[str, Query(max_length=128)] = "") -> Response:
    """Turn a one-time code into a cookie.

    The response is a page that continues by itself: after a redirect from another site, browsers would not send the
    cookie.
    """
    role = service.links.spend(code)
    if role is None:
        raise Forbidden("this link was used already, or has expired", hint="`frontrunner serve` prints a new one")
    page = HTMLResponse(LOGGED_IN)
    page.set_cookie(
        COOKIE,
        service.tokens.session(role),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=service.settings.behind_tls,
    )
    return page


@outside.get("/")
def home() -> Response:
    """Redirect a browser to the first page."""
    return RedirectResponse(HOME, status_code=303)


@links.post("/links", response_model=LinkAnswer, status_code=201)
def link(service: ServiceOf, role: RoleOf) -> Response:
    """Return a link that logs one browser in, with the sender's own role."""
    return answer({"path": f"/login?code={service.links.make(role)}"}, status=201)
