"""A step: one attempt at a probe on one or several nodes, as driver and nodes agree on it through files.

All files lie in the attempt's run folder, on a file system that all nodes and the driver share. Beside those of
`evaluators/run_folder.py`:

step.json            what each node's agent is asked to do
meeting.json         where rank 0 can be reached, once it can
node-K.json          how the ranks of node K are, by its agent
node-K.log           the agent's own output
launcher.log         the output of what started the agents
peer-failed          a flag: a rank on some node has failed
cancel               a flag: the driver wants the ranks to end

Files that somebody waits for are there from the beginning, empty: a network file system may remember for a minute that
a file was missing, but asks anew for what it opens.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.files import read_json, write_json
from frontrunner.evaluators.probe.run_folder import CANCEL

VERSION = 1
MEETING_FILE = "meeting.json"
"""As in `evaluators/trainer/rendezvous.py`, which shares no code with the rest."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the agents of a step do: `ranks_per_node` ranks each, the last node what is left of `world_size`.

    `lifeline` is a file that the driver keeps changing; ranks end when it stands still for `silence_s`, or when they
    have run for `deadline_s`. `scratch` is the folder on a node's own disk to be removed in the end.
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
        """Where the step is written down."""
        return Path(self.run_folder) / "step.json"

    def write(self) -> None:
        """Put the step into its run folder."""
        write_json(self.path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Step:
        """The step of a file; raises ValueError for one that another version wrote, or that is no step."""
        table = read_json(path)
        if not isinstance(table, dict) or table.get("version") != VERSION:
            raise ValueError(f"{path} is no step of version {VERSION}")
        try:
            return cls(**table | {"engines": tuple(table["engines"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path} is no step: {error}") from error

    def ranks_of(self, node: int) -> range:
        """The ranks of one node."""
        first = node * self.ranks_per_node
        return range(first, min(first + self.ranks_per_node, self.world_size))


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """How the ranks of one node are.

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
    """The step's files in a run folder, beside those of `RunFolder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cancel = path / CANCEL
        self.peer_failed = path / "peer-failed"
        self.launcher_log = path / "launcher.log"

    def prepare(self, nodes: int) -> None:
        """Make the files that are waited for, as yet empty."""
        reports = [self.path / f"node-{node}.json" for node in range(nodes)]
        for file in (self.cancel, self.peer_failed, self.path / MEETING_FILE, *reports):
            file.touch()

    @staticmethod
    def raise_flag(flag: Path) -> None:
        """Raise `cancel` or `peer_failed`."""
        flag.write_text("1", encoding="ascii")

    @staticmethod
    def is_raised(flag: Path) -> bool:
        """Whether somebody has raised a flag."""
        try:
            return bool(flag.read_bytes())
        except OSError:
            return False  # the file system is slow to answer: it will be asked again

    def node_log(self, node: int) -> Path:
        """The output of one node's agent and fork server."""
        return self.path / f"node-{node}.log"

    def write_report(self, report: NodeReport) -> None:
        """Tell how a node's ranks are."""
        write_json(self.path / f"node-{report.node}.json", asdict(report))

    def report(self, node: int) -> NodeReport | None:
        """What a node's agent told last; None before it has told anything, and for a file that cannot be read."""
        try:
            table: dict[str, Any] | None = read_json(self.path / f"node-{node}.json")
            if table is None:
                return None
            statuses = {int(rank): int(status) for rank, status in table["statuses"].items()}
            return NodeReport(**table | {"statuses": statuses, "killed": tuple(table["killed"])})
        except (json.JSONDecodeError, OSError, KeyError, TypeError, ValueError, AttributeError):
            return None  # a network file system may show a file that was renamed under the reader's hands
