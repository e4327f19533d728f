"""Fork server: a process that has imported torch once and forks the ranks of each probe, and the
driver's side of it.

The server is single-threaded, holds no process group and never touches an accelerator, so that
forking it is safe. Its messages are JSON:

    in    {"start": token, "job": path, "world_size": n, "ranks": [first, count], "scratch": path or
    null} out   {"ready": pid}   {"started": token, "pids": [...]}   {"exited": token, "rank": r,
    "status": s}

`status` is as in `subprocess`: the exit code, or minus the signal. Ranks write their logs next to
the job. They die with the server, which kills them, removes their scratch folders and ends when its
pipe closes, as its driver ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from frontrunner.evaluators.nodes import child_processes as processes
from frontrunner.evaluators.runs.files import tail
from frontrunner.evaluators.runs.heartbeat import BEAT_S, RunHeartbeat
from frontrunner.spaces.errors import FrontrunnerError

PROGRAM = "frontrunner.evaluators.nodes.fork_server"
START_FAILED = 120
START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 60.0
"""How long a server that is ready may take to fork a probe's ranks; one that was stopped never
does.
"""
CLOSE_TIMEOUT_S = 10.0


class RankExited(NamedTuple):
    """One rank's end; `status` is as in the server's message."""

    token: str
    rank: int
    status: int


class RanksStarted(NamedTuple):
    """Process ids of a probe's ranks, in rank order."""

    token: str
    pids: tuple[int, ...]


class ServerLost(NamedTuple):
    """The fork server was killed, and every rank with it."""


Report = RankExited | RanksStarted | ServerLost


class ForkClient:
    """One fork server process, from the side of its driver. Used by one thread."""

    def __init__(
        self, log: Path, environment: Mapping[str, str], engines: Sequence[str] = ("torch",)
    ) -> None:
        self._log = log
        self._pipe, theirs = Pipe()
        with theirs, log.open("ab") as output:
            self._process = processes.start_child(
                [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno()), *engines],
                parent_death=signal.SIGKILL,  # while it imports and reads no messages
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment, **processes.driver_tags(log.parent)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # signals of the terminal are for the driver to handle
            )
        self._is_ready = False
        self._started_s = time.monotonic()
        self._sent_s: dict[str, float] = {}  # requests that were not confirmed, by token
        self._folders: dict[str, Path] = {}  # of those, where the first rank is among them
        self._heartbeat = RunHeartbeat()

    def start(
        self,
        token: str,
        *,
        job: Path,
        world_size: int,
        ranks: range | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Request ranks, by default all; the server removes `scratch` if this process ends before
        the ranks do.
        """
        ranks = range(world_size) if ranks is None else ranks
        request = {
            "start": token,
            "job": str(job),
            "world_size": world_size,
            "ranks": [ranks.start, len(ranks)],
        }
        request["scratch"] = None if scratch is None else str(scratch)
        self._sent_s[token] = time.monotonic()
        if ranks.start == 0:
            self._folders[token] = job.parent
            RunHeartbeat().beat([job.parent])
        with contextlib.suppress(OSError):  # the server has ended: the next reports say so
            self._pipe.send_bytes(json.dumps(request).encode())

    def reports(self, timeout_s: float) -> list[Report]:
        """Return what the server reports within `timeout_s`; raise `FrontrunnerError` if it does
        not get ready.
        """
        found: list[Report] = []
        self._heartbeat.beat(self._folders.values())  # the server imports, or is about to fork
        while self._pipe.poll(timeout_s):
            timeout_s = 0.0
            try:
                message = json.loads(self._pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                message = {"lost": self._process.wait()}
            if "exited" in message:
                found.append(RankExited(message["exited"], message["rank"], message["status"]))
            elif "started" in message:
                del self._sent_s[message["started"]]
                self._folders.pop(message["started"], None)
                found.append(RanksStarted(message["started"], tuple(message["pids"])))
            elif "ready" in message:
                self._is_ready = True
                self._sent_s = dict.fromkeys(self._sent_s, time.monotonic())
            elif self._is_ready or message["lost"] < 0:
                return [*found, ServerLost()]
            else:
                raise self._never_ready("ended before it was ready")
        now = time.monotonic()
        if not self._is_ready and now - self._started_s > START_TIMEOUT_S:
            raise self._never_ready(f"was not ready within {START_TIMEOUT_S:.0f} s")
        if self._is_ready and any(now - sent > REPLY_TIMEOUT_S for sent in self._sent_s.values()):
            self._process.kill()
        return found

    def _never_ready(self, what: str) -> FrontrunnerError:
        output = tail(self._log, 1) or "no output"
        return FrontrunnerError(f"the fork server {what}: {output}", hint=f"see {self._log}")

    def close(self) -> None:
        """Close the pipe, on which the server ends and its ranks with it; kill it if it does
        not.
        """
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=CLOSE_TIMEOUT_S if self._is_ready else 0)
        self._process.kill()
        self._process.wait()


class ForkServer:
    """Server of the driver at the other end of the pipe, and owner of the ranks that it forked."""

    def __init__(self, pipe: Connection) -> None:
        self.ranks: dict[int, tuple[str, int]] = {}
        self.scratch: dict[str, str] = {}
        self.folders: dict[str, Path] = {}
        self.pid = os.getpid()
        self._heartbeat = RunHeartbeat()
        self._pipe = pipe

    def serve(self) -> None:
        """Serve until the pipe closes, then kill every rank that is left."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(
            signal.SIGCHLD, lambda *_: None
        )  # a handler must exist for the wake-up byte to be written
        signal.set_wakeup_fd(wake_write)
        self._report({"ready": self.pid})
        is_open = True
        while is_open:
            running = {token for token, _ in self.ranks.values()}
            self._heartbeat.beat(self.folders[token] for token in running & self.folders.keys())
            if wake_read in wait([self._pipe, wake_read], BEAT_S if running else None):
                os.read(wake_read, 4096)
            while is_open and self._pipe.poll():
                try:
                    self._start(json.loads(self._pipe.recv_bytes()))
                except (EOFError, ConnectionResetError):
                    is_open = False
            self._reap()
        for pid in self.ranks:
            processes.kill_rank(pid)
        for pid, (token, _) in self.ranks.items():
            if token in self.scratch:  # which they may still write to
                os.waitpid(pid, 0)
        for folder in self.scratch.values():
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, request: dict[str, Any]) -> None:
        token, (first, count) = request["start"], request["ranks"]
        if request["scratch"] is not None:
            self.scratch[token] = request["scratch"]
        if first == 0:
            self.folders[token] = Path(request["job"]).parent
        pids = []
        for rank in range(first, first + count):
            pid = os.fork()
            if pid == 0:
                self._become_rank(request, rank)
            self.ranks[pid] = (token, rank)
            pids.append(pid)
        self._report({"started": token, "pids": pids})

    def _reap(self) -> None:
        while self.ranks:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            processes.kill_group(
                ended.si_pid
            )  # before it is reaped: until then its id is not reused
            pid, status = os.waitpid(ended.si_pid, 0)
            token, rank = self.ranks.pop(pid)
            self._report(
                {"exited": token, "rank": rank, "status": os.waitstatus_to_exitcode(status)}
            )

    def _report(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the driver is gone
            self._pipe.send_bytes(json.dumps(message).encode())

    def _become_rank(self, request: dict[str, Any], rank: int) -> NoReturn:
        status = START_FAILED
        try:
            processes.die_with_parent(self.pid, signal.SIGKILL)
            os.setsid()  # a group of its own, so that whatever it starts can be killed with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log_path = Path(request["job"]).with_name(f"rank-{rank}.log")
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
                os.dup2(source, target)
            self._pipe.close()
            _run(request, rank)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _run(request: dict[str, Any], rank: int) -> None:
    from frontrunner.evaluators.trainer.entry import run_rank
    from frontrunner.evaluators.trainer.job import Job
    from frontrunner.evaluators.trainer.rendezvous import rendezvous_url, set_local_rank_env

    path, (first, count) = Path(request["job"]), request["ranks"]
    job = Job.from_json(path.read_text(encoding="utf-8"))
    set_local_rank_env(rank - first, count)
    url, size = rendezvous_url(path.parent), request["world_size"]
    run_rank(job, rank=rank, world_size=size, init_method=url, local_rank=rank - first)


def main() -> None:
    """Import the engines, then serve the driver that started this process."""
    from frontrunner.evaluators.trainer.entry import preload

    preload(sys.argv[2:])
    processes.outlive_parent()  # the end of the pipe is noticed from here on
    ForkServer(Connection(int(sys.argv[1]))).serve()
    os._exit(0)  # an orderly shutdown of torch takes a second, and nothing is left to do


if __name__ == "__main__":
    main()
