"""Node agent, `python -P -m frontrunner.evaluators.nodes.agent STEP.json`: runs one node's part
of one step.

The site's launcher starts one per node. The agent has a fork server start the node's ranks or its
part of a command. If the agent ends, the server ends, and with it what it has started. The agent
ends when the driver cancels the step, when the driver's heartbeat stops, or on a signal. Only files
connect it to the driver.

A command starts once each node has reported: then the agent of node 0, which has reserved a port,
writes the nodes' names and where it can be reached to the file at which ranks would meet.

All files are in the attempt's run folder, on a file system that all nodes and the driver share. In
addition to those of `runs/run_folder.py`:

step.json            what each node's agent has to do
node-K.json          the state of node K's ranks or command, by its agent
node-K.log           the output of its fork server
launcher.log         the output of what started the agents
cancel               not empty: the driver wants the ranks to end

Files that somebody waits for exist from the beginning, empty: a network file system may cache for a
minute that a file is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from types import FrameType
from typing import Any

from frontrunner.evaluators.nodes.child_processes import ENDING_SIGNALS, kernel_oom_kills
from frontrunner.evaluators.nodes.environment import launched_rank
from frontrunner.evaluators.nodes.fork_server import (
    ForkClient,
    ForkRequest,
    ProcessKind,
    ServerLost,
    ServerSettings,
)
from frontrunner.evaluators.nodes.forked import Forked
from frontrunner.evaluators.nodes.supervisor import END_S, Place, reserved_port
from frontrunner.evaluators.runs.files import read_json, write_json
from frontrunner.evaluators.runs.heartbeat import RunHeartbeat
from frontrunner.evaluators.runs.run_folder import (
    CANCEL,
    MEETING,
    STEP,
    RunFolder,
)
from frontrunner.evaluators.trainer.hosts import own_hosts
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput

AGENT = "frontrunner.evaluators.nodes.agent"
LOOPBACK = "127.0.0.1"
POLL_S = 0.2
VERSION = 1
BEAT_S = 3.0
LOOK_S = 1.0
"""Between two reads of a file that another node writes."""
ORPHAN_END_S = 30.0
"""Assumed: upper limit of the time from a heartbeat timeout until ranks and commands are gone, and
their last files visible.
"""
CLOCK_SKEW_S = 3600.0
"""A step whose deadline passed longer ago than this is over; allows for clocks of this host and the
file server that differ.
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The agents' order: `ranks_per_node` of `world_size` ranks per node, the last node the
    remainder, or the command of the run folder.

    They end when the driver's heartbeat file `lifeline` has not changed for `silence_s`; `scratch`
    is a folder on a node's own disk to be removed in the end. `agent` is the module that each node
    runs, `hosts` are the nodes' names. `ends_with_driver`: who provides the nodes ends what a dead
    driver left there.
    """

    token: str
    run_folder: str
    world_size: int
    nodes: int
    ranks_per_node: int
    engines: tuple[str, ...]
    environment: dict[str, str]
    deadline_s: float
    lifeline: str
    silence_s: float
    scratch: str | None = None
    kind: str = ProcessKind.RANKS
    agent: str = AGENT
    hosts: tuple[str, ...] = ()
    ends_with_driver: bool = False
    version: int = VERSION

    def write(self) -> Path:
        """Write the step to its run folder; return its path."""
        path = Path(self.run_folder) / STEP
        write_json(path, asdict(self))
        return path

    @classmethod
    def read(cls, path: Path) -> Step:
        """Return the step of a file; raise ValueError if it is not one of this version."""
        table = read_json(path)
        if not isinstance(table, dict) or table.get("version") != VERSION:
            raise ValueError(f"{path} is not a step of version {VERSION}")
        lists = {key: tuple(table.get(key, ())) for key in ("engines", "hosts")}
        return cls(**table | lists)

    @property
    def server(self) -> ServerSettings:
        """Return what the fork servers of its nodes have."""
        return ServerSettings(environment=self.environment, engines=self.engines)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of one node."""
        first = node * self.ranks_per_node
        return range(first, min(first + self.ranks_per_node, self.world_size))


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """State of the ranks of one node, or of its command, which counts as one rank with the node's
    number.

    `running` is true from when its processes have started. `statuses` maps each rank that has
    ended to its exit code, or minus its signal; `killed` holds those that the agent ended itself.
    `oom_kills` counts the processes that the node's kernel has killed for memory meanwhile.
    `interrupted` is the signal that ended the agent, `trouble` what kept it from its work. Nothing
    follows after `ended`.
    """

    node: int
    host: str
    running: bool = False
    statuses: dict[int, int] = field(default_factory=dict)
    killed: tuple[int, ...] = ()
    oom_kills: int = 0
    interrupted: str | None = None
    trouble: str | None = None
    ended: bool = False


class StepFolder:
    """The step's files in a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cancel = path / CANCEL
        self.launcher_log = path / "launcher.log"

    def prepare(self, nodes: int) -> None:
        """Create the files that are waited for."""
        for name in (CANCEL, MEETING, *(f"node-{node}.json" for node in range(nodes))):
            (self.path / name).touch()

    def cancel(self) -> None:
        """Have every node end its ranks."""
        self._cancel.write_text("1", encoding="ascii")

    @property
    def is_cancelled(self) -> bool:
        """Return whether the ranks are to end, also where the run folder was removed; False if the
        file system does not respond, since it is read again.
        """
        try:
            return bool(self._cancel.read_bytes())
        except FileNotFoundError:  # it exists from the beginning
            return True
        except OSError:
            return False

    def write_report(self, report: NodeReport) -> None:
        """Write a node's report."""
        write_json(self.path / f"node-{report.node}.json", asdict(report))

    def report(self, node: int) -> NodeReport | None:
        """Return a node's last report; None before the first, and where a network file system shows
        half of one.
        """
        try:
            table: Any = read_json(self.path / f"node-{node}.json")
            statuses = {int(rank): status for rank, status in table["statuses"].items()}
            return NodeReport(**table | {"statuses": statuses, "killed": tuple(table["killed"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def reports(self) -> list[NodeReport | None]:
        """Return the last report of each of the step's nodes; empty where there is no step."""
        step = self.step()
        return [self.report(node) for node in range(step.nodes if step else 0)]

    def step(self) -> Step | None:
        """Return the folder's step; None if there is none, or it is damaged or of another
        version.
        """
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return Step.read(self.path / STEP)
        return None


def was_interrupted(folder: Path) -> bool:
    """Return whether a signal has ended an agent of a folder's step, as when a batch system takes
    its nodes away.
    """
    return any(
        report is not None and report.interrupted is not None
        for report in StepFolder(folder).reports()
    )


class OrphanedSteps:
    """Steps of drivers that are gone. They are cancelled, because their ranks would share devices
    and network with new probes.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._began_s = time.monotonic()
        self._steps: list[tuple[StepFolder, Step]] = []
        for folder in map(StepFolder, folders):
            step = folder.step()
            if step is None or RunFolder(folder.path).outcome() is not None:
                continue
            if time.time() - (folder.path / STEP).stat().st_mtime <= step.deadline_s + CLOCK_SKEW_S:
                folder.cancel()
                if not step.ends_with_driver:
                    self._steps.append((folder, step))

    def have_ended(self) -> bool:
        """Return whether every node has reported its end, or has had the time after which nothing
        can run there.
        """
        waited_s = time.monotonic() - self._began_s
        self._steps = [
            (folder, step)
            for folder, step in self._steps
            if waited_s < step.silence_s + ORPHAN_END_S
            and not all(report is not None and report.ended for report in folder.reports())
        ]
        return not self._steps


class Heartbeat:
    """The driver's sign of life to nodes that no pipe connects to it: a file that keeps changing.

    Clocks of two machines differ, and so do their views of a file's age: the driver writes a
    counter, and a `HeartbeatMonitor` measures by its own clock for how long it has seen the same
    number.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stopped = threading.Event()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("0", encoding="ascii")
        self._thread = threading.Thread(
            target=self._beat, name="frontrunner-heartbeat", daemon=True
        )
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while not self._stopped.wait(BEAT_S):
            count += 1
            with contextlib.suppress(OSError):  # a full disk is handled where outcomes are written
                self._file.write_text(str(count), encoding="ascii")

    def stop(self) -> None:
        """Stop, and remove the file: nodes that still watch it end after their time of silence."""
        self._stopped.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)


class HeartbeatMonitor:
    """Watches another process's heartbeat."""

    def __init__(self, file: Path, *, silence_s: float) -> None:
        self._file = file
        self._silence_s = silence_s
        self._last = b""
        self._changed_s = self._looked_s = time.monotonic()

    def is_silent(self) -> bool:
        """Return whether there was no beat for `silence_s`."""
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            with contextlib.suppress(OSError):
                beat = self._file.read_bytes()
                if beat != self._last:
                    self._last, self._changed_s = beat, now
        return now - self._changed_s > self._silence_s


class NodeAgent(ABC):
    """Runs one node's part of a step to its end, however that comes, and keeps the node's report up
    to date.
    """

    def __init__(self, step: Step, node: int, host: str | None = None) -> None:
        self._step = step
        self._folder = StepFolder(Path(step.run_folder))
        host = host or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._report = NodeReport(node=node, host=host)
        self._heartbeat = HeartbeatMonitor(Path(step.lifeline), silence_s=step.silence_s)
        self._oom_kills_before = kernel_oom_kills()
        self._looked_s = time.monotonic()
        self._own_heartbeat = RunHeartbeat()
        self._interrupted: str | None = None
        """The report has it from the next update on: a signal may come while that is made."""

    def interrupt(self, number: int, _: FrameType | None) -> None:
        """Note the signal that ends this agent."""
        self._interrupted = signal.Signals(number).name

    def run(self) -> None:
        """Run the node's part until it has ended, or is given up."""
        self._update()
        try:
            self._work()
        except FrontrunnerError as error:
            self._update(trouble=error.message)
        except OSError as error:  # as on a full disk, or a file system that does not respond
            self._update(trouble=f"{type(error).__name__}: {error}")
        finally:
            if self._step.scratch is not None:
                shutil.rmtree(self._step.scratch, ignore_errors=True)
            self._update(ended=True)

    @abstractmethod
    def _work(self) -> None:
        """Start the node's part and follow it to its end."""

    def _should_end(self) -> bool:
        if self._report.node == 0:
            self._own_heartbeat.beat([self._folder.path])
        if self._interrupted is not None or self._heartbeat.is_silent():
            return True
        # Each look is a request to the shared file system.
        if time.monotonic() - self._looked_s < LOOK_S:
            return False
        self._looked_s = time.monotonic()
        return self._folder.is_cancelled

    def _update(self, **changes: Any) -> None:
        oom_kills = kernel_oom_kills() - self._oom_kills_before
        interrupted = self._interrupted
        self._report = replace(
            self._report, oom_kills=oom_kills, interrupted=interrupted, **changes
        )
        with contextlib.suppress(OSError):  # the next report may be written
            self._folder.write_report(self._report)


class ProgramAgent(NodeAgent):
    """Has the ranks of one node forked, or a command's part of it, by a fork server: a warm one
    where it is given one.
    """

    def __init__(
        self, step: Step, node: int, host: str | None = None, *, server: ForkClient | None = None
    ) -> None:
        super().__init__(step, node, host)
        self._server = server
        self._forked: Forked | None = None

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            request = self._request(stack)
            if request is None:
                return
            server = self._server
            if server is None:
                log = self._folder.path / f"node-{self._report.node}.log"
                server = ForkClient(log, self._step.server)
                stack.callback(server.close)
            self._forked = Forked(request)
            server.start(request)
            self._follow(server, self._forked)

    def _request(self, stack: contextlib.ExitStack) -> ForkRequest | None:
        """Return what to fork; None if the command is not to start. The port of a command is held
        until `stack` closes.
        """
        step, folder, node = self._step, self._folder.path, self._report.node
        if step.kind == ProcessKind.COMMAND:
            port = stack.enter_context(reserved_port()) if node == 0 else None
            place = self._place(None if port is None else port.getsockname()[1])
            return None if place is None else ForkRequest.of_command(step.token, folder, place)
        ranks = step.ranks_of(node)
        return ForkRequest(
            token=step.token,
            folder=str(folder),
            world_size=step.world_size,
            first=ranks.start,
            count=len(ranks),
        )

    def _place(self, port: int | None) -> Place | None:
        """Return where this node is among those of a command, once all are there; None if the
        command is not to start.
        """
        meeting, hosts = self._folder.path / MEETING, dict[int, str]()
        while (found := _read(meeting)) is None:
            if self._should_end():
                self._update(killed=(self._report.node,))
                return None
            if port is not None:  # this is node 0
                self._note_hosts(hosts)
            if len(hosts) == self._step.nodes:
                names = [hosts[node] for node in range(self._step.nodes)]
                write_json(meeting, {"nodes": names, "address": self._address, "port": port})
            else:
                time.sleep(POLL_S)
        return Place.of({"node": self._report.node, "variables": self._step.environment, **found})

    def _note_hosts(self, hosts: dict[int, str]) -> None:
        """Add the names of nodes that have reported since the last call."""
        for node in range(self._step.nodes):
            if node not in hosts and (report := self._folder.report(node)) is not None:
                hosts[node] = report.host

    @property
    def _address(self) -> str:
        if self._step.nodes == 1:
            return LOOPBACK
        interface = self._step.environment.get("GLOO_SOCKET_IFNAME")
        try:
            return own_hosts(interface)[0]
        except OSError as error:
            raise FrontrunnerError(
                f"dispatch.network_interface = {interface!r}: {error.strerror}"
            ) from error

    def _follow(self, server: ForkClient, forked: Forked) -> None:
        while forked.running and self._report.trouble is None and not forked.is_given_up:
            for report in server.reports(POLL_S):
                if isinstance(report, ServerLost):
                    self._wait_for_end_of(forked)
                    what = "command" if forked.is_command else "ranks"
                    self._update(trouble=f"the node's fork server ended, and the {what} with it")
                elif report.token == self._step.token:  # not of an earlier step
                    forked.note(report)
                    self._update(running=True, statuses=dict(forked.statuses))
            if self._should_end():
                forked.end()
            else:
                forked.go_on_ending()
            if tuple(sorted(forked.killed)) != self._report.killed:
                self._update(killed=tuple(sorted(forked.killed)))

    def _wait_for_end_of(self, forked: Forked) -> None:
        """Wait until what a lost server had forked has ended: a supervisor ends its command.

        Wait for a moment in any case: if the launcher is ending the whole step, this agent's signal
        comes now, and is noted as the cause.
        """
        time.sleep(LOOK_S)
        end_s = time.monotonic() + END_S
        while forked.processes and time.monotonic() < end_s:
            time.sleep(POLL_S)

    @property
    def is_clean(self) -> bool:
        """Return whether everything on the node has ended, and its fork server may serve another
        step.
        """
        has_ended = self._forked is not None and not self._forked.running
        return has_ended and self._report.trouble is None


def _read(meeting: Path) -> dict[str, Any] | None:
    """Return what node 0 has written; None before, and where a network file system shows half of
    it.
    """
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] | None = read_json(meeting)
        return found
    return None


def node_of(environment: Mapping[str, str], nodes: int) -> int:
    """Return the index of this node among a step's nodes, from the launcher's variables."""
    if nodes == 1:
        return 0
    # Ranks meet by a file, so the address that launched_rank would otherwise have to find is not
    # needed.
    place = launched_rank({"MASTER_ADDR": "none", **environment})
    if place is None:
        raise InvalidInput(
            f"a step of {nodes} nodes was started without a launcher: set dispatch.launcher"
        )
    if place.world_size != nodes:
        raise InvalidInput(
            f"{place.launcher} started {place.world_size} processes for a step of {nodes} nodes"
        )
    return place.rank


def agent_of(module: str) -> type[NodeAgent]:
    """Return the agent that is defined in a step's module."""
    defined = vars(import_module(module)).values()
    return next(
        one
        for one in defined
        if isinstance(one, type)
        and issubclass(one, NodeAgent)
        and one.__module__ == module
        and not isabstract(one)
    )


def main(kind: type[NodeAgent]) -> None:
    """Run the agent of this node."""
    try:
        step = Step.read(Path(sys.argv[1]))
        agent = kind(step, node_of(os.environ, step.nodes))
    except (IndexError, OSError, ValueError) as error:
        sys.exit(f"{' '.join(sys.argv)}: {error}")
    for number in ENDING_SIGNALS:
        signal.signal(number, agent.interrupt)
    agent.run()


if __name__ == "__main__":
    main(ProgramAgent)
