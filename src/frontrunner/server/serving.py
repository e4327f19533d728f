"""Running the service: uvicorn on one socket."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError

BACKLOG = 128
GRACE_S = 3


def listen(settings: ServiceSettings) -> socket.socket:
    """Return a socket on the settings' address; raise `FrontrunnerError` where it is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise FrontrunnerError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            hint="choose another with --port; --port 0 takes a free one",
        ) from None
    found.listen(BACKLOG)
    return found


def config(app: FastAPI, settings: ServiceSettings) -> uvicorn.Config:
    """Return uvicorn's settings: plain HTTP/1.1, no trust in proxy headers, and our limits."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.limits.connections,
        h11_max_incomplete_event_size=settings.limits.header_bytes,
        timeout_graceful_shutdown=GRACE_S,
    )


def run(app: FastAPI, settings: ServiceSettings, listener: socket.socket) -> None:
    """Serve until a signal asks for the end; open streams are then cut after `GRACE_S`."""
    uvicorn.Server(config(app, settings)).run(sockets=[listener])
