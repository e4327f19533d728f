"""What every kind of nodes offers to the driver: `Nodes` start the processes of orders, and
`Processes` report their state.

A program (`programs/base.py`) says what is started, and knows nothing of where. Nodes know nothing
of what the processes compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from frontrunner.evaluators.nodes.fork_server import ProcessKind
from frontrunner.evaluators.protocol import NodeCheck, ProbeOrder


@dataclass(frozen=True, kw_only=True)
class Start:
    """How an order starts on each of its nodes, which read the rest from its run folder.

    `scratch` is a folder on a node's own disk that is removed once the processes have ended.
    """

    kind: ProcessKind
    scratch: Path | None = None


class Processes(ABC):
    """The processes of one order, from their start on.

    They are counted by rank for the built-in trainer, and by node for a command. `statuses` are the
    exit codes of those that have ended, or minus the signal; `killed` are those that were ended on
    purpose. Both change while reports are read, and `end` adds to `killed`.
    """

    log: Path | None = None
    """The log that explains a loss."""
    end_s: float | None = None
    """When the time of their nodes is up, by the monotonic clock; None where nothing says so."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.statuses: dict[int, int] = {}
        self.killed: set[int] = set()

    @property
    def running(self) -> set[int]:
        """Return those that have not ended."""
        return set(range(self.count)) - self.statuses.keys()

    @property
    def have_succeeded(self) -> bool:
        """Return whether all have ended, with status 0."""
        return not self.running and not any(self.statuses.values())

    @property
    @abstractmethod
    def have_begun(self) -> bool:
        """Return whether each of their nodes has started its part."""

    @property
    def have_ended(self) -> bool:
        """Return whether none of their nodes has anything left to do for them."""
        return not self.running

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Return how long they have held nodes; 0 before they do."""

    @property
    @abstractmethod
    def kernel_oom_kills(self) -> int:
        """Return how many processes the kernels of their nodes killed for memory meanwhile."""

    @property
    def stuck_pids(self) -> list[int]:
        """Return the ids of processes of this machine that were killed and have not ended."""
        return []

    @property
    def is_interrupted(self) -> bool:
        """Return whether a node was told to end by something else than this driver."""
        return False

    @property
    def were_taken_away(self) -> bool:
        """Return whether their nodes were taken away, for example at the end of a walltime."""
        return False

    @property
    def blames_nodes(self) -> bool:
        """Return whether what went wrong may say something of single nodes."""
        return True

    @property
    def trouble(self) -> str | None:
        """Return what kept a node from its work, with the node's name, or None."""
        return None

    @abstractmethod
    def read(self) -> None:
        """Note what has become of them."""

    @abstractmethod
    def why_lost(self, *, have_begun: bool, have_ended: bool) -> str | None:
        """Return why the order was lost, once that is known, or None.

        `have_begun` and `have_ended` say what was seen of the order itself. An order that some
        nodes did not begin in time is ended here.
        """

    def end(self) -> None:
        """End what still runs; return without waiting."""
        self.killed |= self.running

    def close(self) -> None:  # noqa: B027 - nodes with agents need no more
        """Clean up after them, where no agent does; they have ended, or cannot be ended."""


class Nodes(ABC):
    """Nodes that orders run on. Used by one thread."""

    are_local = True
    """The driver may be on one of them."""
    takes_others = False
    """Further nodes can be requested when some are given back."""
    starts_at_once = False
    """An order usually starts as soon as it comes; elsewhere it waits for nodes."""
    poll_s = 0.1
    """Seconds between two looks at what runs."""

    @abstractmethod
    def poll(self, timeout_s: float) -> None:
        """Wait for up to `timeout_s` for anything that `Processes.read` would see."""

    @abstractmethod
    def place(self, orders: Iterable[ProbeOrder]) -> set[str]:
        """Reserve nodes for the orders that can start now, and return their tokens.

        Each of them has to be started next. Raises `NodesUnavailable` where the orders have nothing
        to run on for some time to come.
        """

    @abstractmethod
    def start(self, order: ProbeOrder, start: Start) -> Processes:
        """Start an order that `place` returned."""

    def note(self, seconds: float) -> None:  # noqa: B027 - nothing to learn where none wait
        """Note how long an order took that was not lost; the next ones are expected to take as
        long.
        """

    def forget(self, processes: Processes) -> None:  # noqa: B027 - see above
        """Note that an order is over; killed processes that still exist may hold its node."""

    def give_back(self, processes: Processes) -> None:  # noqa: B027 - see above
        """Give back the nodes of processes that have ended, before their time is up."""

    def withdraw_requests(self) -> None:  # noqa: B027 - see above
        """Withdraw the requests for more nodes: no order waits any more."""

    def avoid(self, aside: Mapping[str, str], *, due: Collection[str]) -> None:  # noqa: B027 - see above
        """See `Evaluator.avoid_nodes`."""

    def checked(self) -> list[NodeCheck]:
        """See `Evaluator.checked_nodes`."""
        return []

    @property
    def waits_for(self) -> str:
        """Return what the requests for nodes lack, as what provides the nodes says; empty if
        unknown.
        """
        return ""

    @abstractmethod
    def left_by(self, folders: Iterable[Path]) -> Left:
        """Return what drivers that are gone have left, in these run folders; it is being ended."""

    def remove(self, scratch: Path | None) -> None:  # noqa: B027 - agents of other nodes do so
        """Remove the scratch folder of an order whose driver is gone."""

    @abstractmethod
    def close(self, running: Collection[Processes]) -> None:
        """Wait for those that were ended, and give the nodes back."""


class Left(Protocol):
    """What drivers that are gone have left running."""

    def have_ended(self) -> bool:
        """Return whether nothing of it runs any more; to be called until it returns True."""
