"""Replays: started, watched by the files that they leave, and stopped.

A replay that the service starts keeps its files in frontrunner-runs/replays/RECIPE_ID, as the command does, and in
`service.json` there its process: so a service that was restarted finds it again.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.files import read_json
from frontrunner.results.clock import timestamp, utc_now
from frontrunner.results.secret_values import without_secrets
from frontrunner.results.store import Store
from frontrunner.service.errors import Conflict, TooMany
from frontrunner.service.logs import read_end
from frontrunner.service.processes import Starter, our_process
from frontrunner.service.settings import ServiceSettings
from frontrunner.settings import run_root
from frontrunner.spaces.errors import NotFound

STARTED = "service.json"
MOST_PROGRESS_BYTES = 65_536
LAST_EVENTS = 100


class ReplayState(StrEnum):
    """Where a replay stands."""

    RUNNING = "running"
    FINISHED = "finished"
    ENDED = "ended"  # before its last step: stopped, killed or failed; the same call goes on


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One replay. `last_events` are the newest lines of its progress, oldest first; `log_tail` the end of its log."""

    recipe_id: str
    state: ReplayState
    pid: int | None
    steps: int
    step: int
    loss: float | None
    last_events: tuple[Mapping[str, Any], ...]
    log_tail: str


def started_now(steps: int) -> dict[str, object]:
    """What a replay's process says of itself."""
    return {"pid": os.getpid(), "since": timestamp(utc_now()), "steps": steps}


class Replays:
    """The replays of one service, in the folder beside the store."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._most = settings.limits.running_replays
        self._log_bytes = settings.limits.log_bytes
        self._root = run_root(settings.store) / "replays"
        self._starter = Starter(settings.store, self._root.parent / "service", settings.limits.launch_s)
        self._starting = threading.Lock()

    def start(self, body: Mapping[str, object]) -> Replay:
        """Start a replay, once it was found possible; going on from the newest checkpoint of an earlier try."""
        with self._starting:
            running = [replay for replay in self.all() if replay.state is ReplayState.RUNNING]
            if len(running) >= self._most:
                raise TooMany(f"{len(running)} replays are running: at most {self._most} may")
            if any(replay.recipe_id.startswith(str(body["recipe_id"])) for replay in running):
                raise Conflict(f"a replay of recipe {body['recipe_id']} is running")
            answer = self._starter.start(["replay"], {**body, "root": str(self._root)})
        return self.one(answer["recipe_id"])

    def all(self) -> list[Replay]:
        """Every replay that a service has started, by recipe id."""
        return self.beginning_with("")

    def beginning_with(self, prefix: str) -> list[Replay]:
        """The replays of recipes whose ids begin like this, by recipe id; `prefix` has hexadecimal digits alone."""
        folders = sorted(path.parent.name for path in self._root.glob(f"{prefix}*/{STARTED}"))
        return [self.one(recipe_id) for recipe_id in folders]

    def one(self, recipe_id: str) -> Replay:
        """One replay, by its recipe's whole id; raises `NotFound` where the service has started none."""
        self._starter.running_pids()
        folder = self._root / recipe_id
        started = read_json(folder / STARTED) if recipe_id.isalnum() else None
        if not isinstance(started, dict):
            raise NotFound(f"no replay of recipe {recipe_id} was started by this service")
        events = _last_events(folder / "progress.jsonl")
        steps = [event for event in events if event.get("event") == "step"]
        process = our_process(started["pid"], since=started["since"])
        runs = process is not None and process.status() != psutil.STATUS_ZOMBIE
        has_result = (folder / "result.json").exists()
        return Replay(
            recipe_id=recipe_id,
            state=ReplayState.RUNNING if runs else ReplayState.FINISHED if has_result else ReplayState.ENDED,
            pid=started["pid"] if runs else None,
            steps=started["steps"],
            step=steps[-1]["step"] if steps else 0,
            loss=steps[-1].get("loss") if steps else None,
            last_events=tuple(events),
            log_tail=without_secrets(read_end(self._root, folder / "replay.log", most_bytes=self._log_bytes) or ""),
        )

    def stop(self, recipe_id: str) -> Replay:
        """End a replay's ranks; its checkpoints stay. Raises `Conflict` for one that is not running."""
        found = self.one(recipe_id)
        started = read_json(self._root / recipe_id / STARTED)
        process = our_process(found.pid, since=started["since"]) if found.pid and isinstance(started, dict) else None
        if process is None:
            raise Conflict(f"the replay of recipe {recipe_id} is not running")
        process.send_signal(signal.SIGTERM)
        return found


def _last_events(path: Path) -> list[dict[str, Any]]:
    """The newest whole lines of a progress file that are events."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_PROGRESS_BYTES))
            lines = deque(file.read().splitlines(keepends=True), maxlen=LAST_EVENTS)
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # cut short, by where reading began or by a kill
            continue
        if isinstance(event, dict):
            found.append(event)
    return found
