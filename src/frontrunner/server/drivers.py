"""Processes that outlive the service: start them, and signal drivers of campaigns to pause, stop or cancel."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO, Any, Literal, cast

import psutil

from frontrunner.config.settings import STORE_VARIABLE, run_root
from frontrunner.evaluators.probe.processes import kill_group
from frontrunner.results.active_drivers import ActiveDriver, active_drivers
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import utc_now
from frontrunner.results.store import Store
from frontrunner.server.auth import TOKEN_VARIABLE
from frontrunner.server.errors import Conflict, TooMany, from_table
from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.stop_signals import CANCEL_SIGNAL, PAUSE_SIGNAL

CHILD = "frontrunner.server.child"
OUR_MODULES = frozenset({"frontrunner", "frontrunner.cli", CHILD})
CLOCK_TOLERANCE_S = 1.0
Word = Literal["pause", "stop", "cancel"]
SIGNALS: dict[Word, Signals] = {"pause": PAUSE_SIGNAL, "stop": SIGTERM, "cancel": CANCEL_SIGNAL}


class Starter:
    """Starts children in sessions of their own, so that signals to the service do not reach them."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._store_url, self._answer_s = settings.store, settings.limits.launch_s
        self._log_folder = run_root(settings.store) / "service"
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Start a child; return its report, with its `pid`, or raise the reported error. Later output goes to a log."""
        self.running_pids()
        self._log_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._log_folder / f"{arguments[0]}-{uuid.uuid4().hex}.log"
        environment = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}
        with log.open("xb") as output:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment | {STORE_VARIABLE: self._store_url},
                start_new_session=True,
            )
        self._children.append(child)
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
            raise FrontrunnerError("the child process ended without a report", hint="see the service's logs")
        found: dict[str, Any] = json.loads(report)
        if "error" in found:
            raise from_table(found["error"])
        return found | {"pid": child.pid}

    def running_pids(self) -> set[int]:
        """Return the children of this service that still run, and collect those that have ended."""
        self._children = [child for child in self._children if child.poll() is None]
        return {child.pid for child in self._children}


def our_process(pid: int, *, since: str | None) -> psutil.Process | None:
    """Return the process with this id if it is a `frontrunner` of this user that began before `since` (ISO 8601).

    `since` None means that the id is known not to have been reused.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            began_s, owner, command = process.create_time(), process.uids().real, process.cmdline()
    except psutil.Error:
        return None
    is_later = since is not None and began_s > datetime.fromisoformat(since).timestamp() + CLOCK_TOLERANCE_S
    is_ours = any(flag == "-m" and name in OUR_MODULES for flag, name in pairwise(command)) or any(
        Path(word).name == "frontrunner" for word in command[:2]
    )
    return process if is_ours and not is_later and owner == os.getuid() else None


class Drivers:
    """The drivers of one store; only those started here are remembered, to count them."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._most = settings.limits.running_campaigns
        self._starter = Starter(settings)
        self._starting = threading.Lock()
        """Held until a new driver holds its campaign, so that the next request finds it."""

    def launch(self, body: dict[str, object]) -> dict[str, Any]:
        """Start the driver of a new campaign; return its `campaign` and `pid`."""
        with self._starting:
            self._require_room()
            return self._starter.start(["launch"], body)

    def resume(self, campaign: str) -> dict[str, Any]:
        """Start a driver that continues a campaign; raise `Conflict` where another one drives it."""
        name = self._store.campaign(campaign).name
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
        """Signal a campaign's driver to pause, stop or cancel; raise `Conflict` where none can be reached."""
        name = self._store.campaign(campaign).name
        seen = self._holder(name)
        if seen is None:
            raise Conflict(f"campaign {name} is not running, so there is nothing to {word}")
        if not seen.is_here:
            raise Conflict(
                f"campaign {name} is driven by process {seen.pid} on {seen.host}, which this service cannot reach",
                hint=f"there: kill -{SIGNALS[word].name.removeprefix('SIG')} {seen.pid}",
            )
        # The store's clock may be a database server's.
        since = datetime.fromisoformat(seen.since) + (utc_now() - self._store.now())
        process = our_process(seen.pid, since=None if seen.is_certain else since.isoformat())
        if process is None:
            raise Conflict(
                f"process {seen.pid}, which drives campaign {name}, is not a frontrunner command of this user"
            )
        try:
            process.send_signal(SIGNALS[word])  # psutil checks again that the id was not reused
        except psutil.NoSuchProcess:
            raise Conflict(f"the driver of campaign {name} has just ended") from None
        return {"campaign": name, "told": word, "pid": seen.pid}

    def _holder(self, name: str) -> ActiveDriver | None:
        return next((seen for seen in active_drivers(self._store) if seen.campaign == name and seen.is_live), None)

    def _require_room(self) -> None:
        running = {(seen.host, seen.pid) for seen in active_drivers(self._store) if seen.is_live}
        running |= {(this_host(), pid) for pid in self._starter.running_pids()}
        if len(running) >= self._most:
            raise TooMany(f"{len(running)} campaigns are running: at most {self._most} may", hint="stop one, or wait")
