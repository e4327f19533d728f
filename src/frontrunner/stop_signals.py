"""Signals to a driver: drain it, pause it, or end its probes.

SIGINT, SIGTERM, SIGHUP   the first lets running probes finish, the next ends them; the campaign is `stopped`
SIGUSR1                   lets running probes finish; the campaign is `paused`
SIGUSR2                   ends running probes at once; the campaign is `stopped`
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frontrunner.search.driver import Driver

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSE_SIGNAL = signal.SIGUSR1
CANCEL_SIGNAL = signal.SIGUSR2
INTERRUPTED = 130
"""The exit code of an interrupted command, which is 128 and SIGINT."""


class DriverSignals:
    """Tells drivers of signals. Called with a driver, it lets signals stop that one from then on.

    What was said to one driver holds for the next: a signal that comes between two campaigns of a pair is not lost.
    Only flags are set in the handlers: the driver says in its own time that it is stopping.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._driving: list[Driver] = []
        self._said: list[signal.Signals] = []

    def __call__(self, driver: Driver) -> None:
        """Let signals stop this driver."""
        self._driving.append(driver)  # from here on signals reach it; one that comes meanwhile is told twice: once
        _tell(driver, self._said)
        for number in (*STOP_SIGNALS, PAUSE_SIGNAL, CANCEL_SIGNAL):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, for one, ignores SIGHUP on purpose
                self._before.setdefault(number, signal.getsignal(number))  # of several drivers, the first finds it
                signal.signal(number, self._on_signal)

    @property
    def exit_code(self) -> int:
        """Of a command whose driver was stopped: 128 and the last stop signal, as in shells; else `INTERRUPTED`."""
        stops = [number for number in self._said if number in STOP_SIGNALS]
        return 128 + stops[-1] if stops else INTERRUPTED

    def put_back(self) -> None:
        """Have the handlers of before again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._said.append(signal.Signals(number))
        _tell(self._driving[-1], self._said)


@contextmanager
def stopped_by_signals() -> Iterator[DriverSignals]:
    """Give out what lets signals stop a driver; the handlers before are back at the end."""
    signals = DriverSignals()
    try:
        yield signals
    finally:
        signals.put_back()


def _tell(driver: Driver, said: list[signal.Signals]) -> None:
    """Tell a driver all that was said so far, in order; hearing it again changes nothing for it."""
    has_stopped = False
    for number in tuple(said):
        if number == PAUSE_SIGNAL:
            driver.pause()
        elif number == CANCEL_SIGNAL or has_stopped:
            driver.kill()
        else:
            driver.stop()
            has_stopped = True
