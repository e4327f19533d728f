"""Errors of the service, and values and errors as HTTP responses: JSON for programs, errors as a page for browsers.

Forbidden    403   the sender's role does not permit this
Conflict     409   the request does not fit the state of the campaign or replay
TooMany      429   a limit of the service is reached
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from frontrunner.plain_json import to_json
from frontrunner.server.auth import ROLE
from frontrunner.spaces import errors
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.validation import invalid_input


class Forbidden(FrontrunnerError):
    """The sender's role does not permit this."""


class Conflict(FrontrunnerError):
    """Nothing of this kind is running, or not where it can be reached."""


class TooMany(FrontrunnerError):
    """A limit of the service is reached."""


STATUS_OF: dict[type[FrontrunnerError], int] = {
    errors.NotFound: 404,
    errors.InvalidInput: 422,
    errors.AlreadyDriven: 409,
    errors.CampaignFailed: 409,
    errors.NothingLegal: 422,
    errors.StoreUnusable: 503,
    errors.ServiceUnreachable: 502,
    Forbidden: 403,
    Conflict: 409,
    TooMany: 429,
    FrontrunnerError: 500,
}
TITLES = {403: "Not allowed", 404: "Not found"}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>{status} - frontrunner</title></head>
<body><h1>{status}</h1><p>{message}</p><p>{hint}</p><p class="home"><a href="/">All campaigns</a></p></body></html>
"""
"""For senders without a token, who may not load the style sheet either, and for fragments of a page."""
PLACES = ("body", "query", "path", "header")
"""First part of a validation error's location: where in the request the value is."""


def to_table(error: FrontrunnerError) -> dict[str, Any]:
    """Return an error as {"kind", "message", "hint"}."""
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def from_table(table: Mapping[str, Any]) -> FrontrunnerError:
    """Return the error of {"kind", "message", "hint"}; a `FrontrunnerError` for an unknown kind."""
    kind = getattr(errors, str(table.get("kind")), None)
    known = isinstance(kind, type) and issubclass(kind, FrontrunnerError)
    return (kind if known and kind else FrontrunnerError)(str(table.get("message")), hint=table.get("hint"))


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
    given = Headers(scope=scope)
    if "text/html" not in given.get("accept", "") or str(scope["path"]).startswith("/api/"):
        content = {"error": {"kind": kind, "message": message, "hint": hint}}
        return JSONResponse(content, status_code=status, headers=headers)
    if ROLE not in scope or "hx-request" in given:
        page = PAGE.format(status=status, message=html.escape(message), hint=html.escape(hint or ""))
    else:
        from frontrunner.server.pages.rendering import render

        title = TITLES.get(status, "This request cannot be served")
        page = render("refusal.html", here=None, status=status, title=title, message=message, hint=hint)
    return Response(page, status_code=status, media_type="text/html", headers=headers)


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
