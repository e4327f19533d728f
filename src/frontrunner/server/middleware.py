"""Checks that every request passes before a route sees it: size, host, rate, origin, token."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontrunner.results.process_identity import acting_for
from frontrunner.server.auth import CALLER, Access
from frontrunner.server.pages.rendering import STATIC
from frontrunner.server.service import error_response
from frontrunner.server.settings import ServiceSettings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; all others, known or not, must come from our own pages or from a
program.
"""
OPEN_PATHS = frozenset({"/healthz", "/login", "/join", "/api/v1/join"})
CLOSE = {"connection": "close"}
MOST_ADDRESSES = 4096
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # with no-referrer the Origin of our own forms would be null
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Check = Callable[[Scope], Response | None]


def middleware(settings: ServiceSettings, access: Access) -> list[Middleware]:
    """Return the middleware of a service, the outermost first."""
    limits = settings.limits
    checks = (
        RateLimit(limits.requests_per_s, limits.request_burst),
        partial(check_origin, access),
        partial(authenticate, access),
    )
    return [
        Middleware(Heads),
        Middleware(SecurityHeaders),
        Middleware(
            TrustedHostMiddleware, allowed_hosts=sorted(settings.host_names), www_redirect=False
        ),
        Middleware(Checks, checks=checks, most_bytes=limits.body_bytes),
    ]


class Heads:
    """Responds to HEAD as to GET, without the body; not where the response never ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask as GET, and leave out what follows the headers."""
        if (
            scope["type"] != "http"
            or scope["method"] != "HEAD"
            or scope["path"].endswith("/events")
        ):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


class SecurityHeaders:
    """Adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to the response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class Checks:
    """Refuses requests that fail a check, and, with 413, bodies whose declared or actual length is
    too long.
    """

    def __init__(self, app: ASGIApp, checks: tuple[Check, ...], most_bytes: int) -> None:
        self._app, self._checks, self._most = app, (*checks, self._check_length), most_bytes
        self._too_long = f"a body has at most {most_bytes:,} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or send the first refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for check in self._checks:
            refusal = check(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            received = await receive()
            size += len(received.get("body", b""))
            if size > self._most:
                raise HTTPException(413, self._too_long, headers=CLOSE)
            return received

        if CALLER not in scope:
            await self._app(scope, receive_counted, send)
            return
        with acting_for(scope[CALLER].name):
            await self._app(scope, receive_counted, send)

    def _check_length(self, scope: Scope) -> Response | None:
        declared = Headers(scope=scope).get("content-length", "0")
        fits = declared.isdigit() and int(declared) <= self._most
        return None if fits else error_response(scope, 413, self._too_long, headers=CLOSE)


class RateLimit:
    """Token bucket per client address: `burst` requests at once, then `per_s`."""

    def __init__(
        self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, float(burst), clock
        self._left: LRUCache[str, tuple[float, float]] = LRUCache(MOST_ADDRESSES)

    def wait_s(self, address: str) -> float:
        """Take one request of an address; return 0, or the seconds until it may be repeated."""
        now = self._clock()
        left, then = self._left.get(address, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_s)
        self._left[address] = (left - 1.0 if left >= 1.0 else left, now)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def __call__(self, scope: Scope) -> Response | None:
        """Refuse with 429."""
        wait_s = self.wait_s((scope.get("client") or ("",))[0])
        if wait_s <= 0:
            return None
        again = {"retry-after": str(int(wait_s) + 1), **CLOSE}
        return error_response(scope, 429, "too many requests", kind="TooMany", headers=again)


def check_origin(access: Access, scope: Scope) -> Response | None:
    """Refuse with 403 a request of a page of another origin that may change something.

    A browser names the origin in Origin or Sec-Fetch-Site. A program names neither, and must then
    send a token, since only browsers add a cookie by themselves.
    """
    headers = Headers(scope=scope)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    parts = urlsplit(origin or "")
    if scope["method"] in SAFE_METHODS:
        is_ours = True
    elif origin is None and site is None:
        is_ours = "authorization" in headers or session_cookie(headers, access) is None
    elif origin is None or site not in (None, "same-origin"):
        is_ours = site == "same-origin"
    else:
        is_ours = (
            parts.scheme in ("http", "https")
            and parts.netloc.lower() == headers.get("host", "").strip().lower()
        )
    message = "this request comes from a page of another origin"
    return None if is_ours else error_response(scope, 403, message, kind="Forbidden", headers=CLOSE)


def authenticate(access: Access, scope: Scope) -> Response | None:
    """Refuse with 401 a request without a valid token or session cookie; others carry their caller
    from here on.
    """
    headers = Headers(scope=scope)
    if "authorization" in headers:  # a valid cookie does not make up for an invalid token
        scheme, _, token = headers["authorization"].partition(" ")
        caller = access.caller_of(token=token.strip()) if scheme.lower() == "bearer" else None
    else:
        caller = access.caller_of(cookie=session_cookie(headers, access))
    if caller is not None:
        scope[CALLER] = caller
    if caller is not None or scope["path"] in OPEN_PATHS or scope["path"].startswith(STATIC):
        return None
    hint = "send it as `Authorization: Bearer TOKEN`, or sign in at /login"
    refused = {"www-authenticate": "Bearer", **CLOSE}
    return error_response(
        scope, 401, "a valid token is needed", kind="Unauthorized", hint=hint, headers=refused
    )


def session_cookie(headers: Headers, access: Access) -> str | None:
    """Return our cookie's value; browsers send the cookies of every program on this host to each of
    them.
    """
    return cookie_parser(headers.get("cookie", "")).get(access.cookie)
