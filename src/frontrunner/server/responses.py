"""Values and errors as HTTP responses: JSON for programs, errors as a page for browsers."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from frontrunner.plain_json import to_json
from frontrunner.server.auth import ROLE
from frontrunner.server.errors import STATUS_OF
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.validation import invalid_input

TITLES = {403: "Not allowed", 404: "Not found"}
OTHER_TITLE = "This request cannot be served"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>{status} - frontrunner</title></head>
<body><h1>{status}</h1><p>{message}</p><p>{hint}</p><p class="home"><a href="/">All campaigns</a></p></body></html>
"""
"""For senders without a token, who may not load the style sheet either, and for fragments of a page."""
PLACES = ("body", "query", "path", "header")
"""First part of a validation error's location: where in the request the value is."""


def answer(value: object, *, status: int = 200) -> Response:
    """Return a value as a JSON response.

    FastAPI's own serialization would validate each value again, and leave out derived figures.
    """
    return Response(to_json(value), status_code=status, media_type="application/json")


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
    accepts_page = "text/html" in Headers(scope=scope).get("accept", "")
    if accepts_page and not str(scope["path"]).startswith("/api/"):
        page = _page(scope, status, message, hint or "")
        return Response(page, status_code=status, media_type="text/html", headers=headers)
    content = {"error": {"kind": kind, "message": message, "hint": hint}}
    return JSONResponse(content, status_code=status, headers=headers)


def response_of(scope: Scope, error: FrontrunnerError, store: str) -> Response:
    """Return one of our errors as a response that does not reveal where the store is."""
    kind = type(error)
    status = next(STATUS_OF[base] for base in kind.__mro__ if base in STATUS_OF)
    return error_response(scope, status, message_without_store(error, store), kind=kind.__name__, hint=error.hint)


def message_without_store(error: FrontrunnerError, store: str) -> str:
    """Return an error's message without the address of the store."""
    return error.message.removesuffix(f" in {store}")


def from_validation(complaints: Sequence[Mapping[str, Any]]) -> FrontrunnerError:
    """Convert FastAPI's validation errors into one of ours."""
    first = complaints[0]
    place = first["loc"]
    return invalid_input([{**first, "loc": place[1:] if place[:1] and place[0] in PLACES else place}])


def _page(scope: Scope, status: int, message: str, hint: str) -> str:
    from frontrunner.server.pages.rendering import render

    if ROLE not in scope or "hx-request" in Headers(scope=scope):
        return PAGE.format(status=status, message=html.escape(message), hint=html.escape(hint))
    title = TITLES.get(status, OTHER_TITLE)
    return render("refusal.html", here=None, status=status, title=title, message=message, hint=hint)
