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
    """Passes signals on to drivers. Called with a driver, it lets signals stop that one from then
    on.

    Signals to one driver hold for the next: one that arrives between the two campaigns of a pair is
    not lost.
    """

    def __init__(self) -> None:
        self.before: dict[signal.Signals, Any] = {}
        self._driver: Driver | None = None
        self._received: list[signal.Signals] = []

    def __call__(self, driver: Driver) -> None:
        """Let signals stop this driver."""
        self._driver = driver
        self._pass_on()
        for number in (*STOP_SIGNALS, PAUSE_SIGNAL, CANCEL_SIGNAL):
            if (
                signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup, for one, ignores SIGHUP on purpose
                self.before.setdefault(
                    number, signal.getsignal(number)
                )  # of several drivers, the first finds it
                signal.signal(number, self._on_signal)

    @property
    def were_received(self) -> bool:
        """Whether any signal asked a driver to stop."""
        return bool(self._received)

    @property
    def exit_code(self) -> int:
        """Exit code of a command whose driver was stopped: 128 plus the last stop signal, else
        `INTERRUPTED`.
        """
        stops = [number for number in self._received if number in STOP_SIGNALS]
        return 128 + stops[-1] if stops else INTERRUPTED

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(signal.Signals(number))
        self._pass_on()

    def _pass_on(self) -> None:
        driver, has_stopped = self._driver, False
        assert driver is not None  # noqa: S101 - no signal is handled before there is one
        for number in tuple(self._received):
            if number == PAUSE_SIGNAL:
                driver.pause()
            elif number == CANCEL_SIGNAL or has_stopped:
                driver.kill()
            else:
                driver.stop()
                has_stopped = True


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
    """Let signals stop drivers; restore the earlier handlers at the end."""
    signals = DriverSignals()
    try:
        yield signals
    finally:
        for number, handler in signals.before.items():
            signal.signal(number, handler)
