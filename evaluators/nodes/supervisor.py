"""Supervisor of one trainer's command on one node: a small process that a fork server forks.

It starts the command, once or once per rank, and writes down its output with arrival times. It ends
the command when it gets a SIGTERM, and when its starter is gone. When the command has ended, it
kills every process that is left: it adopts orphans, since launchers put ranks into sessions of
their own, which no signal to a process group reaches. If the supervisor is killed, the kernel kills
the command.

Files in the run folder; on further nodes the last three carry the node's number
(`command-1.log`):

    command.json     in: {"arguments": [...], "passed": [names], "environment": {...},
                     "folder": path, "devices": of the whole command, "devices_per_node": n,
                     "starts_ranks": whether once per rank, "stop_file": path of a replay, null of
                     a probe; once that file is not empty the command gets a SIGTERM}
    command.log      out: the lines that it printed to stdout and stderr, each after the second of
                     its arrival, within limits (`command_log.py`)
    ended.json       out: {"status": exit code or minus the signal, "seconds": s,
                     "peak_resident_bytes": of one process, "left": the ids of processes that were
                     killed and still exist}
    supervisor.log   out: what went wrong in the supervisor itself

Its `Place` fills the fields of `PLACE` in the arguments and variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from frontrunner.evaluators.nodes.child_processes import (
    PEER_GRACE_S,
    TAGS,
    adopt_orphans,
    kill_descendants,
    kill_tagged,
    start_child,
)
from frontrunner.evaluators.nodes.control_group import ControlGroup
from frontrunner.evaluators.programs.command_log import Log
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.runs.files import write_json

LOG = "command.log"
ORDER = "command.json"
ENDED = "ended.json"
RUN_TAG = "FRONTRUNNER_RUN"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Without it a Python program's lines arrive in blocks, long after the steps that they report."""

POLL_S = 0.05
LOOK_S = 1.0
"""Between two looks at the stop file, which may be on a shared file system."""
GRACE_S = 5.0
"""What a command may take to end on SIGTERM: launchers pass it on to ranks on other nodes."""
DRAIN_S = 1.0
"""How long output is still read at most after the command has ended, from processes that it left
behind.
"""
UNENDED_S = 1.0
"""How long a killed process of the command is waited for while its output is still read."""
KILL_S = 10.0
"""How long it may take until everything that was left has ended."""
MARGIN_S = 4.0
END_S = GRACE_S + UNENDED_S + KILL_S + MARGIN_S
"""How long a supervisor may take to end its command."""
LEFT_S = 1.0
"""How long processes may take to end that a killed supervisor has left."""
NOT_STARTED = 127

PLACE = ("node_rank", "node_list", "master_address", "master_port")
"""Fields of arguments and variables that are known only where the command runs: see
`Place.values`.
"""
RANK_PLACE = ("rank", "local_rank", "local_world_size")
"""Such fields of a command that is started once per rank."""
_FIELD = re.compile(rf"%\{{({'|'.join((*PLACE, *RANK_PLACE))})\}}")


def place_field(name: str) -> str:
    """Return the text of an argument or a variable that becomes a field of `PLACE` or
    `RANK_PLACE`.
    """
    return f"%{{{name}}}"


def of_node(name: str, node: int) -> str:
    """Return the name of a node's file: that of node 0 is the plain one."""
    stem, dot, ending = name.partition(".")
    return f"{stem}-{node}{dot}{ending}" if node else name


def run_tag(folder: Path, node: int) -> str:
    """Return the value of `RUN_TAG` for the processes of a node: two may be on the same machine."""
    return f"{folder}:{node}" if node else str(folder)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node among those of a command, by its number, all of them by name, and where node 0 can be
    reached.

    The command gets `variables` unless it sets them itself.
    """

    node: int
    nodes: tuple[str, ...]
    address: str
    port: int
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Place:
        """Return the place of a table that `asdict` has made, after it went through JSON."""
        return cls(**{**table, "nodes": tuple(table["nodes"])})

    def values(self) -> dict[str, str]:
        """Return the fields of `PLACE`."""
        values = (self.node, ",".join(self.nodes), self.address, self.port)
        return dict(zip(PLACE, map(str, values), strict=True))


def reserved_port() -> socket.socket:
    """Return a socket that keeps a free port from others until it is closed; the command's own rank
    0 may listen on it.

    On Linux a port that is bound and not listened on is given to nobody who wants any, and to those
    who name it and set `SO_REUSEADDR`, as torch's stores do.
    """
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("", 0))
    return found


def end_of_supervisor(pid: int, status: int, folder: Path, node: int) -> tuple[int, list[int]]:
    """Return the status of a command whose supervisor has ended with `status`, and the ids of its
    processes that were killed and still exist. If the supervisor was killed, kill them first.
    """
    left: list[int] = []
    if status != 0:
        ControlGroup.remove_those_of(pid)
        left = [one.pid for one in kill_tagged(RUN_TAG, run_tag(folder, node), wait_s=LEFT_S)]
    ending = read_end(folder, node)
    return (-9, left) if ending is None else (ending["status"], [*left, *ending["left"]])


def read_end(run_folder: Path, node: int = 0) -> dict[str, Any] | None:
    """Return how the command ended on a node; None if its supervisor was killed before it could
    write that.
    """
    try:
        found: dict[str, Any] = json.loads((run_folder / of_node(ENDED, node)).read_bytes())
    except (OSError, ValueError):
        return None
    return found


def starts(
    order: Mapping[str, Any], folder: Path, place: Place
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield arguments and environment of each process that this node starts."""
    passed = CommandSettings(pass_environment=tuple(order["passed"])).passed(os.environ)
    tags = {name: os.environ[name] for name in TAGS if name in os.environ} | {
        RUN_TAG: run_tag(folder, place.node)
    }
    first, count = place.node * order["devices_per_node"], 1
    if order["starts_ranks"]:
        count = min(order["devices_per_node"], order["devices"] - first)
    for local_rank in range(count):
        ranks = (first + local_rank, local_rank, count)
        values = place.values() | dict(zip(RANK_PLACE, map(str, ranks), strict=True))

        def filled(text: str, values: Mapping[str, str] = values) -> str:
            return _FIELD.sub(lambda match: values[match[1]], text)

        own = {name: filled(text) for name, text in order["environment"].items()}
        yield (
            [filled(text) for text in order["arguments"]],
            UNBUFFERED | passed | dict(place.variables) | own | tags,
        )


class EndRequest:
    """Whether the command should end: a SIGTERM has come, or the process that started the
    supervisor has ended.
    """

    def __init__(self, starter: int) -> None:
        self._starter = starter
        self._has_come = False
        # SIGINT and SIGHUP are for the starter to handle. The command does not inherit a handler,
        # as it would inherit that they are ignored.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self._has_come = True

    @property
    def is_there(self) -> bool:
        """Return whether the command should end."""
        return self._has_come or os.getppid() != self._starter


class CommandRun:
    """The processes of a command on one node, in a control group where there is one.

    Their output is read all the time, also while they are ended: a process that prints more than a
    pipe holds would not end otherwise.
    """

    def __init__(self, order: Mapping[str, Any], log: Log, group: ControlGroup | None) -> None:
        self._order, self._log, self._group = order, log, group
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: dict[IO[bytes], str] = {}
        """Names of the streams that are still open."""
        self._stop = StopFile(order["stop_file"])
        self._failed_s: float | None = None
        self._ended_s: float | None = None
        self._end_began_s: float | None = None
        self.status = 0
        """The first status that is not 0 of any process."""

    def start(self, folder: Path, place: Place) -> None:
        """Start the processes; the status is `NOT_STARTED` if one of them cannot be started."""
        for arguments, environment in starts(self._order, folder, place):
            try:
                process = start_child(
                    arguments,
                    parent_death=signal.SIGKILL,
                    group=self._group,
                    cwd=self._order["folder"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                self._log.write(f"{error.filename or arguments[0]}: {error.strerror}\n".encode())
                self.status = NOT_STARTED
                self._end()
                return
            of_rank = (
                f" of local rank {len(self._processes)}" if self._order["starts_ranks"] else ""
            )
            for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                assert stream is not None  # noqa: S101 - both are pipes
                self._streams[stream] = f"{name}{of_rank}"
            self._processes.append(process)

    def follow(self, request: EndRequest) -> None:
        """Follow the processes until they have ended, or until they have had the time to."""
        while not self._is_over(has_output=self._read()):
            if self._end_began_s is not None or request.is_there or self._waits_for_failed:
                self._end()
            self._stop.pass_on(self._running)
        for stream in self._streams:
            stream.close()

    @property
    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]

    @property
    def _waits_for_failed(self) -> bool:
        """Whether one process has failed, so that the other ranks wait for it in vain."""
        if self._stop.is_there or self._failed_s is None:  # ranks end one by one on a SIGTERM
            return False
        return self._log.seconds - self._failed_s > PEER_GRACE_S

    def _is_over(self, *, has_output: bool) -> bool:
        """Return whether all have ended and their output was read, or they cannot be ended."""
        now_s = self._log.seconds
        running = self._running
        ended = [process.returncode for process in self._processes if process not in running]
        self.status = self.status or next(filter(None, ended), 0)
        if self.status and self._failed_s is None:
            self._failed_s = now_s
        if not running:
            self._ended_s = now_s if self._ended_s is None else self._ended_s
            return not (has_output and self._streams) or now_s - self._ended_s > DRAIN_S
        return self._end_began_s is not None and now_s - self._end_began_s > GRACE_S + UNENDED_S

    def _read(self) -> bool:
        """Pass output on to the log for a moment; return whether there was any."""
        ready, _, _ = select.select(self._streams, [], [], POLL_S)
        for stream in ready:
            data = os.read(stream.fileno(), 1 << 16)
            self._log.write(data, self._streams[stream])
            if not data:
                del self._streams[stream]
                stream.close()
        self._log.write_waiting()
        return bool(ready)

    def _end(self) -> None:
        """Have the processes end: by a SIGTERM, which launchers pass on, and after `GRACE_S` by a
        SIGKILL. To be called again until they have ended.
        """
        running = self._running
        if self._end_began_s is None:
            self._end_began_s = self._log.seconds
            _signal(running, signal.SIGTERM)
        elif self._log.seconds - self._end_began_s > GRACE_S:
            _signal(running, signal.SIGKILL)


class StopFile:
    """The request that a command stores a checkpoint and ends; without a path none ever comes."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._looked_s = time.monotonic()
        self.is_there = False

    def pass_on(self, processes: Collection[subprocess.Popen[bytes]]) -> None:
        """Look from time to time, and signal the processes once the request is there."""
        if self._path is None or self.is_there or time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        with contextlib.suppress(OSError):  # the file system does not respond: try again later
            self.is_there = bool(self._path.read_bytes())
        if self.is_there:
            _signal(processes, signal.SIGTERM)


def _signal(processes: Collection[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def supervise(folder: Path, place: Place, *, starter: int) -> None:
    """Supervise the command of a run folder, in a process that `starter` has forked for that."""
    request = EndRequest(starter)
    adopt_orphans()
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    log = Log(folder / of_node(LOG, place.node))
    group = ControlGroup.create()
    run = CommandRun(order, log, group)
    try:
        run.start(folder, place)
        run.follow(request)
        seconds = log.seconds
        log.close()
    finally:  # also where the log cannot be written
        if group is not None:
            group.kill()
        left = kill_descendants((), timeout_s=KILL_S)
        if group is not None:
            group.remove()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    found = {
        "status": run.status,
        "seconds": seconds,
        "peak_resident_bytes": peak,
        "left": [process.pid for process in left],
    }
    write_json(folder / of_node(ENDED, place.node), found)
