"""Step: one attempt at a probe on one or several nodes, as driver and nodes exchange it through files.

All files are in the attempt's run folder, on a file system that all nodes and the driver share. In addition to those of
`probe/run_folder.py`:

step.json            what each node's agent has to do
meeting.json         where rank 0 can be reached, once it can
node-K.json          how the ranks of node K are, by its agent
node-K.log           the agent's own output
launcher.log         the output of what started the agents
peer-failed          a flag: a rank on some node has failed
cancel               a flag: the driver wants the ranks to end

Files that somebody waits for exist from the beginning, empty: a network file system may cache for a minute that a file
was missing, but checks again for one that it opens.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.files import read_json, write_json
from frontrunner.evaluators.probe.run_folder import CANCEL, RunFolder

VERSION = 1
MEETING_FILE = "meeting.json"
"""As in `evaluators/trainer/rendezvous.py`."""
BEAT_S = 3.0
LOOK_S = 1.0
"""Between two reads of a file that another node writes."""
ORPHAN_END_S = 15.0
"""Assumed: how long after their heartbeat timeout the ranks of a step are gone, and their last files are visible."""
CLOCK_SKEW_S = 3600.0
"""Beyond its deadline by this much a step is over, however far the clocks of this host and the file server differ."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The agents' order: `ranks_per_node` ranks per node, the last node what is left of `world_size`.

    `lifeline` is the driver's heartbeat file; ranks end when it has not changed for `silence_s`, or when they have run
    for `deadline_s`. `scratch` is a folder on a node's own disk to be removed in the end.
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
    version: int = VERSION

    @property
    def path(self) -> Path:
        """Return the path of the step's file."""
        return Path(self.run_folder) / "step.json"

    def write(self) -> None:
        """Write the step to its run folder."""
        write_json(self.path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Step:
        """Return the step of a file; raise ValueError for one of another version, or an invalid one."""
        table = read_json(path)
        if not isinstance(table, dict) or table.get("version") != VERSION:
            raise ValueError(f"{path} is not a step of version {VERSION}")
        try:
            return cls(**table | {"engines": tuple(table["engines"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path} is not a step: {error}") from error

    def ranks_of(self, node: int) -> range:
        """Return the ranks of one node."""
        first = node * self.ranks_per_node
        return range(first, min(first + self.ranks_per_node, self.world_size))


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """State of the ranks of one node.

    `statuses` maps each rank that has ended to its exit code, or minus its signal; `killed` holds those that the agent
    ended itself. `interrupted` is the signal by which somebody ended the agent, `trouble` what kept it from its work.
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
        self.cancel = path / CANCEL
        self.peer_failed = path / "peer-failed"
        self.launcher_log = path / "launcher.log"

    def prepare(self, nodes: int) -> None:
        """Create the files that are waited for, empty."""
        reports = [self.path / f"node-{node}.json" for node in range(nodes)]
        for file in (self.cancel, self.peer_failed, self.path / MEETING_FILE, *reports):
            file.touch()

    @staticmethod
    def raise_flag(flag: Path) -> None:
        """Raise `cancel` or `peer_failed`."""
        flag.write_text("1", encoding="ascii")

    @staticmethod
    def is_raised(flag: Path) -> bool:
        """Return whether a flag is raised; False if the file system does not respond, since it is read again."""
        try:
            return bool(flag.read_bytes())
        except OSError:
            return False

    def node_log(self, node: int) -> Path:
        """Return the path of the output of one node's agent and fork server."""
        return self.path / f"node-{node}.log"

    def write_report(self, report: NodeReport) -> None:
        """Write a node's report."""
        write_json(self.path / f"node-{report.node}.json", asdict(report))

    def report(self, node: int) -> NodeReport | None:
        """Return a node's last report; None before the first, and for a file that cannot be read."""
        try:
            table: dict[str, Any] | None = read_json(self.path / f"node-{node}.json")
            if table is None:
                return None
            statuses = {int(rank): int(status) for rank, status in table["statuses"].items()}
            return NodeReport(**table | {"statuses": statuses, "killed": tuple(table["killed"])})
        except (json.JSONDecodeError, OSError, KeyError, TypeError, ValueError, AttributeError):
            return None  # a network file system may show a file that is being replaced

    def step(self) -> Step | None:
        """Return the folder's step; None if there is none, or it is damaged or of another version."""
        path = self.path / "step.json"
        try:
            return Step.read(path) if path.exists() else None
        except (OSError, ValueError):
            return None


def was_interrupted(folder: Path) -> bool:
    """Return whether a signal has ended an agent of a folder's step, as when a batch system takes its nodes away."""
    step = StepFolder(folder).step()
    reports = [StepFolder(folder).report(node) for node in range(step.nodes if step else 0)]
    return any(report is not None and report.interrupted is not None for report in reports)


class OrphanedSteps:
    """Steps whose driver is gone: their ranks may use their nodes until they miss the driver's heartbeat.

    A probe next to them would be measured on devices, memory and a network that it shares. Each is cancelled.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        """Cancel the steps of run folders without an outcome."""
        self._steps = [(StepFolder(folder), step) for folder in folders if (step := _open_step(folder)) is not None]
        for folder, _ in self._steps:
            folder.raise_flag(folder.cancel)
        self._began_s = time.monotonic()

    def have_ended(self) -> bool:
        """Return whether every node has reported its end, or has had the time after which nothing can run there."""
        waited_s = time.monotonic() - self._began_s
        self._steps = [
            (folder, step)
            for folder, step in self._steps
            if waited_s < step.silence_s + ORPHAN_END_S and not _every_node_has_ended(folder, step)
        ]
        return not self._steps


def _open_step(folder: Path) -> Step | None:
    step = StepFolder(folder).step()
    if step is None or RunFolder(folder).outcome() is not None:
        return None
    age_s = time.time() - (folder / "step.json").stat().st_mtime
    return None if age_s > step.deadline_s + CLOCK_SKEW_S else step


def _every_node_has_ended(folder: StepFolder, step: Step) -> bool:
    reports = [folder.report(node) for node in range(step.nodes)]
    return all(report is not None and report.ended for report in reports)


class Heartbeat:
    """The driver's sign of life to nodes that no pipe connects to it: a file that keeps changing.

    Clocks of two machines differ, and so do their views of a file's age. The driver therefore writes a counter, and a
    `HeartbeatMonitor` measures by its own monotonic clock for how long it has seen the same number. A thread of its own
    writes it: a driver that is busy choosing is alive.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stopped = threading.Event()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("0", encoding="ascii")
        self._thread = threading.Thread(target=self._beat, name="frontrunner-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while not self._stopped.wait(BEAT_S):
            count += 1
            try:
                self._file.write_text(str(count), encoding="ascii")
            except OSError:
                continue  # a full disk is handled where outcomes are written; the next beat follows

    def stop(self) -> None:
        """Stop, and remove the file: nodes that still monitor it end."""
        self._stopped.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)


class HeartbeatMonitor:
    """Watches another process's heartbeat."""

    def __init__(self, file: Path, *, silence_s: float) -> None:
        self._file = file
        self._silence_s = silence_s
        self._last: str | None = None
        self._changed_s = self._looked_s = time.monotonic()

    def is_silent(self) -> bool:
        """Return whether there was no beat for `silence_s`."""
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            beat = self._read()
            if beat is not None and beat != self._last:
                self._last, self._changed_s = beat, now
        return now - self._changed_s > self._silence_s

    def _read(self) -> str | None:
        try:
            return self._file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
