"""Replays: start, watch and stop them. Each has its files in frontrunner-runs/replays/RECIPE_ID."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from frontrunner.config.settings import run_root
from frontrunner.evaluators.probe.files import read_json, write_json
from frontrunner.results.records import timestamp, utc_now
from frontrunner.results.redaction import without_secrets
from frontrunner.server.drivers import Starter, our_process
from frontrunner.server.errors import Conflict, TooMany
from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError, NotFound
from frontrunner.store import read_end

STARTED = "service.json"
MOST_PROGRESS_BYTES = 65_536
LAST_EVENTS = 100
RATED_STEPS = 20
CHECKPOINT = re.compile(r"step-(\d{8,})")


class ReplayState(StrEnum):
    """State of a replay. Starting an unfinished one again continues from its newest checkpoint."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # by a person
    FAILED = "failed"  # `Replay.why` is the reason
    CUT_OFF = "cut off"  # its process was killed


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One replay. `last_events` are the newest lines of its progress, oldest first; `log_tail` the end of its log.

    `step_time_s` is the median of the newest `RATED_STEPS` steps, `tokens_per_s` the rate at that, `evaluation_loss`
    the one after `evaluation_step`; all are None before the first, and losses where they were not finite.
    `checkpoint_step` is the step of the newest complete checkpoint, 0 where there is none.
    """

    recipe_id: str
    state: ReplayState
    why: str
    pid: int | None
    steps: int
    step: int
    loss: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    evaluation_step: int | None
    evaluation_loss: float | None
    checkpoint_step: int
    last_events: tuple[Mapping[str, Any], ...]
    log_tail: str


def started_now(steps: int) -> dict[str, object]:
    """Return what a replay's process records of itself."""
    return {"pid": os.getpid(), "since": timestamp(utc_now()), "steps": steps}


@contextmanager
def recording_end(path: Path, started: Mapping[str, object]) -> Iterator[None]:
    """Record in a replay's file that it was stopped, or why it failed."""
    try:
        yield
    except KeyboardInterrupt:
        write_json(path, {**started, "ended": ReplayState.STOPPED.value})
    except Exception as error:
        why = error.message if isinstance(error, FrontrunnerError) else f"{type(error).__name__}: {error}"
        write_json(path, {**started, "ended": ReplayState.FAILED.value, "why": why.partition("\n")[0].rstrip(":")})
        raise


class Replays:
    """The replays of one service, in the store's run folder."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._limits = settings.limits
        self._root = run_root(settings.store) / "replays"
        self._starter = Starter(settings)
        self._starting = threading.Lock()

    def start(self, body: Mapping[str, object]) -> Replay:
        """Start a replay, from the newest checkpoint of an earlier one."""
        with self._starting:
            running = [replay for replay in self.all() if replay.state is ReplayState.RUNNING]
            if len(running) >= self._limits.running_replays:
                raise TooMany(f"{len(running)} replays are running: at most {self._limits.running_replays} may")
            if any(replay.recipe_id.startswith(str(body["recipe_id"])) for replay in running):
                raise Conflict(f"a replay of recipe {body['recipe_id']} is running")
            report = self._starter.start(["replay"], {**body, "root": str(self._root)})
        return self.one(report["recipe_id"])

    def all(self) -> list[Replay]:
        """Return every replay that a service has started, by recipe id."""
        return [self.one(path.parent.name) for path in sorted(self._root.glob(f"*/{STARTED}"))]

    def one(self, recipe_id: str) -> Replay:
        """Return one replay, by its recipe's whole id; raise `NotFound` where the service has started none."""
        self._starter.running_pids()
        folder, started = self._root / recipe_id, self._started(recipe_id)
        events = _last_events(folder / "progress.jsonl")
        steps = [event for event in events if event.get("event") == "step"]
        step: Mapping[str, Any] = steps[-1] if steps else {}
        evaluated: Mapping[str, Any] = next((one for one in reversed(events) if one.get("event") == "evaluation"), {})
        step_time_s = statistics.median(one["time_s"] for one in steps[-RATED_STEPS:]) if steps else None
        state = _state(started, has_result=(folder / "result.json").exists())
        return Replay(
            recipe_id=recipe_id,
            state=state,
            why=without_secrets(str(started.get("why", ""))),
            pid=started["pid"] if state is ReplayState.RUNNING else None,
            steps=started["steps"],
            step=step.get("step", 0),
            loss=step.get("loss"),
            step_time_s=step_time_s,
            tokens_per_s=step["tokens"] / step_time_s if step_time_s else None,
            evaluation_step=evaluated.get("step"),
            evaluation_loss=evaluated.get("loss"),
            checkpoint_step=self.checkpoint_step(recipe_id),
            last_events=tuple(events),
            log_tail=without_secrets(
                read_end(self._root, folder / "replay.log", most_bytes=self._limits.log_bytes) or ""
            ),
        )

    def _started(self, recipe_id: str) -> dict[str, Any]:
        found = read_json(self._root / recipe_id / STARTED) if recipe_id.isalnum() else None
        if not isinstance(found, dict):
            raise NotFound(f"no replay of recipe {recipe_id} was started by this service")
        return found

    def checkpoint_step(self, recipe_id: str) -> int:
        """Return the step of a recipe's newest complete checkpoint, perhaps of `frontrunner replay`; 0 without one."""
        names = (path.name for path in self._root.glob(f"{recipe_id}/checkpoints/step-*"))
        return max((int(found[1]) for name in names if (found := CHECKPOINT.fullmatch(name))), default=0)

    def stop(self, recipe_id: str) -> Replay:
        """End a replay's ranks; its checkpoints stay. Raises `Conflict` unless it is running."""
        found = self.one(recipe_id)
        process = our_process(found.pid, since=self._started(recipe_id)["since"]) if found.pid else None
        if process is None:
            raise Conflict(f"the replay of recipe {recipe_id} is not running")
        process.send_signal(signal.SIGTERM)
        return found


def _state(started: Mapping[str, Any], *, has_result: bool) -> ReplayState:
    if "ended" in started:
        return ReplayState(started["ended"])
    process = our_process(started["pid"], since=started["since"])
    if process is not None and process.status() != psutil.STATUS_ZOMBIE:
        return ReplayState.RUNNING
    return ReplayState.FINISHED if has_result else ReplayState.CUT_OFF


def _last_events(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_PROGRESS_BYTES))
            lines = file.read().splitlines()[-LAST_EVENTS:]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # truncated, by where reading began or by a kill
            continue
        if isinstance(event, dict):
            found.append(event)
    return found
