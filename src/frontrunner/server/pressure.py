"""The guards against too much: requests too fast, bodies too long or too slow.

Clients that are slow below HTTP, with a head that does not end or an answer that they leave unread, are the business of
`frontrunner.server.server`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontrunner.server.guards import Guard
from frontrunner.server.refusals import CLOSE, refusal
from frontrunner.server.settings import Limits

MOST_ADDRESSES = 4096


class TokenBucket:
    """So many requests at once, and so many a second after that, for each address."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, float(burst), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Take one request of an address; 0, or the seconds after which there is room for it."""
        now = self._clock()
        left, then = self._left.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_s)
        taken = left >= 1.0
        self._left[address] = (left - 1.0 if taken else left, now)
        while len(self._left) > MOST_ADDRESSES:  # the one that was silent longest has its whole burst again
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._per_s


class RequestRate(Guard):
    """Refuses what an address sends above its rate."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self._bucket = TokenBucket(limits.requests_per_s, limits.request_burst)

    def refuse(self, scope: Scope) -> Response | None:
        """429, with the whole seconds after which to try again."""
        wait_s = self._bucket.wait_s((scope.get("client") or ("",))[0])
        if wait_s <= 0:
            return None
        return refusal(scope, 429, "too many requests", headers={"retry-after": str(int(wait_s) + 1), **CLOSE})


class HeadSize(Guard):
    """Refuses heads that are too long; the protocol's own limit counts only what came without an end."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self._most = limits.header_bytes

    def refuse(self, scope: Scope) -> Response | None:
        """431 where target and headers together are longer than the limit."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size <= self._most:
            return None
        return refusal(scope, 431, f"target and headers have at most {self._most:,} bytes", headers=CLOSE)


class BodySize:
    """Refuses bodies that are too long, by what they say of themselves and by what arrives, or that arrive too slowly.

    A body is read whole, within its time, before the request goes on: no route waits for a client.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or refuse it: 413 by size, 408 by time."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, most_s = self._limits.body_bytes, self._limits.body_s
        too_long = refusal(scope, 413, f"a body has at most {most:,} bytes", headers=CLOSE)
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit() or int(declared) > most:
            await too_long(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(_whole(receive, most), most_s)
        except TimeoutError:
            too_slow = refusal(scope, 408, f"the body did not arrive within {most_s:g} s", headers=CLOSE)
            await too_slow(scope, receive, send)
            return
        if body is None:
            await too_long(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


async def _whole(receive: Receive, most: int) -> bytes | None:
    """A request's body; None where it is longer than `most` bytes."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands out a body which was read already, and then listens for the client's leaving."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
