"""Fork server: a process that forks the ranks of each probe, or the supervisor of its command, and
the client that its starter uses.

A server that forks ranks has imported torch beforehand. It is single-threaded, holds no process
group and never touches an accelerator, so that forking it is safe. Messages to it are a
`ForkRequest` as JSON. Messages from it are JSON as well:

    {"ready": pid}
    {"started": token, "pids": [...]}
    {"exited": token, "number": of the rank or the command's node, "status": s, "left": [pids]}

`status` is as in `subprocess`: the exit code, or minus the signal. `left` are killed processes of a
command that still exist. The output of each forked process goes to a log in the run folder, within
limits.

The server ends when its pipe closes, which also happens when its starter dies. It then kills the
ranks, and removes their scratch folders. If the server itself is killed, the kernel kills the
ranks. Supervisors notice that the server is gone, and end their commands.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from frontrunner.evaluators.nodes import child_processes as processes
from frontrunner.evaluators.nodes.control_group import ControlGroup
from frontrunner.evaluators.nodes.supervisor import (
    ORDER,
    Place,
    end_of_supervisor,
    of_node,
    supervise,
)
from frontrunner.evaluators.programs.command_log import Log
from frontrunner.evaluators.runs.files import tail
from frontrunner.evaluators.runs.heartbeat import BEAT_S, RunHeartbeat
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.spaces.errors import FrontrunnerError

PROGRAM = "frontrunner.evaluators.nodes.fork_server"
RAISED = 120
"""Status of a forked process that an exception has ended, and of one that could not be forked."""
START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 60.0
"""How long a server that is ready may take to fork a probe's ranks; one that is suspended never
does.
"""
CLOSE_TIMEOUT_S = 10.0
READ_BYTES = 2**16
END_POLL_S = 0.02
LAST_READS = 64
"""How many pieces of output are still read of a process that has ended. A pipe holds fewer, but
processes that it has left behind may go on writing.
"""


class ProcessKind(StrEnum):
    """What starts on each node: the ranks of a run folder's `job.json`, or the command of its
    `command.json`, once per node or once per rank.
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
    """What the server forks for an order: `count` ranks of the job in `folder`, from rank `first`
    on, or, with a `place`, one supervisor of the command in `folder`. Then `first` is the number of
    its node.

    The server removes the folder `scratch` when it ends; earlier its starter does.
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
    """The fork server has ended, and its ranks with it."""


Report = Exited | Started | ServerLost


class ForkClient:
    """One fork server process, from the side of its starter. Used by one thread, which has to
    last: the server ends with it while it imports.
    """

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
        self._sent_s: dict[str, float] = {}
        """When requests were sent that the server has not answered, by token."""
        self._folders: dict[str, Path] = {}
        """Run folders of those that include rank 0 or node 0, whose heartbeat is ours so far."""
        self._heartbeat = RunHeartbeat()

    def start(self, request: ForkRequest) -> None:
        """Ask the server to fork what the request says."""
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
                was_killed = self._process.wait() < 0
                if self.is_ready or was_killed:
                    return [*found, ServerLost()]
                raise self._never_ready("ended before it was ready") from None
            if "ready" in message:
                self.is_ready = True
                self._sent_s = dict.fromkeys(self._sent_s, time.monotonic())
            elif "started" in message:
                self._sent_s.pop(message["started"], None)
                self._folders.pop(message["started"], None)
                found.append(Started(message["started"], tuple(message["pids"])))
            else:
                exited = Exited(
                    token=message["exited"],
                    number=message["number"],
                    status=message["status"],
                    left=tuple(message["left"]),
                )
                found.append(exited)
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
        """Close the pipe, which makes the server end and its ranks with it; kill it if it does
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

    Output is dropped where the log cannot be written, for example on a full disk.
    """

    def __init__(self, log: Path) -> None:
        self._log: Log | None = None
        with contextlib.suppress(OSError):
            self._log = Log(log, has_times=False)
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def read(self) -> bytes | None:
        """Pass the next piece on to the log and return it: empty once nobody can write any more,
        None where there is none yet.
        """
        try:
            data = os.read(self.reader, READ_BYTES)
        except BlockingIOError:
            return None
        self._write(lambda log: log.write(data))
        return data

    def write_waiting(self) -> None:
        """Write the lines that the log's rate limit has held back for long enough."""
        self._write(Log.write_waiting)

    def close(self) -> None:
        """Write what is left of a process that has ended."""
        for _ in range(LAST_READS):
            if not self.read():
                break
        os.close(self.reader)
        self._write(Log.close)

    def _write(self, write: Callable[[Log], None]) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                write(self._log)


@dataclass(kw_only=True)
class Child:
    """A process that the server has forked; `has_output` until nobody can write to its output."""

    request: ForkRequest
    number: int
    output: Output
    has_output: bool = True


class ForkServer:
    """Serves the other end of the pipe, and owns the processes that it has forked."""

    def __init__(self, pipe: Connection) -> None:
        self.children: dict[int, Child] = {}
        """By process id."""
        self.groups: dict[str, ControlGroup | None] = {}
        """Control groups of ranks, by token."""
        self.scratch: set[str] = set()
        """Scratch folders of all orders. A starter that was killed may not have removed them."""
        self.pid = os.getpid()
        self._heartbeat = RunHeartbeat()
        self._pipe = pipe

    def serve(self) -> None:
        """Serve until the pipe closes, then kill every rank that is left."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        # A batch system sends signals to all processes of a job: what they mean is for the starter.
        for number in processes.ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # A handler must exist for the wake-up byte to be written.
        signal.signal(signal.SIGCHLD, lambda *_: None)
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
        self._end_ranks()

    def _end_ranks(self) -> None:
        ranks = {pid: one for pid, one in self.children.items() if one.request.place is None}
        for pid in ranks:
            processes.kill_rank(pid)
        for token in list(self.groups):
            self._remove_group(token)
        end_s = time.monotonic() + processes.KILL_GRACE_S
        while self.scratch and ranks and time.monotonic() < end_s:  # they may still write there
            for pid in list(ranks):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del ranks[pid]
            time.sleep(END_POLL_S)
        for folder in self.scratch:
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_and_pass_on(self, wake_read: int) -> None:
        """Wait for a message or the end of a child, and pass on what children print."""
        outputs = [child.output.reader for child in self.children.values() if child.has_output]
        timeout_s = BEAT_S if self.children else None
        ready = wait([self._pipe, wake_read, *outputs], timeout_s)
        if wake_read in ready:
            os.read(wake_read, 4096)
        for child in self.children.values():
            child.output.write_waiting()
            if child.output.reader in ready:
                child.has_output = child.output.read() != b""

    def _beat(self) -> None:
        running = (child.request for child in self.children.values())
        self._heartbeat.beat({Path(one.folder) for one in running if one.first == 0})

    def _start(self, request: ForkRequest) -> None:
        if request.place is None:  # a supervisor makes one for its command
            self.groups[request.token] = ControlGroup.create(request.token)
        if request.scratch is not None:
            self.scratch.add(request.scratch)
        pids, unforked = [], []
        for number in request.numbers:
            try:
                pids.append(self._fork(request, number))
            except OSError as error:  # the system's limit of processes or open files
                sys.stderr.write(f"{request.folder}: number {number} was not forked: {error}\n")
                sys.stderr.flush()
                pids.append(0)
                unforked.append(number)
        self._report({"started": request.token, "pids": pids})
        if len(unforked) == request.count:
            self._remove_group(request.token)
        for number in unforked:
            self._report_exit(request, number, RAISED)

    def _fork(self, request: ForkRequest, number: int) -> int:
        output = Output(_log_of(request, number))
        try:
            pid = os.fork()
        except OSError:
            os.close(output.writer)
            output.close()
            raise
        if pid == 0:
            self._become(request, number, output)
        os.close(output.writer)
        self.children[pid] = Child(request=request, number=number, output=output)
        return pid

    def _reap(self) -> None:
        while self.children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            # Before it is reaped: until then its id is not reused.
            processes.kill_group(ended.si_pid)
            pid, raw_status = os.waitpid(ended.si_pid, 0)
            child = self.children.pop(pid, None)
            if child is None:  # what an engine has started by itself
                continue
            child.output.close()
            request, status = child.request, os.waitstatus_to_exitcode(raw_status)
            if all(one.request is not request for one in self.children.values()):
                self._remove_group(request.token)
            if request.place is None:
                self._report_exit(request, child.number, status)
            else:
                found = end_of_supervisor(pid, status, Path(request.folder), child.number)
                self._report_exit(request, child.number, *found)

    def _remove_group(self, token: str) -> None:
        """Kill what the ranks of an order have left behind, and remove their control group."""
        if (group := self.groups.pop(token, None)) is not None:
            group.remove()

    def _report_exit(
        self, request: ForkRequest, number: int, status: int, left: Sequence[int] = ()
    ) -> None:
        self._report(
            {"exited": request.token, "number": number, "status": status, "left": list(left)}
        )

    def _report(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # whoever started this server is gone
            self._pipe.send_bytes(json.dumps(message).encode())

    def _become(self, request: ForkRequest, number: int, output: Output) -> NoReturn:
        """Be a rank, or a supervisor, in the process that was just forked."""
        status = RAISED
        try:
            os.setsid()  # a process group of its own, with which whatever it starts is killed
            signal.set_wakeup_fd(-1)
            for ignored in (signal.SIGCHLD, *processes.ENDING_SIGNALS):
                signal.signal(ignored, signal.SIG_DFL)
            given = os.open(_input_of(request), os.O_RDONLY)
            for target, source in ((0, given), (1, output.writer), (2, output.writer)):
                os.dup2(source, target)
            os.close(given)
            os.close(output.writer)
            for one in (output, *(child.output for child in self.children.values())):
                os.close(one.reader)
            self._pipe.close()
            self._run(request, number)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _run(self, request: ForkRequest, number: int) -> None:
        if request.place is not None:
            processes.name_process("supervisor")
            supervise(Path(request.folder), Place.of(request.place), starter=self.pid)
            return
        if (group := self.groups.get(request.token)) is not None:
            group.join()
        processes.die_with_parent(self.pid, signal.SIGKILL)
        processes.name_process(f"rank-{number}")
        _run_rank(request, number)


def _log_of(request: ForkRequest, number: int) -> Path:
    folder = Path(request.folder)
    if request.place is not None:
        return folder / of_node("supervisor.log", number)
    return RunFolder(folder).log(number)


def _input_of(request: ForkRequest) -> Path:
    """Return the file that is a process's stdin: what it has to do. So its open files show which
    run it belongs to.
    """
    folder = Path(request.folder)
    return folder / ORDER if request.place is not None else RunFolder(folder).job


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
