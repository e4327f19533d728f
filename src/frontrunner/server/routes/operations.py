"""What runs beside the API: whether the service lives, its metrics, and how a browser gets in."""

from __future__ import annotations

import logging
import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from frontrunner.results.pages import any_campaign
from frontrunner.server.answers import AnswersOf, answer
from frontrunner.server.errors import Forbidden
from frontrunner.server.guards import COOKIE
from frontrunner.server.metrics import CONTENT_TYPE, metrics
from frontrunner.server.models import LinkAnswer
from frontrunner.server.state import RoleOf, ServiceOf, StoreOf
from frontrunner.server.tokens import SESSION_S
from frontrunner.spaces.errors import FrontrunnerError

router = APIRouter(include_in_schema=False)
api = APIRouter(tags=["operations"])
logger = logging.getLogger("frontrunner.server")

HOME = "/api/v1/campaigns"
"""Where a browser goes first while no page is served."""
COME_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>frontrunner</title>
<meta http-equiv="refresh" content="0; url=/"></head><body><p><a href="/">Go on</a></p></body></html>
"""


@router.get("/healthz")
def health(store: StoreOf) -> Response:
    """Whether the service lives and can read its store; open to all, and silent about everything else."""
    try:
        any_campaign(store)
    except FrontrunnerError as error:  # which names the store's path, or the database's host and user
        logger.warning("/healthz: %s", error.message)
        return answer({"status": "store not readable"}, status=503)
    return answer({"status": "ok"})


@router.get("/metrics")
def prometheus(answers: AnswersOf, service: ServiceOf) -> Response:
    """The store's figures for Prometheus, which sends a token as its `authorization` says."""
    return answers.text(object, lambda: metrics(service.store, service.summaries), CONTENT_TYPE)


@router.get("/login")
def login(service: ServiceOf, code: Annotated[str, Query(max_length=128)] = "") -> Response:
    """Turn a one-time code into a cookie.

    The answer is a page that goes on by itself: with a redirect that another site began the cookie would not be sent.
    """
    role = service.links.spend(code)
    if role is None:
        raise Forbidden("this link was used already, or is too old", hint="`frontrunner serve` prints a new one")
    entered = HTMLResponse(COME_IN)
    entered.set_cookie(
        COOKIE,
        service.tokens.session(role, now_s=time.time()),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=service.settings.behind_tls,
    )
    return entered


@router.get("/")
def home() -> Response:
    """Send a browser to where it begins."""
    return RedirectResponse(HOME, status_code=303)


@api.post("/links", response_model=LinkAnswer, status_code=201)
def link(service: ServiceOf, role: RoleOf) -> Response:
    """A link that opens a browser once, with the sender's own role."""
    return answer({"path": f"/login?code={service.links.make(role)}"}, status=201)
