"""Drivers of campaigns: start them, find them by the store's leases, and signal them to pause, stop or cancel."""

from __future__ import annotations

import signal
import threading
from datetime import datetime
from typing import Any, Literal

import psutil

from frontrunner.config.settings import run_root
from frontrunner.results.active_drivers import ActiveDriver, active_drivers
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import utc_now
from frontrunner.results.store import Store
from frontrunner.server.errors import Conflict, TooMany
from frontrunner.server.processes import Starter, our_process
from frontrunner.server.settings import ServiceSettings
from frontrunner.stop_signals import CANCEL_SIGNAL, PAUSE_SIGNAL

Word = Literal["pause", "stop", "cancel"]
SIGNALS: dict[Word, signal.Signals] = {"pause": PAUSE_SIGNAL, "stop": signal.SIGTERM, "cancel": CANCEL_SIGNAL}


class Drivers:
    """The drivers of one store; only those started here are remembered, to count them."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._most = settings.limits.running_campaigns
        log_folder = run_root(settings.store) / "service"
        self._starter = Starter(settings.store, log_folder, settings.limits.launch_s)
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
            if seen is not None and seen.is_live:
                raise Conflict(
                    f"campaign {name} is driven by {seen.host}:{seen.pid} since {seen.since}",
                    hint=f"to replace a hung driver: frontrunner resume {name} --take-over",
                )
            self._require_room()
            return self._starter.start(["resume", name])

    def tell(self, campaign: str, word: Word) -> dict[str, Any]:
        """Signal a campaign's driver to pause, stop or cancel.

        Raises `Conflict` where no driver runs, or it is not a `frontrunner` process on this host.
        """
        name = self._store.campaign(campaign).name
        seen = self._holder(name)
        if seen is None or not seen.is_live:
            raise Conflict(f"campaign {name} is not running, so there is nothing to {word}")
        if not seen.is_here:
            raise Conflict(
                f"campaign {name} is driven by process {seen.pid} on {seen.host}, which this service cannot reach",
                hint=f"there: kill -{SIGNALS[word].name.removeprefix('SIG')} {seen.pid}",
            )
        process = our_process(seen.pid, since=None if seen.is_certain else self._by_this_clock(seen.since))
        if process is None:
            raise Conflict(
                f"process {seen.pid}, which drives campaign {name}, is not a frontrunner command of this user"
            )
        try:
            process.send_signal(SIGNALS[word])  # psutil checks again that the id was not reused
        except psutil.NoSuchProcess:
            raise Conflict(f"the driver of campaign {name} has just ended") from None
        return {"campaign": name, "told": word, "pid": seen.pid}

    def _by_this_clock(self, at: str) -> str:
        """Convert a time of the store's clock, which may be a database server's, to this host's clock."""
        return (datetime.fromisoformat(at) + (utc_now() - self._store.now())).isoformat()

    def _holder(self, name: str) -> ActiveDriver | None:
        return next((seen for seen in active_drivers(self._store) if seen.campaign == name), None)

    def _require_room(self) -> None:
        """Raise `TooMany` where no more drivers may run; called with the lock held."""
        running = {(seen.host, seen.pid) for seen in active_drivers(self._store) if seen.is_live}
        running |= {(this_host(), pid) for pid in self._starter.running_pids()}
        if len(running) >= self._most:
            raise TooMany(f"{len(running)} campaigns are running: at most {self._most} may", hint="stop one, or wait")
