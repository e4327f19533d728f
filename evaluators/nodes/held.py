"""An allocation from its request to its end, whoever provides it, and a step on nodes of one."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.nodes.settings import NodeSource

LOGGER = logging.getLogger("parsl.frontrunner")
"""Goes to the log of the allocations, as Parsl's own; the terminal gets one sentence."""


class HeldAllocation(ABC):
    """An allocation from its request to its end.

    Once known: `job_id` and `queued_s` (the batch system had accepted the request), `hosts` and
    `ready_s` (the workers had reported the nodes' names), `end_s` (when its time is up), `ended_s`
    (it was found to have ended), and `why`; `waits_for` is what a request lacks, if the engine says
    so.
    """

    def __init__(self, source: NodeSource, name: str, folder: Path) -> None:
        self.name = name
        self.nodes = source.nodes
        self.hosts: tuple[str, ...] = ()
        self.job_id: str | None = None
        self.queued_s = math.inf
        self.ready_s: float | None = None
        self.ended_s: float | None = None
        self.why = self.waits_for = ""
        self.end_s = None if source.seconds_left is None else time.monotonic() + source.seconds_left
        self._source = source
        self._folder = folder
        self._names: Future[tuple[str, ...]] | None = None
        self._requests: queue.SimpleQueue[Placed] = queue.SimpleQueue()
        self._is_unwanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"frontrunner-{name}", daemon=True)
        self._thread.start()

    def start(self, placed: Placed) -> None:
        """Start a step on free nodes."""
        self._requests.put(placed)

    def give_back(self) -> None:
        """Have it ended; return at once."""
        self._is_unwanted.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has been given back, and return whether it was in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def _run(self) -> None:
        """Get the nodes, serve the requests, and give the nodes back: the work of the allocation's
        thread.
        """

    def _note_end(self, why: str) -> None:
        if self.ended_s is None:  # the first reason counts
            self.why = why
            self.ended_s = time.monotonic()


class NodeLost(Exception):
    """A node of a step is gone, while its allocation goes on."""


@dataclass(kw_only=True)
class Placed:
    """A step on nodes of an allocation, and when it is expected to end; `task` is the engine's,
    once submitted.
    """

    step: Path
    allocation: HeldAllocation
    hosts: tuple[str, ...]
    expected_end_s: float
    task: Future[int] | None = None

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return len(self.hosts)

    @property
    def is_over(self) -> bool:
        """Whether its launcher has ended, or its allocation."""
        return self.allocation.ended_s is not None or (self.task is not None and self.task.done())

    @property
    def node_lost(self) -> str | None:
        """Why a node of the step is gone, where the step is over for that."""
        error = self.task.exception() if self.task is not None and self.task.done() else None
        return str(error) if isinstance(error, NodeLost) else None
