"""Supervisor of one trainer's command on one node: a small process between the driver, or a node's
agent, and it.

It starts the command, once or once per rank, writes down its output with arrival times, and ends it
when its starter requests that or is gone (its end of the supervisor's stdin closes), or when the
command has ended and left processes behind. It adopts orphans, since launchers put ranks into
sessions of their own, which no signal to a process group reaches, and kills every descendant. The
command dies with it. In the run folder, for node 0; others have a number in the names of the last
two, as `command-1.log`:

    command.json     in: {"arguments": [...], "passed": [names], "environment": {...}, "folder":
    path,
                     "devices": of the whole command, "devices_per_node": n, "starts_ranks": whether
                     once per rank, "stop_file": of a replay, null of a probe; once it is not empty
                     the command gets a SIGTERM}
    command.log      out: the lines that it printed to stdout and stderr, each after the second of
                     its arrival, within limits (`command_log.py`)
    ended.json       out: {"status": exit code or minus the signal, "seconds": s,
                     "peak_resident_bytes": of one process, "left": the ids of processes that were
                     killed and have not ended}

The first line of its stdin is its `Place`, by which it fills the fields of `PLACE` in the arguments
and variables.
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
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

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
from frontrunner.evaluators.runs.heartbeat import RunHeartbeat

LOG = "command.log"
ORDER = "command.json"
ENDED = "ended.json"
RUN_TAG = "FRONTRUNNER_RUN"
MODULE = "frontrunner.evaluators.nodes.supervisor"
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


class Supervised:
    """A command under its supervisor, which is a child of this process."""

    def __init__(self, folder: Path, place: Place, environment: Mapping[str, str]) -> None:
        self._folder, self._node = folder, place.node
        with (folder / of_node("supervisor.log", place.node)).open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # signals of the terminal are for the driver to handle
                env={**os.environ, **environment},
            )
        self._lifeline: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        with contextlib.suppress(BrokenPipeError):  # it was killed at once
            self._lifeline.write(json.dumps(asdict(place)).encode() + b"\n")
            self._lifeline.flush()

    @property
    def has_ended(self) -> bool:
        """Return whether the supervisor has; it may have been killed."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Have the supervisor end the command; return at once."""
        with contextlib.suppress(BrokenPipeError):
            self._lifeline.close()

    def kill(self) -> None:
        """Kill the supervisor."""
        self._process.kill()

    def wait(self) -> None:
        """Wait for the supervisor; kill it if it takes too long, and the command of one that was
        killed.
        """
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        self._process.wait()
        if (group := ControlGroup.made_by(self._process.pid)) is not None:  # it was killed
            group.remove()
        kill_tagged(RUN_TAG, run_tag(self._folder, self._node))

    def ending(self) -> dict[str, Any] | None:
        """Return how the command ended; see `read_end`."""
        return read_end(self._folder, self._node)


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


def run(folder: Path, place: Place, log: Log, group: ControlGroup | None) -> int:
    """Run the command of a folder to its end, in a control group where there is one; return its
    first status that is not 0.
    """
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    processes: list[subprocess.Popen[bytes]] = []
    streams: dict[int, str] = {}
    request = sys.stdin.fileno()
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
    heartbeat, beaten = RunHeartbeat(), [folder] if place.node == 0 else []
    waiting, status, ended_s, failed_s, stop = (
        [request, *streams],
        0,
        0.0,
        0.0,
        StopFile(order["stop_file"]),
    )
    while not streams.keys().isdisjoint(waiting) or any(
        process.poll() is None for process in processes
    ):
        heartbeat.beat(beaten)
        ready, _, _ = select.select(waiting, [], [], POLL_S)
        for output in _read(streams, ready, log):
            waiting.remove(output)
        if request in ready:  # to end, or the end of who started this
            waiting.remove(request)
            _end(processes)
        stop.pass_on(processes)
        statuses = [process.poll() for process in processes]
        status = status or next(filter(None, statuses), 0)
        failed_s = failed_s or (log.seconds if status else 0.0)
        if None not in statuses:
            ended_s = ended_s or log.seconds
            if streams.keys().isdisjoint(ready) or log.seconds - ended_s > DRAIN_S:
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


def main() -> None:
    """Supervise the command of the run folder that is named on the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # who started this handles them
        signal.signal(number, lambda *_: None)  # which the command does not inherit
    adopt_orphans()
    folder = Path(sys.argv[1])
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows is for select
        if not (byte := os.read(sys.stdin.fileno(), 1)):
            sys.exit("its starter ended before it said where this is")
        line += byte
    table = json.loads(line)
    place = Place(**table | {"nodes": tuple(table["nodes"])})
    log = Log(folder / of_node(LOG, place.node))
    group = ControlGroup.create()
    status = run(folder, place, log, group)
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


if __name__ == "__main__":
    main()
