"""Step: one attempt at a probe on one or several nodes, as driver and nodes exchange it through files.

All files are in the attempt's run folder, on a file system that all nodes and the driver share. In addition to those of
`probe/run_folder.py`:

step.json            what each node's agent has to do
node-K.json          how the ranks of node K are, by its agent
node-K.log           the output of its fork server
launcher.log         the output of what started the agents
cancel               not empty: the driver wants the ranks to end

Files that somebody waits for exist from the beginning, empty: a network file system may cache for a minute that a file
is missing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.files import read_json, write_json
from frontrunner.evaluators.probe.run_folder import CANCEL, MEETING, RunFolder

VERSION = 1
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

    Ranks end when the driver's heartbeat file `lifeline` has not changed for `silence_s`; `scratch` is a folder on a
    node's own disk to be removed in the end.
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

    def write(self) -> Path:
        """Write the step to its run folder; return its path."""
        path = Path(self.run_folder) / "step.json"
        write_json(path, asdict(self))
        return path

    @classmethod
    def read(cls, path: Path) -> Step:
        """Return the step of a file; raise ValueError if it is not one of this version."""
        table = read_json(path)
        if not isinstance(table, dict) or table.get("version") != VERSION:
            raise ValueError(f"{path} is not a step of version {VERSION}")
        return cls(**table | {"engines": tuple(table["engines"])})

    def ranks_of(self, node: int) -> range:
        """Return the ranks of one node."""
        first = node * self.ranks_per_node
        return range(first, min(first + self.ranks_per_node, self.world_size))


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """State of the ranks of one node.

    `statuses` maps each rank that has ended to its exit code, or minus its signal; `killed` holds those that the agent
    ended itself. `interrupted` is the signal that ended the agent, `trouble` what kept it from its work.
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
        """Create the files that are waited for, empty."""
        for name in (CANCEL, MEETING, *(f"node-{node}.json" for node in range(nodes))):
            (self.path / name).touch()

    def cancel(self) -> None:
        """Have every node end its ranks."""
        self._cancel.write_text("1", encoding="ascii")

    @property
    def is_cancelled(self) -> bool:
        """Return whether the ranks are to end; False if the file system does not respond, since it is read again."""
        with contextlib.suppress(OSError):
            return bool(self._cancel.read_bytes())
        return False

    def write_report(self, report: NodeReport) -> None:
        """Write a node's report."""
        write_json(self.path / f"node-{report.node}.json", asdict(report))

    def report(self, node: int) -> NodeReport | None:
        """Return a node's last report; None before the first, and where a network file system shows half of one."""
        try:
            table: Any = read_json(self.path / f"node-{node}.json")
            statuses = {int(rank): status for rank, status in table["statuses"].items()}
            return NodeReport(**table | {"statuses": statuses, "killed": tuple(table["killed"])})
        except (OSError, ValueError, TypeError):
            return None

    def reports(self) -> list[NodeReport | None]:
        """Return the last report of each of the step's nodes; empty where there is no step."""
        step = self.step()
        return [self.report(node) for node in range(step.nodes if step else 0)]

    def step(self) -> Step | None:
        """Return the folder's step; None if there is none, or it is damaged or of another version."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return Step.read(self.path / "step.json")
        return None


def was_interrupted(folder: Path) -> bool:
    """Return whether a signal has ended an agent of a folder's step, as when a batch system takes its nodes away."""
    return any(report is not None and report.interrupted is not None for report in StepFolder(folder).reports())


class OrphanedSteps:
    """Steps whose driver is gone, which are cancelled: their ranks would share devices and network with new probes."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._began_s = time.monotonic()
        self._steps: list[tuple[StepFolder, Step]] = []
        for folder in map(StepFolder, folders):
            step = folder.step()
            if step is None or RunFolder(folder.path).outcome() is not None:
                continue
            if time.time() - (folder.path / "step.json").stat().st_mtime <= step.deadline_s + CLOCK_SKEW_S:
                folder.cancel()
                self._steps.append((folder, step))

    def have_ended(self) -> bool:
        """Return whether every node has reported its end, or has had the time after which nothing can run there."""
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

    Clocks of two machines differ, and so do their views of a file's age: the driver writes a counter, and a
    `HeartbeatMonitor` measures by its own clock for how long it has seen the same number.
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
            with contextlib.suppress(OSError):  # a full disk is handled where outcomes are written
                self._file.write_text(str(count), encoding="ascii")

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
