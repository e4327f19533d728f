"""Files of one attempt.

attempt.json         whose attempt it is, by the driver (`frontrunner.search.recovery`)
job.json             what the ranks have to do
meeting.json         where rank 0 can be reached, once it can
progress.jsonl       one line per step, by rank 0
rank-N.log           the rank's output
rank-N.error.json    the exception that ended the rank
result.json          what the ranks measured, by rank 0
outcome.json         the outcome, as returned to the driver
heartbeat.json       a count that grows while anything runs for the attempt

`job.json`, `result.json` and `outcome.json` name the folder that they were written for: one that
names another was copied here. `nodes/agent.py` lists what steps on other nodes add.
"""

from __future__ import annotations

import functools
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.runs.classify import RankError
from frontrunner.evaluators.runs.files import LineReader, read_json, write_json
from frontrunner.evaluators.runs.heartbeat import BEAT_S, HEARTBEAT
from frontrunner.results.outcome import Failure, Measurement, Outcome, refuse_unstorable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

UNFINISHED = re.compile(r"\..+\.(?:json|log)\.\d+")
"""Name of a JSON file before it is whole: see `write_bytes`."""
CANCEL = "cancel"
ATTEMPT = "attempt.json"
MEETING = "meeting.json"
STEP = "step.json"


@dataclass(frozen=True)
class RunFolder:
    """The files of one attempt."""

    path: Path

    @property
    def job(self) -> Path:
        """Return the path of the job."""
        return self.path / "job.json"

    def log(self, rank: int) -> Path:
        """Return the path of one rank's output."""
        return self.path / f"rank-{rank}.log"

    def own(self, name: str) -> dict[str, Any] | None:
        """Return a file's table; None if missing or another folder's; ValueError, Type-,
        AttributeError if damaged.
        """
        found: dict[str, Any] | None = read_json(self.path / name)
        is_own = (
            found is not None
            and Path(found.get("run_folder", self.path)).absolute() == self.path.absolute()
        )
        return found if is_own else None

    def busy_seconds(self) -> float:
        """Return the wall seconds of an attempt whose driver is gone: from the job, step or oldest
        file to the newest, and those that it may have gone on after its last heartbeat.
        """
        written = {}
        for path in self.path.glob("*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                if path.is_file():
                    written[path.name] = path.stat().st_mtime
        for name in (CANCEL, ATTEMPT):
            written.pop(name, None)
        began_s = [written[name] for name in ("job.json", STEP) if name in written] or [
            *written.values()
        ]
        if not written:
            return 0.0
        unseen_s = BEAT_S if HEARTBEAT in written else 0.0
        return max(written.values()) - min(began_s) + unseen_s

    def errors(self, world_size: int) -> tuple[RankError, ...]:
        """Return the exceptions that ended ranks, in rank order; skip files that cannot be read."""
        found = []
        for rank in range(world_size):
            try:
                table = read_json(self.path / f"rank-{rank}.error.json")
                if table is not None:
                    texts = {key: str(table[key]) for key in ("type", "message", "phase")}
                    found.append(RankError(rank=rank, **texts))
            except (ValueError, KeyError, TypeError):
                continue  # written while the disk was full: the log and the exit status remain
        return tuple(found)

    def remove_unfinished(self) -> None:
        """Remove files that processes of an attempt that is over were killed in writing."""
        for path in self.path.glob(".*"):
            if UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def write_outcome(self, outcome: Outcome) -> None:
        """Put the outcome on disk, before it is reported."""
        kind = "measurement" if isinstance(outcome, Measurement) else "failure"
        table = {"run_folder": str(self.path.absolute()), "kind": kind, "outcome": vars(outcome)}
        write_json(self.path / "outcome.json", table)

    def outcome(self) -> Outcome | None:
        """Return the outcome that `write_outcome` left; None where there is none, or none that a
        store can hold.
        """
        try:
            found = self.own("outcome.json")
            if found is None:
                return None
            outcome: Outcome = _adapter(found["kind"]).validate_json(
                json.dumps(found["outcome"]), strict=True
            )
            refuse_unstorable(outcome)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return outcome


@functools.cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # an agent on a node does not need it

    return TypeAdapter(Failure if kind == "failure" else Measurement)


class StepCounter:
    """Follows `progress.jsonl` while it grows."""

    def __init__(self, folder: Path) -> None:
        self._lines = LineReader(folder / "progress.jsonl")
        self.steps_done = 0
        self.last_step_s: float | None = None
        self.is_built = False

    def advance(self) -> bool:
        """Read what is new, and return whether there was anything."""
        lines = self._lines.new_lines()
        for line in lines:
            try:
                written = json.loads(line)
                event = written["event"]
                if event == "step":
                    self.last_step_s = float(written["time_s"])
            except (ValueError, KeyError, TypeError):
                continue  # cut short by a full disk or a kill
            self.steps_done += event == "step"
            self.is_built = self.is_built or event == "built"
        return bool(lines)
