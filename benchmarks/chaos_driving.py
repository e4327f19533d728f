"""One campaign whose drivers, and all that they start, are disturbed at moments that nobody chose.

What a person would restart is restarted. A disturbance of a driver is SIGKILL, one of the signals
that stop or pause it, or SIGSTOP, upon which another driver takes its campaign and it goes on
afterwards, to find that it was fenced.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos_audit import fingerprint

import frontrunner
from frontrunner.results.states import CampaignState
from frontrunner.results.status import active_drivers
from frontrunner.results.store import open_store
from frontrunner.search.listener import Ended, Listener, View
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import AlreadyDriven
from frontrunner.stop_signals import stopped_by_signals

FINISHED, FAILED, STOPPED, REFUSED = 0, 1, 3, AlreadyDriven.exit_code
LONGEST_RUN_S = 600.0
"""How long a campaign may take with all its drivers; one that hangs is killed then, and counts as
unfinished.
"""
FENCED_S = 60.0
"""How long a driver that was taken over may go on, ends of its probes included."""
RETRY_S = 1.0
"""Until a driver that was refused is tried again: the lease of one that stands still ends by
itself.
"""
LEASE_S = 40.0
"""Longer than any lease: a driver that stands still for so long has lost its campaign."""

OF_DRIVER = {
    "kill": 10,
    "kill tree": 5,
    "terminate": 2,
    "interrupt": 2,
    "interrupt twice": 2,
    "pause": 2,
    "cancel": 2,
    "take over": 3,
    "outwait": 0.1,
}
"""How often each disturbance of a driver is drawn; `kill tree` ends it with all its processes at
once, and `outwait` is a take-over by a lease that has run out.
"""
OF_HELPER = {"kill": 8, "terminate": 1, "freeze": 1}
"""Likewise for fork servers and ranks."""
SIGNALS = {
    "kill": (signal.SIGKILL,),
    "kill tree": (signal.SIGKILL,),
    "terminate": (signal.SIGTERM,),
    "interrupt": (signal.SIGINT,),
    "interrupt twice": (signal.SIGINT, signal.SIGINT),
    "pause": (signal.SIGUSR1,),
    "cancel": (signal.SIGUSR2,),
}


class Acknowledging(Listener):
    """Writes each stored outcome to a file, past every buffer that a kill would empty."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def probe_ended(self, view: View, ended: Ended) -> None:
        del view
        os.write(
            self._file, f"{json.dumps(fingerprint(ended.recipe_id, ended.outcome))}\n".encode()
        )


def start_driver(url: str, name: str, folder: Path, *, take_over: bool) -> int:
    """A driver as a forked process, warm with what this one has imported."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # as in a terminal, wherever this was started
        listener = Acknowledging(folder / "acknowledged")
        with stopped_by_signals() as on_driver:
            ended = frontrunner.resume(
                name, store=url, take_over=take_over, listener=listener, on_driver=on_driver
            )
        code = FINISHED if ended.state is CampaignState.FINISHED else STOPPED
    except KeyboardInterrupt:
        code = STOPPED
    except AlreadyDriven:
        code = REFUSED
    except BaseException:
        with (folder / "errors").open("a") as file:
            file.write(f"driver {os.getpid()} of {name}: {traceback.format_exc()}\n")
    finally:
        os._exit(code)


@dataclass(kw_only=True)
class Counts:
    """What was done to the campaigns, and how their drivers took it."""

    drivers: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)
    failed_after_a_kill: int = 0
    failed_untouched: int = 0
    not_fenced: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a campaign is disturbed: after `most_disturbances` it is let run to its end, however
    slow the machine.

    `may_outwait` allows drivers to stand still for longer than a lease, which may keep others from
    their store. It is for stores of a server: in an SQLite store only a take-over takes a campaign
    from a driver that stands still here.
    """

    per_minute: float
    most_disturbances: int
    may_outwait: bool


class Campaign:
    """One campaign of chaos; `step` is called again and again until `has_ended`."""

    def __init__(
        self,
        url: str,
        spec: CampaignSpec,
        folder: Path,
        *,
        limits: Limits,
        draw: random.Random,
        counts: Counts,
    ) -> None:
        self.spec, self.folder = spec, folder
        self.has_finished = self.was_taken_over = False
        self._url, self._limits, self._draw, self._counts = url, limits, draw, counts
        self._disturbances_left = limits.most_disturbances
        self._driver: int | None = None
        self._superseded = dict[
            int, float
        ]()  # drivers that were taken over, and when they are to have ended
        self._frozen = dict[int, float]()  # processes that stand still, and when they go on
        self._was_touched = False
        self._start_at = 0.0
        self._disturb_at = self._next()
        self._give_up_at = time.monotonic() + LONGEST_RUN_S
        (folder / "acknowledged").touch()

    @property
    def drivers(self) -> set[int]:
        """The drivers that live."""
        return {*self._superseded, *(() if self._driver is None else (self._driver,))}

    @property
    def has_ended(self) -> bool:
        """Whether it is finished and none of its drivers lives, or was given up."""
        return not self.drivers and (self.has_finished or time.monotonic() > self._give_up_at)

    def step(self, ended: Callable[[int], None]) -> None:
        """Start, disturb and hear of drivers; `ended` is called with each that has ended."""
        for pid in self.drivers:
            if (code := has_ended(pid)) is not None:
                self._hear(pid, code)
                ended(pid)
        now = time.monotonic()
        for pid in [pid for pid, at in self._frozen.items() if at <= now]:
            self._thaw(pid)
        for pid in [pid for pid, at in self._superseded.items() if at <= now]:
            self._is_late(pid)
        if now > self._give_up_at:
            self._was_touched = True
            for pid in self.drivers:
                os.kill(pid, signal.SIGKILL)
        elif self._driver is None and not self.has_finished and now >= self._start_at:
            self._start()
        elif self._driver is not None and self._disturbances_left and now >= self._disturb_at:
            self._disturb(self._driver)
            self._disturb_at = self._next()

    def _start(self, *, take_over: bool = False) -> None:
        self._driver = start_driver(self._url, self.spec.name, self.folder, take_over=take_over)
        self._was_touched = bool(
            self._superseded
        )  # one that stands still may hold the store's lock
        self._counts.drivers += 1

    def _hear(self, pid: int, code: int) -> None:
        if pid in self._superseded:
            del self._superseded[pid]
            self._counts.failed_after_a_kill += code == FAILED
            return
        self._driver = None
        self.has_finished = code == FINISHED
        if code in (FAILED, REFUSED):
            self._start_at = time.monotonic() + RETRY_S
        self._counts.failed_after_a_kill += code == FAILED and self._was_touched
        self._counts.failed_untouched += code != FINISHED and not self._was_touched

    def _is_late(self, pid: int) -> None:
        """End a driver that should have found itself taken over, unless it holds the campaign by
        right.

        Its successor may have been killed before it took over.
        """
        with open_store(self._url, read_only=True) as store:
            holders = [
                driver.pid for driver in active_drivers(store) if driver.campaign == self.spec.name
            ]
        if pid in holders:
            self._superseded[pid] += FENCED_S
            return
        self._counts.not_fenced.append(f"{self.spec.name}: driver {pid} beside {holders}")
        self._superseded[pid] = math.inf
        os.kill(pid, signal.SIGKILL)

    def _next(self) -> float:
        return time.monotonic() + self._draw.expovariate(self._limits.per_minute / 60)

    def _disturb(self, driver: int) -> None:
        helpers = [process.pid for process in psutil.Process(driver).children(recursive=True)]
        victim = self._draw.choice([driver, *helpers])
        weights = OF_DRIVER if victim == driver else OF_HELPER
        how = self._draw.choices(list(weights), list(weights.values()))[0]
        if how == "outwait" and not self._limits.may_outwait:
            how = "take over"
        if how == "kill tree":
            for process in helpers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it ended in between
            if how in SIGNALS:
                for number in SIGNALS[how]:
                    os.kill(victim, number)
                    time.sleep(self._draw.uniform(0, 0.01))
            else:
                self._freeze(victim, how)
            self._counts.disturbances[how] += 1
            self._disturbances_left -= 1
            self._was_touched = True

    def _freeze(self, victim: int, how: str) -> None:
        """Let a process stand still; a driver that does so gets a successor."""
        os.kill(victim, signal.SIGSTOP)
        seconds = LEASE_S if how == "outwait" else self._draw.uniform(0.1, 3.0)
        self._frozen[victim] = time.monotonic() + seconds
        if victim == self._driver:
            self._superseded[victim] = time.monotonic() + seconds + FENCED_S
            self.was_taken_over = True
            self._start(take_over=how == "take over")

    def _thaw(self, pid: int) -> None:
        del self._frozen[pid]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def has_ended(pid: int) -> int | None:
    """The exit code of a child, or minus its signal; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
