"""What a request must pass before anybody reads it: small ASGI layers, outermost first, each with one question.

The order is that of `frontrunner.server.app._guards`: the Host it was sent to (421), the page it was sent from (403),
who sent it (`access`, 401), how long its body is (413), and of what kind (415).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontrunner.server.refusals import CLOSE, refusal

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; all others, known or not, must come from our own pages or from a program."""
COOKIE = "frontrunner_session"

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class SecureHeaders:
    """Adds to every answer what browsers need to be told; a page may not set a looser policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer with its headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class Guard:
    """A layer that lets a request pass or answers it with a refusal, by what its head says."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it is refused."""
        answer = self.refuse(scope) if scope["type"] == "http" else None
        await (self._app if answer is None else answer)(scope, receive, send)

    def refuse(self, scope: Scope) -> Response | None:
        """The refusal of a request, None for one that may pass."""
        raise NotImplementedError


class KnownHost(Guard):
    """Refuses requests to a name that is not ours, as a page sends whose own name was turned to this address."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        super().__init__(app)
        self._names = names

    def refuse(self, scope: Scope) -> Response | None:
        """421 unless exactly one Host header holds one of our names; the port may be a tunnel's."""
        given = Headers(scope=scope).getlist("host")
        if len(given) == 1 and _without_port(given[0]) in self._names:
            return None
        return refusal(scope, 421, "this service does not answer to that host name", headers=CLOSE)


class SameOrigin(Guard):
    """Refuses whatever may change something and was sent by a page of another origin.

    A browser says where a request comes from, in Origin or Sec-Fetch-Site; a program says neither and must then show
    a token, since a cookie is added by browsers alone.
    """

    def refuse(self, scope: Scope) -> Response | None:
        """403 for a method that is not known to be safe, from anywhere but our own pages or a program."""
        if scope["method"] in SAFE_METHODS or _is_from_here(Headers(scope=scope)):
            return None
        return refusal(scope, 403, "this request comes from a page of another origin", headers=CLOSE)


class BodyKind(Guard):
    """Refuses bodies that are not plain JSON: forms, which any page can send, and compressed ones, which may swell."""

    def refuse(self, scope: Scope) -> Response | None:
        """415 for a body of another kind."""
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "identity").lower() != "identity":
            return refusal(scope, 415, "compressed bodies are not read")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if has_body(headers) and kind != "application/json":
            return refusal(scope, 415, "a body must be application/json")
        return None


def has_body(headers: Headers) -> bool:
    """Whether a request announces a body."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def session_cookie(headers: Headers) -> str | None:
    """The value of our cookie, or None.

    A browser sends the cookies of all programs on this host, whatever their form, to each of them.
    """
    return cookie_parser(headers.get("cookie", "")).get(COOKIE)


def _without_port(host: str) -> str:
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


def _is_from_here(headers: Headers) -> bool:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return "authorization" in headers or session_cookie(headers) is None
    if site not in (None, "same-origin"):
        return False
    if origin is None:
        return True
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == headers.get("host", "").strip().lower()
