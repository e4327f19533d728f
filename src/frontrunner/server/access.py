"""The guard that asks who sends a request: a token in the Authorization header, or a browser's cookie."""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from frontrunner.server.guards import Guard, session_cookie
from frontrunner.server.refusals import CLOSE, refusal
from frontrunner.server.tokens import ROLE, Role, Tokens

OPEN_PATHS = frozenset({"/healthz", "/login"})
"""What answers without a token: whether the service lives, and the link that opens a browser once."""
HOW_TO_ENTER = "send it as `Authorization: Bearer TOKEN`, or open the link that `frontrunner serve` prints"


class Access(Guard):
    """Refuses requests without a valid token; the others carry their sender's role from here on."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        super().__init__(app)
        self._tokens = tokens

    def refuse(self, scope: Scope) -> Response | None:
        """401 for a request of nobody known, without a word on why."""
        if scope["path"] in OPEN_PATHS:
            return None
        role = self._role(Headers(scope=scope))
        if role is None:
            headers = {"www-authenticate": "Bearer", **CLOSE}
            return refusal(scope, 401, "a valid token is needed", hint=HOW_TO_ENTER, headers=headers)
        scope[ROLE] = role
        return None

    def _role(self, headers: Headers) -> Role | None:
        """Whose request it is; a token that is wrong is not mended by a cookie that is right."""
        given = headers.get("authorization")
        if given is not None:
            scheme, _, token = given.partition(" ")
            return self._tokens.role_of(token.strip()) if scheme.lower() == "bearer" else None
        cookie = session_cookie(headers)
        return None if cookie is None else self._tokens.role_of_session(cookie, now_s=time.time())
