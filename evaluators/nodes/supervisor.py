"""Supervisor of one trainer's command on one node: a small process that a fork server forks.

It starts the command, once or once per rank, writes down its output with arrival times, and ends it
when it gets a SIGTERM or its starter is gone, or when the command has ended and left processes
behind. It adopts orphans, since launchers put ranks into sessions of their own, which no signal to
a process group reaches, and kills every descendant. The command dies with it. In the run folder,
for node 0; others have a number in the names of the last two, as `command-1.log`:

    command.json     in: {"arguments": [...], "passed": [names], "environment": {...},
                     "folder": path, "devices": of the whole command, "devices_per_node": n,
                     "starts_ranks": whether once per rank, "stop_file": of a replay, null of a
                     probe; once it is not empty the command gets a SIGTERM}
    command.log      out: the lines that it printed to stdout and stderr, each after the second of
                     its arrival, within limits (`command_log.py`)
    ended.json       out: {"status": exit code or minus the signal, "seconds": s,
                     "peak_resident_bytes": of one process, "left": the ids of processes that were
                     killed and have not ended}

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
from typing import Any

from frontrunner.evaluators.nodes.child_processes import (
    PEER_GRACE_S,
    TAGS,
    adopt_orphans,
    end_child,
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
"""How long output is still read after the command has ended, from processes that it left behind."""
KILL_S = 10.0
END_S = GRACE_S + KILL_S + 5.0
"""How long a supervisor may take to end its command."""
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
        """Return the place that `asdict` has made a table of, after a way as JSON."""
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
    """Return how the command of a supervisor that has ended with `status` ended, and which of its
    killed processes have not; end the command of one that was killed.
    """
    if status != 0:
        ControlGroup.remove_those_of(pid)
        kill_tagged(RUN_TAG, run_tag(folder, node))
    ending = read_end(folder, node)
    return (-9, []) if ending is None else (ending["status"], ending["left"])


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
    """Whether the command is to end: a SIGTERM has come, or the process that started this one has
    ended.
    """

    def __init__(self, starter: int) -> None:
        self._starter = starter
        self._has_come = False
        for number in (signal.SIGINT, signal.SIGHUP):  # who started this handles them
            signal.signal(number, lambda *_: None)  # which the command does not inherit
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self._has_come = True

    @property
    def is_there(self) -> bool:
        """Return whether it has come."""
        return self._has_come or os.getppid() != self._starter


def run(
    folder: Path, place: Place, log: Log, group: ControlGroup | None, request: EndRequest
) -> int:
    """Run the command of a folder to its end, in a control group where there is one; return its
    first status that is not 0.
    """
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    processes: list[subprocess.Popen[bytes]] = []
    streams: dict[int, str] = {}
    for arguments, environment in starts(order, folder, place):
        try:
            process = start_child(
                arguments,
                parent_death=signal.SIGKILL,
                group=group,
                cwd=order["folder"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            log.write(f"{arguments[0]}: {error.strerror}\n".encode())
            _end(processes)
            return NOT_STARTED
        of_rank = f" of local rank {len(processes)}" if order["starts_ranks"] else ""
        streams[process.stdout.fileno()] = f"stdout{of_rank}"  # type: ignore[union-attr]
        streams[process.stderr.fileno()] = f"stderr{of_rank}"  # type: ignore[union-attr]
        processes.append(process)
    open_streams, status, ended_s, failed_s = set(streams), 0, 0.0, 0.0
    has_been_ended, stop = False, StopFile(order["stop_file"])
    while open_streams or any(process.poll() is None for process in processes):
        ready, _, _ = select.select(open_streams, [], [], POLL_S)
        open_streams -= _read(streams, ready, log)
        if request.is_there and not has_been_ended:
            has_been_ended = True
            _end(processes)
        stop.pass_on(processes)
        statuses = [process.poll() for process in processes]
        status = status or next(filter(None, statuses), 0)
        failed_s = failed_s or (log.seconds if status else 0.0)
        if None not in statuses:
            ended_s = ended_s or log.seconds
            if not ready or log.seconds - ended_s > DRAIN_S:
                break
        elif (
            failed_s and log.seconds - failed_s > PEER_GRACE_S and not stop.is_there
        ):  # the other ranks wait for it
            _end(processes)
    return status


def _read(streams: Mapping[int, str], ready: Collection[int], log: Log) -> set[int]:
    """Pass the output that is ready on to the log; return the streams that have ended."""
    ended = set[int]()
    for output, stream in streams.items():
        if output in ready:
            data = os.read(output, 1 << 16)
            log.write(data, stream)
            if not data:
                ended.add(output)
    log.write_waiting()
    return ended


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
        with contextlib.suppress(OSError):  # the file system does not respond: it is read again
            self.is_there = bool(self._path.read_bytes())
        if self.is_there:
            _signal(processes)


def _signal(processes: Collection[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)


def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    _signal(processes)
    end_s = time.monotonic() + GRACE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end_s - time.monotonic()))
        end_child(process, grace_s=0.0, group=True)


def supervise(folder: Path, place: Place, *, starter: int) -> None:
    """Supervise the command of a run folder, in a process that `starter` has forked for that."""
    request = EndRequest(starter)
    adopt_orphans()
    log = Log(folder / of_node(LOG, place.node))
    group = ControlGroup.create()
    status = run(folder, place, log, group, request)
    if group is not None:
        group.kill()
    left = kill_descendants((), timeout_s=KILL_S)
    if group is not None:
        group.remove()
    log.close()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    found = {
        "status": status,
        "seconds": log.seconds,
        "peak_resident_bytes": peak,
        "left": [process.pid for process in left],
    }
    write_json(folder / of_node(ENDED, place.node), found)
