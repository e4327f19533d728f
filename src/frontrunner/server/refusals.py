"""How the service says no: one JSON document for programs, a page for browsers, the same words in both."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from frontrunner.server.errors import Conflict, Forbidden, TooMany
from frontrunner.server.pages.rendering import render
from frontrunner.server.tokens import ROLE
from frontrunner.spaces import errors

STATUS_OF: dict[type[errors.FrontrunnerError], int] = {
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
    errors.FrontrunnerError: 500,
}
"""The status of each of our errors; `frontrunner.remote` turns them back."""

CLOSE = {"connection": "close"}
"""Header of a refusal after which the connection ends: what follows on it is a body that nobody has read."""

TITLES = {403: "Not allowed", 404: "Not found"}
"""Of a page; others have `OTHER_TITLE`."""
OTHER_TITLE = "This cannot be answered"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>{status} - frontrunner</title></head>
<body><h1>{status}</h1><p>{message}</p><p>{hint}</p><p class="home"><a href="/">All campaigns</a></p></body></html>
"""
"""For whoever showed no token, and so may not load the style sheet either; and for a page that takes a piece of it."""


def refusal(
    scope: Scope,
    status: int,
    message: str,
    *,
    kind: str = "Refused",
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer that says no, as the request's Accept header wants it."""
    if wants_page(scope):
        page = _page(scope, status, message, hint or "")
        return Response(page, status_code=status, media_type="text/html", headers=headers)
    table = {"error": {"kind": kind, "message": message, "hint": hint}}
    return Response(json.dumps(table), status_code=status, media_type="application/json", headers=headers)


def refusal_of(scope: Scope, error: errors.FrontrunnerError, store: str) -> Response:
    """One of our errors as an answer, without a word on where `store` is."""
    kind = type(error)
    status = next(STATUS_OF[base] for base in kind.__mro__ if base in STATUS_OF)
    return refusal(scope, status, told_without_store(error, store), kind=kind.__name__, hint=error.hint)


def told_without_store(error: errors.FrontrunnerError, store: str) -> str:
    """What an error says without where the store is: that is nobody's business who asks over the wire."""
    return error.message.removesuffix(f" in {store}")


def _page(scope: Scope, status: int, message: str, hint: str) -> str:
    if ROLE not in scope or "hx-request" in Headers(scope=scope):
        return PAGE.format(status=status, message=html.escape(message), hint=html.escape(hint))
    title = TITLES.get(status, OTHER_TITLE)
    return render("refusal.html", here=None, status=status, title=title, message=message, hint=hint)


def wants_page(scope: Scope) -> bool:
    """Whether the request is a browser's for a page: outside the programs' addresses, with HTML accepted by name."""
    return not str(scope["path"]).startswith("/api/") and "text/html" in Headers(scope=scope).get("accept", "")
