"""Driver's side of the fork server: starts it, requests ranks, and receives reports of their ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.processes import driver_tags, rendezvous_prefix
from frontrunner.spaces.errors import FrontrunnerError

START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 60.0
"""How long a server that is ready may take to fork a probe's ranks; one that was stopped never does."""
CLOSE_TIMEOUT_S = 10.0
MAX_STARTS = 3
"""Servers in a row that may be killed before they are ready; one that exits by itself is not replaced."""


@dataclass(frozen=True)
class RankExited:
    """One rank's end: exit code, or minus the signal that killed it."""

    token: str
    rank: int
    status: int


@dataclass(frozen=True)
class RanksStarted:
    """Process ids of a probe's ranks, in rank order."""

    token: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class ServerLost:
    """The fork server ended, and every rank with it."""

    status: int


Report = RankExited | RanksStarted | ServerLost


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The ranks of a run that a server forks: `count` of `world_size`, from `first` on.

    Ranks of several nodes have their rendezvous in the folder `meeting`; None where this server forks them all.
    """

    world_size: int
    first: int
    count: int
    meeting: Path | None = None

    @classmethod
    def all_of(cls, world_size: int) -> Ranks:
        """Return every rank of a run on one machine."""
        return cls(world_size=world_size, first=0, count=world_size)


class ForkClient:
    """One fork server process. Used by one thread."""

    def __init__(self, log: Path, environment: Mapping[str, str], engines: Sequence[str] = ("torch",)) -> None:
        """Start the server, which imports the `engines` meanwhile; `log`, in the folder of runs, gets its output."""
        self._log_path = log
        self._environment = {**os.environ, **environment, **driver_tags(log.parent)}
        self._rendezvous = tempfile.mkdtemp(prefix=f"{rendezvous_prefix()}{os.getpid()}-")
        program = "frontrunner.evaluators.probe.fork_server"
        self._command = [sys.executable, "-P", "-m", program, self._rendezvous, *engines]
        self._starts = 0
        self._pending: dict[str, bytes] = {}  # requests that were not confirmed, by token
        self._sent_s: dict[str, float] = {}
        self._start_server()

    def _start_server(self) -> None:
        self._starts += 1
        with self._log_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
                bufsize=0,
                start_new_session=True,  # signals of the terminal are for the driver to handle
            )
        self._requests, self._reports = _pipe(self._process.stdin), _pipe(self._process.stdout)
        self._started_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reports, selectors.EVENT_READ)
        self._unread = b""
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._process.pid

    def start(self, token: str, *, job: Path, ranks: Ranks, logs: Path, scratch: Path | None = None) -> None:
        """Request ranks of one probe; return at once, and the server forks them when it is ready.

        `scratch` is a folder that the server removes if this process ends before the ranks do.
        """
        request: dict[str, Any] = {"start": token, "job": str(job), "logs": str(logs)}
        request |= {"world_size": ranks.world_size, "ranks": [ranks.first, ranks.count]}
        if ranks.meeting is not None:
            request["meeting"] = str(ranks.meeting)
        if scratch is not None:
            request["scratch"] = str(scratch)
        self._pending[token] = json.dumps(request).encode() + b"\n"
        self._send(token)

    def _send(self, token: str) -> None:
        self._sent_s[token] = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the server has ended: the next reports say so
            os.write(self._requests.fileno(), self._pending[token])

    def reports(self, timeout_s: float) -> list[Report]:
        """Return what the server has reported, waiting up to `timeout_s` for a first report.

        Kill a server that does not reply; it is reported as lost by the next call. Restart one that was killed before
        it was ready, with the same requests. Raises `FrontrunnerError` if the server exited by itself before it was
        ready, was killed `MAX_STARTS` times, or is not ready in time.
        """
        found: list[Report] = []
        for message in self._messages(timeout_s):
            if "exited" in message:
                found.append(RankExited(message["exited"], message["rank"], message["status"]))
            elif "started" in message:
                del self._sent_s[message["started"]], self._pending[message["started"]]
                found.append(RanksStarted(message["started"], tuple(message["pids"])))
            elif "ready" in message:
                self._is_ready = True
                self._sent_s = dict.fromkeys(self._sent_s, time.monotonic())
            elif self._is_ready:
                found.append(ServerLost(message["lost"]))
            elif message["lost"] < 0 and self._starts < MAX_STARTS:
                self._restart()
            else:
                raise self._never_ready("ended before it was ready")
        now = time.monotonic()
        if not self._is_ready and now - self._started_s > START_TIMEOUT_S:
            raise self._never_ready(f"was not ready within {START_TIMEOUT_S:.0f} s")
        if self._is_ready and any(now - sent > REPLY_TIMEOUT_S for sent in self._sent_s.values()):
            self._process.kill()
        return found

    def _restart(self) -> None:
        """Replace a server that was killed while it warmed up: it has forked nothing, so nothing is lost."""
        self._close_pipes()
        Path(self._rendezvous).mkdir(exist_ok=True)
        self._start_server()
        for token in self._pending:
            self._send(token)

    def _messages(self, timeout_s: float) -> list[dict[str, Any]]:
        if not self._selector.select(timeout_s):
            return []
        data = os.read(self._reports.fileno(), 1 << 16)
        if not data:
            return [{"lost": self._process.wait()}]
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _never_ready(self, what: str) -> FrontrunnerError:
        output = tail(self._log_path, 1) or "no output"
        return FrontrunnerError(f"the fork server {what}: {output}", hint=f"see {self._log_path}")

    def close(self) -> None:
        """Close the server's input, on which it ends and its ranks with it; kill it if it does not."""
        self._requests.close()
        try:
            self._process.wait(timeout=CLOSE_TIMEOUT_S if self._is_ready else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()
        shutil.rmtree(self._rendezvous, ignore_errors=True)  # the server has done so, unless it was killed

    def _close_pipes(self) -> None:
        self._selector.close()
        self._requests.close()
        self._reports.close()


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    if end is None:
        raise ValueError("the fork server was started without pipes")
    return end
