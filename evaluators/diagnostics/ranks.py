"""Ranks that calibrate and doctor start: all of them on this machine, or this process's own in an
allocation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from frontrunner.evaluators.nodes.child_processes import start_child
from frontrunner.evaluators.nodes.environment import launched_rank
from frontrunner.evaluators.runs.files import tail
from frontrunner.spaces.errors import FrontrunnerError, bad_value

POLL_S = 0.1

OWN = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of the ranks this process starts: all `ranks`, on this machine, or its own `rank` of an
    allocation.
    """

    rank: int | None = None
    ranks: int
    ranks_per_node: int
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the result comes back to this process."""
        return self.rank in (None, 0)

    @property
    def own(self) -> Iterator[tuple[int, int]]:
        """Number and place in the node of each rank that this process starts."""
        if self.rank is not None:
            yield self.rank, int(self.environment["LOCAL_RANK"])
        else:
            yield from ((rank, rank) for rank in range(self.ranks))


def allocated(ranks: int | None) -> Place | None:
    """Return the rank that the launcher's variables describe; None for a process that no launcher
    started, or alone.
    """
    launched = launched_rank(os.environ)
    if launched is None or (launched.world_size == 1 and launched.launcher != "torchrun"):
        return None  # such as one command under srun, which starts this machine's ranks itself
    if ranks not in (None, launched.world_size):
        raise bad_value("--ranks", ranks, f"the allocation's {launched.world_size}, or no --ranks")
    return Place(
        rank=launched.rank,
        ranks=launched.world_size,
        ranks_per_node=launched.local_world_size,
        environment=launched.torch_environment,
    )


class Rank:
    """A rank that this process started: `python -P -m COMMAND`, its order on its input, its log in
    a folder.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        order: str,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.number = number
        self._log = folder / f"rank-{number}.log"
        with self._log.open("wb") as log:
            self._process = start_child(
                [sys.executable, "-P", "-m", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
        stdin = cast("IO[bytes]", self._process.stdin)
        with (
            suppress(BrokenPipeError),
            stdin,
        ):  # one that is killed before it can read is reported by its exit status
            stdin.write(order.encode())

    @property
    def status(self) -> int | None:
        """Its exit status, below 0 for a signal; None while it runs."""
        return self._process.poll()

    @property
    def log_tail(self) -> str:
        """The end of its output."""
        return tail(self._log)

    def end(self) -> None:
        """End it now, unless it has ended."""
        self._process.kill()
        self._process.wait()


def ending(status: int) -> str:
    """Return how a process ended."""
    return (
        f"was killed by {signal.Signals(-status).name}"
        if status < 0
        else f"ended with status {status}"
    )


def await_ranks(
    ranks: Sequence[Rank], *, what: str, limit_s: float, hint: str | None = None
) -> None:
    """Wait until all have ended well; raise `FrontrunnerError` with the log's end of one that
    failed by itself.
    """
    deadline_s = time.monotonic() + limit_s
    while waited := [rank for rank in ranks if rank.status != 0]:
        failed = {rank: status for rank in waited if (status := rank.status)}
        if failed:
            rank = max(failed, key=lambda rank: failed[rank] > 0)
            raise FrontrunnerError(f"{what} {rank.number} {ending(failed[rank])}:\n{rank.log_tail}")
        if time.monotonic() > deadline_s:
            raise FrontrunnerError(
                f"{what} {waited[0].number} was not done within {limit_s:.0f} s", hint=hint
            )
        time.sleep(POLL_S)
