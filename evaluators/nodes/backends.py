"""Backends, which provide nodes: the interface of one, an allocation of nodes from its request to
its end, and a step on some of its nodes.

To add a backend, write a module with a `Backend`, and put its name and keys into `settings.py`.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from frontrunner.evaluators.nodes.environment import Allocation, allocation
from frontrunner.evaluators.nodes.settings import BACKENDS, LOCAL, DispatchSettings, NodeSource
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import bad_value, installing

LOGGER = logging.getLogger("parsl.frontrunner")
"""Goes to the log of the allocations, as Parsl's own; the terminal gets one sentence."""


class HeldAllocation(ABC):
    """An allocation from its request to its end. Times are by the monotonic clock.

    The rest gets known later: `job_id` and `queued_s`, when the batch system has answered the
    request; `hosts` and `ready_s`, when the workers have reported the nodes' names; `end_s`, when
    its time is up; `ended_s` and `why`, when it was found to have ended. `waits_for` is what a
    request lacks, if that is known.
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
        self.end_s = source.end_s
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
        """Wait for up to `timeout_s` until it has been given back; return whether it has."""
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


class Backend(ABC):
    """One way to get nodes: a value of `dispatch.backend`."""

    package: ClassVar[str]
    """The Python package that it needs."""
    extra: ClassVar[str]
    """The extra of this distribution that installs that."""
    title: ClassVar[str]
    """The name of the package for people."""
    ends_with_driver: ClassVar[bool] = False
    """It ends what a dead driver has left on nodes, before it gives them to another driver."""
    has_plain_paths: ClassVar[bool] = False
    """Paths reach a shell unquoted."""

    @abstractmethod
    def source(
        self, settings: DispatchSettings, cluster: Cluster, job: Allocation | None
    ) -> NodeSource:
        """Return how a campaign gets its nodes; `job` is the one that the driver runs in, if any.
        Raise `InvalidInput` for what this backend cannot do.
        """

    @abstractmethod
    def request(self, source: NodeSource, name: str, folder: Path) -> HeldAllocation:
        """Request an allocation, whose files go to `folder`."""

    def check(self, settings: DispatchSettings) -> None:  # noqa: B027 - nothing to find by default
        """Raise `InvalidInput` where what provides the nodes cannot be found; may take seconds."""


def backend_of(name: str) -> Backend:
    """Return the backend of that name, which is not this machine."""
    module, _, attribute = BACKENDS[name].partition(":")
    found: Backend = getattr(import_module(module), attribute)
    return found


def node_source(
    settings: DispatchSettings, cluster: Cluster, environment: Mapping[str, str] | None = None
) -> NodeSource | None:
    """Return the campaign's source of nodes; None where its probes run on this machine alone."""
    job = allocation(os.environ if environment is None else environment)
    if settings.backend is None and cluster.nodes > 1 and (job is None or len(job.nodes) == 1):
        raise bad_value(
            "cluster.nodes",
            cluster.nodes,
            "1: probes run on the machine that the driver is on",
            hint=(
                'dispatch.backend = "parsl" requests nodes from a batch system, "ray" from a Ray'
                " cluster; within a job of several (salloc, qsub -I) they are found; to try the"
                " search here, with simulated outcomes: frontrunner launch FILE --set"
                " evaluator=simulated"
            ),
        )
    name = settings.backend or ("allocation" if cluster.nodes > 1 else LOCAL)
    if name == LOCAL:
        if cluster.nodes > 1:
            expected = f"one of {', '.join(BACKENDS)} for cluster.nodes = {cluster.nodes}"
            raise bad_value("dispatch.backend", name, expected)
        return None
    backend = backend_of(name)
    if find_spec(backend.package) is None:
        install = f"run: {installing(f'frontrunner[{backend.extra}]')}"
        expected = f"local: {backend.title} is not installed"
        raise bad_value("dispatch.backend", name, expected, hint=install)
    return backend.source(settings, cluster, job)
