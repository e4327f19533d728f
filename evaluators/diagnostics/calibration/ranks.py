"""Starting the measuring ranks: all of them on this machine, or this process's own in an allocation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.cluster.environment import launched_rank
from frontrunner.evaluators.probe.files import read_json, tail
from frontrunner.evaluators.probe.processes import start_child
from frontrunner.spaces.errors import FrontrunnerError, bad_value

CHILD = "frontrunner.evaluators.trainer.calibration"
START_S = 180.0
"""For importing torch and meeting; more than minutes only where something is wrong."""
LONGEST = 3.0
"""Times the budget after which ranks are given up: each section may overrun by its last cell."""
POLL_S = 0.1

Seen = dict[str, Any]
"""What rank 0 writes: see `frontrunner.evaluators.trainer.calibration`."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of the ranks this process starts: all `ranks`, on this machine, or its own `rank` of an allocation."""

    rank: int | None
    ranks: int
    ranks_per_node: int
    environment: Mapping[str, str]

    @property
    def writes(self) -> bool:
        """Whether the result comes back to this process."""
        return self.rank in (None, 0)


def allocated(ranks: int | None) -> Place | None:
    """Return the rank that the launcher's variables describe; None for a process that no launcher started, or alone.

    Raises `InvalidInput` for an environment that is incomplete or contradicts `ranks`.
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


def this_machine(ranks: int) -> Place:
    """Return this many ranks, all started by this process."""
    return Place(rank=None, ranks=ranks, ranks_per_node=ranks, environment={})


def measure(where: Place, *, device: str, seconds: float) -> Seen | None:
    """Run the measuring ranks that this process starts; return their measurements, or None where another has them.

    Raises `FrontrunnerError` with the end of a rank's output if one fails or they take far too long. No rank is left
    running, however this ends.
    """
    with tempfile.TemporaryDirectory(prefix="frontrunner-") as name, ExitStack() as stack:
        folder = Path(name)
        out = folder / "measured.json"
        order = json.dumps({"device": device, "seconds": seconds, "out": str(out)})
        children = []
        for rank in range(where.ranks) if where.rank is None else [where.rank]:
            environment = where.environment or _own_environment(rank, where.ranks, folder)
            children.append(_start(rank, environment, order, folder))
            stack.callback(_end, children[-1])
        _await(children, folder, time.monotonic() + START_S + LONGEST * seconds)
        if not where.writes:
            return None
        seen = read_json(out)
        if not isinstance(seen, dict):
            raise FrontrunnerError(f"the ranks wrote no measurements:\n{tail(_log(folder, 0))}")
        return seen


def _own_environment(rank: int, ranks: int, folder: Path) -> dict[str, str]:
    """Return the environment on one machine: the ranks meet in a file, and gloo uses the loopback interface."""
    count = str(ranks)
    places = {"RANK": str(rank), "WORLD_SIZE": count, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": count}
    meeting = {"FRONTRUNNER_RENDEZVOUS": f"file://{folder / 'rendezvous'}", "GLOO_SOCKET_IFNAME": "lo"}
    return places | meeting | {"OMP_NUM_THREADS": "1"}


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _start(rank: int, environment: Mapping[str, str], order: str, folder: Path) -> subprocess.Popen[bytes]:
    with _log(folder, rank).open("wb") as log:
        process = start_child(
            [sys.executable, "-P", "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
    if process.stdin is not None:
        process.stdin.write(order.encode())
        process.stdin.close()
    return process


def _await(children: Sequence[subprocess.Popen[bytes]], folder: Path, deadline_s: float) -> None:
    """Wait until all have ended well."""
    while True:
        statuses = [child.poll() for child in children]
        failed = [number for number, status in enumerate(statuses) if status not in (None, 0)]
        if failed:
            raise _failure(children, failed, folder)
        if None not in statuses:
            return
        if time.monotonic() > deadline_s:
            raise FrontrunnerError("the ranks were not done in three times their budget", hint="give more --seconds")
        time.sleep(POLL_S)


def _failure(children: Sequence[subprocess.Popen[bytes]], failed: list[int], folder: Path) -> FrontrunnerError:
    """Return the error of the first rank that failed by itself, rather than one that lost its peers."""
    number = max(failed, key=lambda rank: children[rank].returncode > 0)
    log = next(iter(sorted(folder.glob("rank-*.log")))) if len(children) == 1 else _log(folder, number)
    status = children[number].returncode
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return FrontrunnerError(f"measuring {log.stem.replace('-', ' ')} {how}:\n{tail(log)}")


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
