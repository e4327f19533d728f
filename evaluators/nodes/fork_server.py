"""Fork server: a process that forks the ranks of each probe, or the supervisor of its command, and
the side of whoever started it.

For ranks it has imported torch once. It is single-threaded, holds no process group and never
touches an accelerator, so that forking it is safe. Messages to it are a `ForkRequest` as JSON.
Messages from it are JSON as well:

    {"ready": pid}
    {"started": token, "pids": [...]}
    {"exited": token, "number": of the rank or the command's node, "status": s, "left": [pids]}

`status` is as in `subprocess`: the exit code, or minus the signal. `left` are processes of a
command that were killed and have not ended. The output of each forked process goes to a log in the
run folder, within limits.

The server ends when its pipe closes, as whoever started it ends. It kills the ranks, which also die
with it, and removes their scratch folders. Supervisors notice its end, and end their commands.
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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from frontrunner.evaluators.nodes import child_processes as processes
from frontrunner.evaluators.nodes.control_group import ControlGroup
from frontrunner.evaluators.nodes.supervisor import Place, end_of_supervisor, of_node, supervise
from frontrunner.evaluators.programs.command_log import Log
from frontrunner.evaluators.runs.files import tail
from frontrunner.evaluators.runs.heartbeat import BEAT_S, RunHeartbeat
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.spaces.errors import FrontrunnerError

PROGRAM = "frontrunner.evaluators.nodes.fork_server"
START_FAILED = 120
START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 60.0
"""How long a server that is ready may take to fork a probe's ranks; one that was stopped never
does.
"""
CLOSE_TIMEOUT_S = 10.0
READ_BYTES = 2**16
LAST_READS = 64
"""How many pieces of output are still read of a process that has ended: all that a pipe holds."""


class ProcessKind(StrEnum):
    """What starts on each node: the ranks of a run folder's `job.json`, or the command of its
    `command.json`, by default once per node.
    """

    RANKS = "ranks"
    COMMAND = "command"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a fork server has before it forks: variables in its environment, and, if it is to fork
    ranks, the engines that it imports for them.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    engines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """What the server forks for an order: `count` ranks of the job in `folder` from rank `first`
    on, or, with a `place`, the supervisor of the command in `folder` on node `first`.

    The server removes the folder `scratch` if it has to end before the ranks do.
    """

    token: str
    folder: str
    world_size: int = 1
    first: int = 0
    count: int = 1
    scratch: str | None = None
    place: dict[str, Any] | None = None

    @classmethod
    def of_command(cls, token: str, folder: Path, place: Place) -> ForkRequest:
        """Return the request for a node's part of a command."""
        return cls(token=token, folder=str(folder), first=place.node, place=asdict(place))

    @property
    def numbers(self) -> range:
        """Return the ranks, or the command's node."""
        return range(self.first, self.first + self.count)


class Exited(NamedTuple):
    """The end of a rank, or of a command on its node; see the server's message."""

    token: str
    number: int
    status: int
    left: tuple[int, ...] = ()


class Started(NamedTuple):
    """Process ids of what was forked, in the order of its numbers."""

    token: str
    pids: tuple[int, ...]


class ServerLost(NamedTuple):
    """The fork server was killed, and every rank with it."""


Report = Exited | Started | ServerLost


class ForkClient:
    """One fork server process, from the side of whoever started it. Used by one thread."""

    def __init__(self, log: Path, settings: ServerSettings) -> None:
        self._log = log
        self._pipe, theirs = Pipe()
        with theirs, log.open("ab") as output:
            self._process = processes.start_child(
                [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno()), *settings.engines],
                parent_death=signal.SIGKILL,  # while it imports and reads no messages
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **settings.environment, **processes.driver_tags(log.parent)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # signals of the terminal are for the driver to handle
            )
        self.is_ready = False
        self._started_s = time.monotonic()
        self._sent_s: dict[str, float] = {}  # requests that were not confirmed, by token
        self._folders: dict[str, Path] = {}  # of those, where the first number is among them
        self._heartbeat = RunHeartbeat()

    def start(self, request: ForkRequest) -> None:
        """Request processes."""
        self._sent_s[request.token] = time.monotonic()
        if request.first == 0:
            folder = self._folders[request.token] = Path(request.folder)
            RunHeartbeat().beat([folder])
        with contextlib.suppress(OSError):  # the server has ended: the next reports say so
            self._pipe.send_bytes(json.dumps(asdict(request)).encode())

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
                numbers = message["number"], message["status"]
                found.append(Exited(message["exited"], *numbers, tuple(message["left"])))
            elif "started" in message:
                del self._sent_s[message["started"]]
                self._folders.pop(message["started"], None)
                found.append(Started(message["started"], tuple(message["pids"])))
            elif "ready" in message:
                self.is_ready = True
                self._sent_s = dict.fromkeys(self._sent_s, time.monotonic())
            elif self.is_ready or message["lost"] < 0:
                return [*found, ServerLost()]
            else:
                raise self._never_ready("ended before it was ready")
        now = time.monotonic()
        if not self.is_ready and now - self._started_s > START_TIMEOUT_S:
            raise self._never_ready(f"was not ready within {START_TIMEOUT_S:.0f} s")
        if self.is_ready and any(now - sent > REPLY_TIMEOUT_S for sent in self._sent_s.values()):
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
            self._process.wait(timeout=CLOSE_TIMEOUT_S if self.is_ready else 0)
        self._process.kill()
        self._process.wait()
        ControlGroup.remove_those_of(self._process.pid)  # of a server that was killed


class Output:
    """What a forked process and its own children print, on its way to a log within limits.

    Where the log cannot be written, as on a full disk, it is dropped.
    """

    def __init__(self, log: Path) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._log: Log | None = None
        with contextlib.suppress(OSError):
            self._log = Log(log, has_times=False)

    def read(self) -> bytes | None:
        """Pass the next piece on to the log and return it: empty once nobody can write any more,
        None where there is none yet.
        """
        try:
            data = os.read(self.reader, READ_BYTES)
        except BlockingIOError:
            return None
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.write(data)
        return data

    def write_waiting(self) -> None:
        """Write the lines that the log's rate limit has held back for long enough."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.write_waiting()

    def close(self) -> None:
        """Write what is left of a process that has ended."""
        for _ in range(LAST_READS):
            if not self.read():
                break
        os.close(self.reader)
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()


@dataclass(kw_only=True)
class Child:
    """A process that the server has forked; `is_read` until nobody can write to its output."""

    request: ForkRequest
    number: int
    output: Output
    is_read: bool = True


class ForkServer:
    """Server of whoever is at the other end of the pipe, and owner of what it has forked."""

    def __init__(self, pipe: Connection) -> None:
        self.children: dict[int, Child] = {}  # by process id
        self.scratch: dict[str, str] = {}  # by token, as the next
        self.groups: dict[str, ControlGroup | None] = {}
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
            self._beat()
            self._wait_and_pass_on(wake_read)
            while is_open and self._pipe.poll():
                try:
                    self._start(ForkRequest(**json.loads(self._pipe.recv_bytes())))
                except (EOFError, ConnectionResetError):
                    is_open = False
            self._reap()
        ranks = {pid: one for pid, one in self.children.items() if one.request.place is None}
        for pid in ranks:
            processes.kill_rank(pid)
        for token in list(self.groups):
            self._remove_group(token)
        for pid, child in ranks.items():
            if child.request.token in self.scratch:  # which they may still write to
                os.waitpid(pid, 0)
        for folder in self.scratch.values():
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_and_pass_on(self, wake_read: int) -> None:
        """Wait for a message or the end of a child, and pass on what children print."""
        outputs = [child.output.reader for child in self.children.values() if child.is_read]
        timeout_s = BEAT_S if self.children else None
        ready = wait([self._pipe, wake_read, *outputs], timeout_s)
        if wake_read in ready:
            os.read(wake_read, 4096)
        for child in self.children.values():
            child.output.write_waiting()
            if child.output.reader in ready:
                child.is_read = child.output.read() != b""

    def _beat(self) -> None:
        running = (child.request for child in self.children.values())
        self._heartbeat.beat({Path(one.folder) for one in running if one.first == 0})

    def _start(self, request: ForkRequest) -> None:
        if request.scratch is not None:
            self.scratch[request.token] = request.scratch
        if request.place is None:  # a supervisor makes one for its command
            self.groups[request.token] = ControlGroup.create(request.token)
        pids = []
        for number in request.numbers:
            output = Output(_log_of(request, number))
            pid = os.fork()
            if pid == 0:
                self._become(request, number, output)
            os.close(output.writer)
            self.children[pid] = Child(request=request, number=number, output=output)
            pids.append(pid)
        self._report({"started": request.token, "pids": pids})

    def _reap(self) -> None:
        while self.children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            processes.kill_group(
                ended.si_pid
            )  # before it is reaped: until then its id is not reused
            pid, raw_status = os.waitpid(ended.si_pid, 0)
            child, left = self.children.pop(pid), list[int]()
            child.output.close()
            status, request = os.waitstatus_to_exitcode(raw_status), child.request
            if all(one.request is not request for one in self.children.values()):
                self._remove_group(request.token)
            if request.place is not None:
                status, left = end_of_supervisor(pid, status, Path(request.folder), child.number)
            self._report(
                {"exited": request.token, "number": child.number, "status": status, "left": left}
            )

    def _remove_group(self, token: str) -> None:
        """End what the ranks of an order have left behind."""
        if (group := self.groups.pop(token, None)) is not None:
            group.kill()
            group.remove()

    def _report(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # whoever started this server is gone
            self._pipe.send_bytes(json.dumps(message).encode())

    def _become(self, request: ForkRequest, number: int, output: Output) -> NoReturn:
        """Be a rank, or a supervisor, in the process that was just forked."""
        status = START_FAILED
        try:
            os.setsid()  # a group of its own, so that whatever it starts can be killed with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, nothing), (1, output.writer), (2, output.writer)):
                os.dup2(source, target)
            os.close(output.writer)
            for one in (output, *(child.output for child in self.children.values())):
                os.close(one.reader)
            self._pipe.close()
            self._program_of(request, number)()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _program_of(self, request: ForkRequest, number: int) -> Callable[[], None]:
        if request.place is not None:
            place = Place.of(request.place)
            return lambda: supervise(Path(request.folder), place, starter=self.pid)
        if (group := self.groups[request.token]) is not None:
            group.join()
        processes.die_with_parent(self.pid, signal.SIGKILL)
        return lambda: _run_rank(request, number)


def _log_of(request: ForkRequest, number: int) -> Path:
    folder = Path(request.folder)
    if request.place is not None:
        return folder / of_node("supervisor.log", number)
    return RunFolder(folder).log(number)


def _run_rank(request: ForkRequest, rank: int) -> None:
    from frontrunner.evaluators.trainer.entry import run_rank
    from frontrunner.evaluators.trainer.job import Job
    from frontrunner.evaluators.trainer.rendezvous import rendezvous_url, set_local_rank_env

    folder, local_rank = Path(request.folder), rank - request.first
    job = Job.from_json(RunFolder(folder).job.read_text(encoding="utf-8"))
    set_local_rank_env(local_rank, request.count)
    run_rank(
        job,
        rank=rank,
        world_size=request.world_size,
        init_method=rendezvous_url(folder),
        local_rank=local_rank,
    )


def main() -> None:
    """Import the engines, then serve whoever started this process."""
    engines = sys.argv[2:]
    if engines:
        from frontrunner.evaluators.trainer.entry import preload

        preload(engines)
    processes.outlive_parent()  # the end of the pipe is noticed from here on
    ForkServer(Connection(int(sys.argv[1]))).serve()
    os._exit(0)  # an orderly shutdown of torch takes a second, and nothing is left to do


if __name__ == "__main__":
    main()
