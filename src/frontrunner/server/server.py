"""Running the service: uvicorn on one socket, with clients that are slow below HTTP cut off."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import ClassVar

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from frontrunner.server.settings import Limits, ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError

BACKLOG = 128
GRACE_S = 3


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that gives a client so long to finish a request's head, and so long to read what was written to it.

    uvicorn itself waits for both as long as the connection lasts.
    """

    limits: ClassVar[Limits] = Limits()
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Pass the data on; expect the rest of a head that has not ended with them."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._expect_head()
        else:
            self._head_timer = _cancelled(self._head_timer)

    def pause_writing(self) -> None:
        """Too much is unread: expect it to be read."""
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self.limits.send_s, self._cut)

    def resume_writing(self) -> None:
        """It was read."""
        super().resume_writing()
        self._unread_timer = _cancelled(self._unread_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._head_timer = _cancelled(self._head_timer)
        self._unread_timer = _cancelled(self._unread_timer)
        super().connection_lost(exc)

    def _cut(self) -> None:
        """Reset the connection: closed, what is unread would wait in the system's buffers for its reader."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_s, self._cut)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer; None is what takes its place."""
    if timer is not None:
        timer.cancel()
    return None


def listen(settings: ServiceSettings) -> socket.socket:
    """A socket on the settings' address; raises `FrontrunnerError` where it is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise FrontrunnerError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            hint="choose another with --port; --port 0 takes one that is free",
        ) from None
    found.listen(BACKLOG)
    return found


def config(app: FastAPI, settings: ServiceSettings) -> uvicorn.Config:
    """Uvicorn's settings: plain HTTP/1.1, nothing trusted that a proxy says, and our limits."""
    limits = settings.limits
    return uvicorn.Config(
        app,
        http=type("Protocol", (TimedProtocol,), {"limits": limits}),
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_graceful_shutdown=GRACE_S,
    )


def run(app: FastAPI, settings: ServiceSettings, listener: socket.socket) -> None:
    """Serve until a signal asks for the end; open streams are then cut after `GRACE_S`."""
    uvicorn.Server(config(app, settings)).run(sockets=[listener])
