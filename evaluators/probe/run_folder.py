"""Files of one attempt.

job.json             what the ranks have to do
progress.jsonl       one line per step, by rank 0
rank-N.log           the rank's output
rank-N.error.json    the exception that ended the rank
result.json          what the ranks measured, by rank 0
outcome.json         the outcome, as returned to the driver

`job.json`, `result.json` and `outcome.json` name the folder that they were written for. A file that names another was
copied here, and belongs to another attempt.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.probe.classify import RankError
from frontrunner.evaluators.probe.files import LineReader, parse_json, read_json, tail, write_json
from frontrunner.results.outcome import Failure, Measurement, Outcome, refuse_unstorable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

UNFINISHED = re.compile(r"\..+\.json\.\d+")
"""Name of a JSON file before it is whole: `files.write_bytes` and the trainer's `files.py`."""
CANCEL = "cancel"
"""A flag next to those files, where ranks are on other nodes: see `cluster/step.py`."""


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

    def result(self) -> dict[str, Any] | None:
        """Return what the ranks measured, or None; raise ValueError for a damaged file."""
        found = read_json(self.path / "result.json")
        if found is not None and not isinstance(found, dict):
            raise ValueError(f"{self.path / 'result.json'} holds no table")
        return found

    def owns(self, found: Mapping[str, Any]) -> bool:
        """Return whether a result or an outcome is for this folder; those of earlier versions name none."""
        named = found.get("run_folder")
        return named is None or (isinstance(named, str) and Path(named).absolute() == self.path.absolute())

    def busy_seconds(self) -> float:
        """Return wall seconds from the order to the newest file: the time of an attempt whose driver died.

        It includes a wait for the fork server to warm up, and not the flag by which a later driver ends ranks. 0 where
        the folder holds no order.
        """
        written = [path.stat().st_mtime for path in self.path.glob("*") if path.is_file() and path.name != CANCEL]
        if not written or not self.job.exists():
            return 0.0
        return max(0.0, max(written) - self.job.stat().st_mtime)

    def log_tails(self, world_size: int) -> dict[int, str]:
        """Return the end of each rank's log."""
        return {rank: tail(self.log(rank)) for rank in range(world_size)}

    def errors(self, world_size: int) -> tuple[RankError, ...]:
        """Return the exceptions that ended ranks, in rank order; skip files that cannot be read."""
        found = []
        for rank in range(world_size):
            try:
                table = read_json(self.path / f"rank-{rank}.error.json")
                if table is not None:
                    texts = {key: _text(table[key]) for key in ("type", "message", "phase")}
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
        table = {"run_folder": str(self.path.absolute()), "kind": kind, "outcome": asdict(outcome)}
        write_json(self.path / "outcome.json", table)

    def outcome(self) -> Outcome | None:
        """Return the outcome that `write_outcome` left; None where there is none, or none that a store can hold."""
        try:
            found = read_json(self.path / "outcome.json")
            if not isinstance(found, dict) or not self.owns(found):
                return None
            adapter = _adapter(str(found["kind"]))
            outcome: Outcome = adapter.validate_json(json.dumps(found["outcome"]), strict=True)
            refuse_unstorable(outcome)
        except (ValueError, KeyError, TypeError):
            return None
        return outcome


@functools.cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # an agent on a node does not need it

    return TypeAdapter(Failure if kind == "failure" else Measurement)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {type(value).__name__}")
    return value


class StepCounter:
    """Follows `progress.jsonl` while it grows."""

    def __init__(self, folder: Path) -> None:
        self._lines = LineReader(folder / "progress.jsonl")
        self.steps_done = 0
        self.is_built = False

    def advance(self) -> bool:
        """Read what is new, and return whether there was anything."""
        lines = self._lines.new_lines()
        for line in lines:
            event = _event(line)
            self.steps_done += event == "step"
            self.is_built = self.is_built or event == "built"
        return bool(lines)


def _event(line: bytes) -> str | None:
    """Return a line's event; None for a line that a full disk or a kill has cut short."""
    try:
        return str(parse_json(line)["event"])
    except (ValueError, KeyError, TypeError):
        return None
