"""Answers as JSON, in the shape that the commands print with `--json`; those that still hold are given again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Response

from frontrunner.plain_json import to_json
from frontrunner.results.driving import stamp
from frontrunner.results.store import Store
from frontrunner.service.state import ServiceOf

JSON = "application/json"


def answer(value: object, *, status: int = 200) -> Response:
    """A value of ours as a JSON answer.

    FastAPI's own way would check each answer against its model again, and leave out the derived figures.
    """
    return Response(to_json(value), status_code=status, media_type=JSON)


class Memory:
    """Answers by their question, each with the stamp of the campaigns that it is about; the latest used are kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[object, bytes]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, question: str, now: object) -> bytes | None:
        """The answer that was kept under this stamp; None where there is none, or the campaigns have moved on."""
        with self._lock:
            then, text = self._kept.get(question, (None, b""))
            if then != now:
                return None
            self._kept.move_to_end(question)
            return text

    def keep(self, question: str, now: object, text: bytes) -> None:
        """Keep an answer, and drop those that were not asked for longest where they are too many bytes."""
        with self._lock:
            self._bytes -= len(self._kept.pop(question, (None, b""))[1])
            self._kept[question] = (now, text)
            self._bytes += len(text)
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1][1])


@dataclass(frozen=True)
class Answers:
    """How one request is answered."""

    memory: Memory
    store: Store
    question: str

    def about(self, names: Sequence[str], ask: Callable[[], object]) -> Response:
        """What `ask` answers about these campaigns and nothing else; asked only where they have changed since."""
        now = stamp(self.store, names)
        text = self.memory.find(self.question, now)
        if text is None:
            text = to_json(ask()).encode()
            self.memory.keep(self.question, now, text)  # under what was there before: a change meanwhile shows
        return Response(text, media_type=JSON)


def the_answers(service: ServiceOf, request: Request) -> Answers:
    """The answers of this request's service to its path and query."""
    memory: Memory = request.app.state.memory
    return Answers(memory, service.store, f"{request.url.path}?{request.url.query}")


AnswersOf = Annotated[Answers, Depends(the_answers)]
