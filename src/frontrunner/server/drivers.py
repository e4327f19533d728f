"""Processes that outlive the service: drivers of campaigns, and replays. Start, watch and stop
them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO, Any, Literal, cast

import psutil

from frontrunner.config.settings import STORE_VARIABLE, run_root
from frontrunner.evaluators.nodes.child_processes import kill_group
from frontrunner.evaluators.runs.files import read_end, read_json, write_json
from frontrunner.evaluators.runs.training import ReplayStopped
from frontrunner.evaluators.trainer.job import complete_steps
from frontrunner.results.process_identity import USER_VARIABLE, acting_user
from frontrunner.results.records import utc_now
from frontrunner.results.redaction import without_secrets
from frontrunner.results.status import ActiveDriver, active_drivers, is_copied
from frontrunner.results.store import Store
from frontrunner.search.budget import REQUESTED
from frontrunner.server.auth import TOKEN_VARIABLE, Role
from frontrunner.server.errors import Conflict, Forbidden, TooMany, from_problem
from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError, NotFound
from frontrunner.stop_signals import CANCEL_SIGNAL, PAUSE_SIGNAL

CHILD = "frontrunner.server.child"
OUR_MODULES = frozenset({"frontrunner", "frontrunner.cli", CHILD})
CLOCK_TOLERANCE_S = 1.0
Word = Literal["pause", "stop", "cancel"]
SIGNALS: dict[Word, Signals] = {"pause": PAUSE_SIGNAL, "stop": SIGTERM, "cancel": CANCEL_SIGNAL}


class Starter:
    """Starts children in sessions of their own, so that signals to the service do not reach
    them.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._store_url, self._answer_s = settings.store, settings.limits.launch_s
        self._log_folder = run_root(settings.store) / "service"

    def start(
        self, arguments: Sequence[str], body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Start a child; return its report, with its `pid`, or raise the reported error. Later
        output goes to a log.
        """
        self._log_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._log_folder / f"{arguments[0]}-{uuid.uuid4().hex}.log"
        environment = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}
        with log.open("xb") as output:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment | {STORE_VARIABLE: self._store_url, USER_VARIABLE: acting_user()},
                start_new_session=True,
            )
        threading.Thread(target=child.wait, daemon=True).start()  # lest it stays a zombie
        stdin, stdout = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
        with stdin, stdout:
            with suppress(BrokenPipeError):  # it has ended; its report, if any, is the reason
                stdin.write(json.dumps(body or {}).encode())
                stdin.close()
            if not select.select([stdout], [], [], self._answer_s)[0]:
                kill_group(child.pid)
                reason = f"the child process reported nothing within {self._answer_s:g} s"
                raise FrontrunnerError(reason, hint=f"see {log}")
            report = stdout.readline()
        if not report:
            raise FrontrunnerError(
                "the child process ended without a report", hint="see the service's logs"
            )
        found: dict[str, Any] = json.loads(report)
        if "error" in found:
            raise from_problem(found["error"])
        return found | {"pid": child.pid}


def our_process(pid: int, *, since: str | None) -> psutil.Process | None:
    """Return the process with this id if it is a `frontrunner` of this user that began before
    `since` (ISO 8601).

    `since` None means that the id is known not to have been reused.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            began_s, owner, command = process.create_time(), process.uids().real, process.cmdline()
    except psutil.Error:
        return None
    is_later = (
        since is not None
        and began_s > datetime.fromisoformat(since).timestamp() + CLOCK_TOLERANCE_S
    )
    is_ours = any(flag == "-m" and name in OUR_MODULES for flag, name in pairwise(command)) or any(
        Path(word).name == "frontrunner" for word in command[:2]
    )
    return process if is_ours and not is_later and owner == os.getuid() else None


class Drivers:
    """The drivers of one store."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._most = settings.limits.running_campaigns
        self._starter = Starter(settings)
        self._starting = threading.Lock()
        """Held until a new driver holds its campaign, so that the next request finds it."""

    def launch(self, campaign: Mapping[str, object] | Path) -> dict[str, Any]:
        """Start the driver of a new campaign, a file or its sections; return its `campaign` and
        `pid`.
        """
        with self._starting:
            self._require_room()
            if isinstance(campaign, Path):
                return self._starter.start(["launch", str(campaign.absolute())])
            return self._starter.start(["launch"], campaign)

    def resume(self, campaign: str) -> dict[str, Any]:
        """Start a driver that continues a campaign; raise `Conflict` where another one drives it.

        A copied campaign may hold commands of strangers: raise `Forbidden`.
        """
        record = self._store.campaign(campaign)
        name = record.name
        if is_copied(self._store, record):
            hint = f"whoever runs the service may, by the command line: frontrunner resume {name}"
            raise Forbidden(
                f"campaign {name} was copied from another store: no request runs what it says",
                hint=hint,
            )
        with self._starting:
            seen = self._holder(name)
            if seen is not None:
                raise Conflict(
                    f"campaign {name} is driven by {seen.host}:{seen.pid} since {seen.since}",
                    hint=f"to replace a hung driver: frontrunner resume {name} --take-over",
                )
            self._require_room()
            return self._starter.start(["resume", name])

    def tell(self, campaign: str, word: Word) -> dict[str, Any]:
        """Signal a campaign's driver to pause, stop or cancel; raise `Conflict` where none can be
        reached.
        """
        name = self._store.campaign(campaign).name
        seen = self._holder(name)
        if seen is None:
            raise Conflict(f"campaign {name} is not running, so there is nothing to {word}")
        if not seen.is_here:
            raise Conflict(
                f"campaign {name} is driven by process {seen.pid} on {seen.host}, which this"
                " service cannot reach",
                hint=f"there: kill -{SIGNALS[word].name.removeprefix('SIG')} {seen.pid}",
            )
        # The store's clock may be a database server's.
        since = datetime.fromisoformat(seen.since) + (utc_now() - self._store.now())
        process = our_process(seen.pid, since=None if seen.is_certain else since.isoformat())
        if process is None:
            raise Conflict(
                f"process {seen.pid}, which drives campaign {name}, is not a frontrunner command of"
                " this user"
            )
        self._store.note(name, REQUESTED, word=word)
        try:
            process.send_signal(SIGNALS[word])  # psutil checks again that the id was not reused
        except psutil.NoSuchProcess:
            raise Conflict(f"the driver of campaign {name} has just ended") from None
        return {"campaign": name, "told": word, "pid": seen.pid}

    def _holder(self, name: str) -> ActiveDriver | None:
        return next(
            (
                seen
                for seen in active_drivers(self._store)
                if seen.campaign == name and seen.is_live
            ),
            None,
        )

    def _require_room(self) -> None:
        running = {(seen.host, seen.pid) for seen in active_drivers(self._store) if seen.is_live}
        if len(running) >= self._most:
            raise TooMany(
                f"{len(running)} campaigns are running: at most {self._most} may",
                hint="stop one, or wait",
            )


STARTED = "service.json"
MOST_PROGRESS_BYTES = 65_536
LAST_EVENTS = 100
RATED_STEPS = 20


class ReplayState(StrEnum):
    """State of a replay. Starting an unfinished one again continues from its newest checkpoint."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # by a person
    FAILED = "failed"  # `Replay.why` is the reason
    CUT_OFF = "cut off"  # its process was killed


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One replay. `last_events` are the newest lines of its progress, oldest first; `log_tail` the
    end of its log.

    `step_time_s` is the median of the newest `RATED_STEPS` steps, `tokens_per_s` the rate at that,
    `evaluation_loss` the one after `evaluation_step`; all are None before the first, and losses
    where they were not finite. `checkpoint_step` is the step of the newest complete checkpoint, 0
    where there is none.
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

    def seen_by(self, role: Role) -> Replay:
        """Return what a role may see of it: the log, which holds whatever the nodes print, is for
        operators.
        """
        return self if role is Role.OPERATOR else replace(self, log_tail="")


@contextmanager
def recording_end(path: Path, started: Mapping[str, object]) -> Iterator[None]:
    """Record in a replay's file that it was stopped, or why it failed."""
    try:
        yield
    except (KeyboardInterrupt, ReplayStopped):
        write_json(path, {**started, "ended": ReplayState.STOPPED.value})
    except Exception as error:
        why = (
            error.message
            if isinstance(error, FrontrunnerError)
            else f"{type(error).__name__}: {error}"
        )
        write_json(
            path,
            {
                **started,
                "ended": ReplayState.FAILED.value,
                "why": why.partition("\n")[0].rstrip(":"),
            },
        )
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
                raise TooMany(
                    f"{len(running)} replays are running: at most"
                    f" {self._limits.running_replays} may"
                )
            if any(replay.recipe_id.startswith(str(body["recipe_id"])) for replay in running):
                raise Conflict(f"a replay of recipe {body['recipe_id']} is running")
            report = self._starter.start(["replay"], {**body, "root": str(self._root)})
        return self.one(report["recipe_id"])

    def all(self) -> list[Replay]:
        """Return every replay that a service has started, by recipe id."""
        return [self.one(path.parent.name) for path in sorted(self._root.glob(f"*/{STARTED}"))]

    def one(self, recipe_id: str) -> Replay:
        """Return one replay, by its recipe's whole id; raise `NotFound` where the service has
        started none.
        """
        folder, started = self._root / recipe_id, self._started(recipe_id)
        events = _last_events(folder / "progress.jsonl")
        steps = [event for event in events if event.get("event") == "step"]
        step: Mapping[str, Any] = steps[-1] if steps else {}
        evaluated: Mapping[str, Any] = next(
            (one for one in reversed(events) if one.get("event") == "evaluation"), {}
        )
        step_time_s = (
            statistics.median(one["time_s"] for one in steps[-RATED_STEPS:]) if steps else None
        )
        process = (
            None if "ended" in started else our_process(started["pid"], since=started["since"])
        )
        if "ended" in started:
            state = ReplayState(started["ended"])
        elif process is not None:
            state = ReplayState.RUNNING
        else:
            state = (
                ReplayState.FINISHED if (folder / "result.json").exists() else ReplayState.CUT_OFF
            )
        log = read_end(self._root, folder / "replay.log", most_bytes=self._limits.log_bytes)
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
            log_tail=without_secrets(log or ""),
        )

    def _started(self, recipe_id: str) -> dict[str, Any]:
        found = read_json(self._root / recipe_id / STARTED) if recipe_id.isalnum() else None
        if not isinstance(found, dict):
            raise NotFound(f"no replay of recipe {recipe_id} was started by this service")
        return found

    def checkpoint_step(self, recipe_id: str) -> int:
        """Return the step of a recipe's newest complete checkpoint, perhaps of `frontrunner
        replay`; 0 without one.
        """
        return max(complete_steps(self._root / recipe_id / "checkpoints"), default=0)

    def stop(self, recipe_id: str) -> Replay:
        """Have a replay store a checkpoint and end, the second time at once. Raises `Conflict`
        unless it is running.
        """
        found = self.one(recipe_id)
        process = (
            our_process(found.pid, since=self._started(recipe_id)["since"]) if found.pid else None
        )
        if process is None:
            raise Conflict(f"the replay of recipe {recipe_id} is not running")
        process.send_signal(signal.SIGTERM)
        return found


def _last_events(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_PROGRESS_BYTES))
            lines = file.read().splitlines()[-LAST_EVENTS:]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):  # truncated, by where reading began or by a kill
            found.append(json.loads(line))
    return [event for event in found if isinstance(event, dict)]
