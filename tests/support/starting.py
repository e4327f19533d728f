"""Servers that tests start, and that may fail to start on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")
ATTEMPTS = 3


class DidNotStart(Exception):
    """A server that was not ready in time, or ended before."""


@contextmanager
def retried(name: str, start: Callable[[int], AbstractContextManager[T]]) -> Iterator[T]:
    """Start a server, up to three times, and say so on stderr where an attempt failed.

    Args:
        name: The server, for the message.
        start: Makes the context of one attempt from its number, from 1 on. Entering it raises
            `DidNotStart` where the server does not start.
    """
    for attempt in range(1, ATTEMPTS + 1):
        context = start(attempt)
        try:
            server = context.__enter__()
        except DidNotStart as error:
            sys.stderr.write(f"{name} did not start, attempt {attempt} of {ATTEMPTS}: {error}\n")
            if attempt == ATTEMPTS:
                raise
            continue
        try:
            yield server
        except BaseException:
            if not context.__exit__(*sys.exc_info()):
                raise
        else:
            context.__exit__(None, None, None)
        return
