"""What one attempt leaves on disk, and how it is read back.

job.json             what the ranks were asked to do
progress.jsonl       a line a step, by rank 0
rank-N.log           the rank's output
rank-N.error.json    the exception that ended the rank
result.json          what the ranks measured, by rank 0
outcome.json         the outcome, as it is handed to the driver

`job.json`, `result.json` and `outcome.json` name the folder that they were written for. What names another was copied
here, and is of another attempt.
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
from frontrunner.evaluators.probe.files import parsed_json, read_json, tail, write_json
from frontrunner.results.outcome import Failure, Measurement, Outcome, refuse_unstorable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

UNFINISHED = re.compile(r"\..+\.json\.\d+")
"""What a JSON file is called until it is whole: `evaluators/files.py` and the trainer's own `files.py`."""
CANCEL = "cancel"
"""A flag beside those files, where ranks are on other nodes: see `dispatch/step.py`."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one attempt."""

    path: Path

    @property
    def job(self) -> Path:
        """What the ranks were asked to do."""
        return self.path / "job.json"

    def log(self, rank: int) -> Path:
        """One rank's output."""
        return self.path / f"rank-{rank}.log"

    def result(self) -> dict[str, Any] | None:
        """What the ranks measured, or None; raises ValueError for a damaged file."""
        found = read_json(self.path / "result.json")
        if found is not None and not isinstance(found, dict):
            raise ValueError(f"{self.path / 'result.json'} holds no table")
        return found

    def is_meant(self, found: Mapping[str, Any]) -> bool:
        """Whether a result or an outcome names this folder; those of earlier versions name none, and are taken."""
        named = found.get("run_folder")
        return named is None or (isinstance(named, str) and Path(named).absolute() == self.path.absolute())

    def busy_seconds(self) -> float:
        """Wall seconds from the order to the newest file: what an attempt took whose driver did not live to tell.

        A wait for the fork server to warm up is in it, and the flag by which a later driver ends ranks is not.
        0 where the folder holds no order.
        """
        written = [path.stat().st_mtime for path in self.path.glob("*") if path.is_file() and path.name != CANCEL]
        if not written or not self.job.exists():
            return 0.0
        return max(0.0, max(written) - self.job.stat().st_mtime)

    def log_tails(self, world_size: int) -> dict[int, str]:
        """The end of each rank's log."""
        return {rank: tail(self.log(rank)) for rank in range(world_size)}

    def errors(self, world_size: int) -> tuple[RankError, ...]:
        """The exceptions that ended ranks, in rank order; a file that cannot be read is left out."""
        found = []
        for rank in range(world_size):
            try:
                table = read_json(self.path / f"rank-{rank}.error.json")
                if table is not None:
                    words = {key: _text(table[key]) for key in ("type", "message", "phase")}
                    found.append(RankError(rank=rank, **words))
            except (ValueError, KeyError, TypeError):
                continue  # written while the disk was full: the log and the exit status remain
        return tuple(found)

    def clear(self) -> None:
        """Remove what processes of an attempt that is over were killed in writing: files not yet renamed."""
        for path in self.path.glob(".*"):
            if UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def write_outcome(self, outcome: Outcome) -> None:
        """Put the outcome on disk before anybody is told of it."""
        kind = "measurement" if isinstance(outcome, Measurement) else "failure"
        told = {"run_folder": str(self.path.absolute()), "kind": kind, "outcome": asdict(outcome)}
        write_json(self.path / "outcome.json", told)

    def outcome(self) -> Outcome | None:
        """The outcome that `write_outcome` left here; None where there is none, or none that a store can hold."""
        try:
            found = read_json(self.path / "outcome.json")
            return _outcome_of(found) if isinstance(found, dict) and self.is_meant(found) else None
        except (ValueError, KeyError, TypeError):
            return None


@functools.cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """Made when it is first needed: an agent on a node does without, and need not have the library."""
    from pydantic import TypeAdapter

    return TypeAdapter(Failure if kind == "failure" else Measurement)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {type(value).__name__}")
    return value


def _outcome_of(found: Mapping[str, Any]) -> Outcome:
    """The outcome of a parsed `outcome.json`; raises ValueError, KeyError or TypeError for any other content."""
    outcome: Outcome = _adapter(str(found["kind"])).validate_json(json.dumps(found["outcome"]), strict=True)
    refuse_unstorable(outcome)
    return outcome


class StepCounter:
    """Follows `progress.jsonl` while it grows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "progress.jsonl"
        self._offset = 0
        self.steps_done = 0
        self.is_built = False

    def advance(self) -> bool:
        """Read what is new; whether anything was."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = _event(line)
            self.steps_done += event == "step"
            self.is_built = self.is_built or event == "built"
        return bool(whole)


def _event(line: bytes) -> str | None:
    """The event that a line tells of; None for a line that a full disk or a kill has cut short."""
    try:
        return str(parsed_json(line)["event"])
    except (ValueError, KeyError, TypeError):
        return None
