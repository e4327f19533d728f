"""The driver's end of the fork server: starts it, asks it for ranks, and hears of their ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.marks import marks, meeting_prefix
from frontrunner.spaces.errors import FrontrunnerError

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
"""How long a server that is ready may take to fork a probe's ranks; one that was stopped never does."""
CLOSE_TIMEOUT_S = 10.0
MOST_STARTS = 3
"""Servers in a row that may be killed before they are ready; one that ends of its own accord is the last."""


@dataclass(frozen=True)
class RankExited:
    """One rank's end: exit code, or minus the signal that killed it."""

    token: str
    rank: int
    status: int


@dataclass(frozen=True)
class RanksStarted:
    """The process ids of a probe's ranks, in rank order."""

    token: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class ServerLost:
    """The fork server ended, and every rank with it."""

    status: int


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which ranks of a run a server forks: `count` from `first` on of `world_size`.

    Ranks of several nodes meet in the folder `meeting`; None where this server forks them all.
    """

    world_size: int
    first: int
    count: int
    meeting: Path | None = None

    @classmethod
    def all_of(cls, world_size: int) -> Ranks:
        """Every rank of a run on one machine."""
        return cls(world_size=world_size, first=0, count=world_size)


Report = RankExited | RanksStarted | ServerLost


class ForkClient:
    """One fork server process. Used by one thread."""

    def __init__(self, log: Path, environment: Mapping[str, str], engines: Sequence[str] = ("torch",)) -> None:
        """Start the server; it imports the `engines` while the caller goes on.

        Its own output goes to `log`, which lies in the campaign's folder of runs.
        """
        self._log_path = log
        self._environment = {**os.environ, **environment, **marks(log.parent)}
        self._engines = tuple(engines)
        self._rendezvous = tempfile.mkdtemp(prefix=f"{meeting_prefix()}{os.getpid()}-")
        self._starts = 0
        self._unanswered: dict[str, bytes] = {}
        self._asked_s: dict[str, float] = {}  # when each of them was sent
        self._start_server()

    def _start_server(self) -> None:
        self._starts += 1
        with self._log_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "frontrunner.evaluators.probe.fork_server",
                    self._rendezvous,
                    *self._engines,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
                bufsize=0,
                start_new_session=True,  # what a terminal sends to the driver is the driver's to judge
            )
        self._started_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout_fd, selectors.EVENT_READ)
        self._unread = b""
        self._is_ready = False

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def _stdout_fd(self) -> int:
        if self._process.stdout is None:
            raise FrontrunnerError("the fork server has no output")
        return self._process.stdout.fileno()

    def start(self, token: str, *, job: Path, ranks: Ranks, logs: Path, scratch: Path | None = None) -> None:
        """Ask for ranks of one probe; returns at once, and the server forks them when it is ready.

        `scratch` is a folder that the server removes if this process ends before the ranks do.
        """
        request: dict[str, Any] = {
            "start": token,
            "job": str(job),
            "world_size": ranks.world_size,
            "logs": str(logs),
        }
        if ranks.meeting is not None:
            request |= {"ranks": [ranks.first, ranks.count], "meeting": str(ranks.meeting)}
        if scratch is not None:
            request["scratch"] = str(scratch)
        self._unanswered[token] = json.dumps(request).encode() + b"\n"
        self._ask(token)

    def _ask(self, token: str) -> None:
        self._asked_s[token] = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the server has ended: the next reports say so
            os.write(self._stdin_fd, self._unanswered[token])

    @property
    def _stdin_fd(self) -> int:
        if self._process.stdin is None:
            raise FrontrunnerError("the fork server has no input")
        return self._process.stdin.fileno()

    def reports(self, timeout_s: float) -> list[Report]:
        """What the server has reported, waiting up to `timeout_s` for a first report.

        A server that does not answer is killed, and reported as lost the next time. One that was killed before it was
        ready is started again, and asked the same. Raises `FrontrunnerError` if the server ended of its own accord
        before it was ready, was killed `MOST_STARTS` times, or is not ready in time: then it never will be.
        """
        found: list[Report] = []
        for message in self._messages(timeout_s):
            if "exited" in message:
                found.append(RankExited(message["exited"], message["rank"], message["status"]))
            elif "started" in message:
                del self._asked_s[message["started"]], self._unanswered[message["started"]]
                found.append(RanksStarted(message["started"], tuple(message["pids"])))
            elif "ready" in message:
                self._is_ready = True
                self._asked_s = dict.fromkeys(self._asked_s, time.monotonic())
            elif self._is_ready:
                found.append(ServerLost(message["lost"]))
            elif message["lost"] < 0 and self._starts < MOST_STARTS:
                self._start_again()
            else:
                raise self._never_ready("ended before it was ready")
        if not self._is_ready and time.monotonic() - self._started_s > START_TIMEOUT_S:
            raise self._never_ready(f"was not ready within {START_TIMEOUT_S:.0f} s")
        if self._is_ready and any(time.monotonic() - asked > ANSWER_TIMEOUT_S for asked in self._asked_s.values()):
            self._process.kill()
        return found

    def _start_again(self) -> None:
        """Replace a server that was killed while it warmed up: it has forked nothing, so nothing is lost."""
        self._let_go()
        Path(self._rendezvous).mkdir(exist_ok=True)
        self._start_server()
        for token in self._unanswered:
            self._ask(token)

    def _messages(self, timeout_s: float) -> list[dict[str, Any]]:
        if not self._selector.select(timeout_s):
            return []
        data = os.read(self._stdout_fd, 1 << 16)
        if not data:
            return [{"lost": self._process.wait()}]
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _never_ready(self, what: str) -> FrontrunnerError:
        lines = tail(self._log_path, 1) or "no output"
        return FrontrunnerError(f"the fork server {what}: {lines}", hint=f"see {self._log_path}")

    def kill_rank(self, pid: int) -> None:
        """Kill one rank and whatever it has started; a rank that is gone already is no error."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the server's input, on which it ends and its ranks with it; kill it if it does not."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=CLOSE_TIMEOUT_S if self._is_ready else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()
        shutil.rmtree(self._rendezvous, ignore_errors=True)  # the server has done so, unless it was killed

    def _let_go(self) -> None:
        """Close what led to a server that has ended."""
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
