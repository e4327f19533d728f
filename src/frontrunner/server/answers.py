"""Answers as JSON, in the shape that the commands print with `--json`; those that still hold are given again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar
from weakref import WeakValueDictionary

from fastapi import Depends, Request, Response

from frontrunner.plain_json import to_json
from frontrunner.results.active_drivers import stamp, stamp_of_recipe
from frontrunner.results.store import Store
from frontrunner.server.pace import Pace
from frontrunner.server.state import RoleOf, ServiceOf
from frontrunner.server.tokens import Role

JSON = "application/json"
BESIDE_BYTES = 512
"""What an answer takes beside itself and its question, about: the objects that keep it."""
StampT = TypeVar("StampT")
AnswerT = TypeVar("AnswerT", bound=Sized)


def answer(value: object, *, status: int = 200) -> Response:
    """A value of ours as a JSON answer.

    FastAPI's own way would check each answer against its model again, and leave out the derived figures.
    """
    return Response(to_json(value), status_code=status, media_type=JSON)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked, by whom, and when by the memory's clock: readers and operators see different pages."""

    role: Role
    about: str
    asked_s: float

    @property
    def key(self) -> tuple[Role, str]:
        """What equal questions have in common."""
        return self.role, self.about


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An answer, the stamp of the store that was read before it was made, and since when it is known to hold.

    `cost_s` is the processor time that making it took. `size_bytes` is what it takes to keep it, with its question,
    which may be longer than the answer.
    """

    stamp: object
    since_s: float
    answer: Any
    cost_s: float
    size_bytes: int


@dataclass(kw_only=True)
class Memory:
    """The answers that were given last, of at most `most_bytes` together with their questions.

    `clock` tells seconds, and `spent` those of the processor that this thread has used. An answer is given again where
    its making began after the question was asked, so that many who ask at the same time wait for one; and where its
    stamp is still that of the store.
    """

    most_bytes: int
    clock: Callable[[], float] = time.monotonic
    spent: Callable[[], float] = time.thread_time
    _kept: OrderedDict[object, Kept] = field(default_factory=OrderedDict)
    _turns: WeakValueDictionary[object, Any] = field(default_factory=WeakValueDictionary)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(
        self,
        question: Question,
        read_stamp: Callable[[], StampT],
        make: Callable[[StampT], AnswerT],
        *,
        pace: Pace | None = None,
    ) -> AnswerT:
        """What `make` answers, or has answered to an equal question where that still holds.

        `read_stamp` reads what changes with whatever `make` reads, which is given it. With a `pace`, an answer is taken
        too that is as old as its making was costly.
        """
        turn = self._turn(question.key)
        with turn:  # equal questions one after the other: the first makes the answer for those that waited
            kept = self._kept.get(question.key)
            most_age_s = 0.0 if kept is None or pace is None else pace.age_s(kept.cost_s)
            if kept is None or kept.since_s < question.asked_s - most_age_s:
                kept = self._renewed(question, kept, read_stamp, make)
                self._keep(question.key, kept)
            found: AnswerT = kept.answer
            return found

    def _renewed(
        self,
        question: Question,
        old: Kept | None,
        read_stamp: Callable[[], StampT],
        make: Callable[[StampT], AnswerT],
    ) -> Kept:
        """The answer as of now: the old one where its stamp is still the store's."""
        since_s, now = self.clock(), read_stamp()
        if old is not None and old.stamp == now:
            return replace(old, since_s=since_s)
        before_s = self.spent()
        made = make(now)
        return Kept(
            stamp=now,
            since_s=since_s,
            answer=made,
            cost_s=self.spent() - before_s,
            size_bytes=len(made) + len(question.about.encode()) + BESIDE_BYTES,
        )

    def _turn(self, key: object) -> threading.Lock:
        """The lock of a question, which exists as long as somebody waits for its answer."""
        with self._lock:
            found: threading.Lock = self._turns.setdefault(key, threading.Lock())
            return found

    def _keep(self, key: object, new: Kept) -> None:
        """Keep an answer, and drop those that were not asked for longest where they are too many bytes."""
        with self._lock:
            old = self._kept.pop(key, None)
            self._bytes += new.size_bytes - (0 if old is None else old.size_bytes)
            self._kept[key] = new
            while self._bytes > self.most_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].size_bytes


@dataclass(frozen=True)
class Answers:
    """How one request is answered: by one question, of which `about` is the path and query."""

    memory: Memory
    store: Store
    question: Question

    def about(self, names: Sequence[str], ask: Callable[[], object]) -> Response:
        """What `ask` answers about these campaigns and nothing else; asked only where they have changed since."""
        return self._json(lambda: stamp(self.store, names), ask)

    def about_recipe(self, recipe_id: str, ask: Callable[[], object]) -> Response:
        """What `ask` answers about the campaigns that tried a recipe, which is named by the beginning of its id."""
        return self._json(lambda: stamp_of_recipe(self.store, recipe_id), ask)

    def of_now(self, ask: Callable[[], object]) -> Response:
        """What `ask` answers about anything: asked anew, once for all who ask at the same time."""
        return self._json(object, ask)

    def text(self, read_stamp: Callable[[], object], make: Callable[[], str], kind: str) -> Response:
        """A text of this media type, that `make` makes of what has this stamp."""
        return Response(self.memory.answered(self.question, read_stamp, lambda _: make().encode()), media_type=kind)

    def _json(self, read_stamp: Callable[[], object], ask: Callable[[], object]) -> Response:
        return self.text(read_stamp, lambda: to_json(ask()), JSON)


async def the_answers(service: ServiceOf, role: RoleOf, request: Request) -> Answers:
    """The answers of this request's service to its path and query."""
    memory: Memory = request.app.state.memory
    about = f"{request.url.path}?{request.url.query}"
    return Answers(memory, service.store, Question(role=role, about=about, asked_s=memory.clock()))


AnswersOf = Annotated[Answers, Depends(the_answers)]
