"""Signals to a driver: drain it, pause it, or end its probes.

SIGINT, SIGTERM, SIGHUP   the first lets running probes finish, the next ends them; the campaign is
`stopped` SIGUSR1                   lets running probes finish; the campaign is `paused` SIGUSR2
ends running probes at once; the campaign is `stopped`

A replay stops with a checkpoint at the first SIGTERM or SIGHUP; SIGINT, and the next of them, end
it at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from frontrunner.search.driver import Driver

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSE_SIGNAL = signal.SIGUSR1
CANCEL_SIGNAL = signal.SIGUSR2
INTERRUPTED = 130


class DriverSignals:
    """Passes signals on to a driver. Called with the driver, it lets signals stop it from then
    on.
    """

    def __init__(self) -> None:
        self.before: dict[signal.Signals, Any] = {}
        self._driver: Driver | None = None
        self._received: list[signal.Signals] = []

    def __call__(self, driver: Driver) -> None:
        """Let signals stop this driver."""
        self._driver = driver
        for number in (*STOP_SIGNALS, PAUSE_SIGNAL, CANCEL_SIGNAL):
            # nohup ignores SIGHUP on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._on_signal)

    @property
    def were_received(self) -> bool:
        """Whether any signal asked the driver to stop."""
        return bool(self._received)

    @property
    def exit_code(self) -> int:
        """Exit code of a command whose driver was stopped: 128 plus the last stop signal, else
        `INTERRUPTED`.
        """
        stops = [number for number in self._received if number in STOP_SIGNALS]
        return 128 + stops[-1] if stops else INTERRUPTED

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        driver = self._driver
        assert driver is not None  # noqa: S101 - no signal is handled before there is one
        was_stopped = any(earlier in STOP_SIGNALS for earlier in self._received)
        self._received.append(signal.Signals(number))
        if number == PAUSE_SIGNAL:
            driver.pause()
        elif number == CANCEL_SIGNAL or was_stopped:
            driver.kill()
        else:
            driver.stop()


@contextmanager
def noted_signals() -> Iterator[list[str]]:
    """Yield the names of the first SIGTERM or SIGHUP, once it comes; the next raises
    `KeyboardInterrupt`.
    """
    received: list[str] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)

    numbers = [
        one for one in STOP_SIGNALS[1:] if signal.getsignal(one) is not signal.SIG_IGN
    ]  # as nohup sets it
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_by_signals() -> Iterator[DriverSignals]:
    """Let signals stop a driver; restore the earlier handlers at the end."""
    signals = DriverSignals()
    try:
        yield signals
    finally:
        for number, handler in signals.before.items():
            signal.signal(number, handler)
