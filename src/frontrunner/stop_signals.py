"""Signals to a driver: drain it, pause it, or end its probes.

SIGINT, SIGTERM, SIGHUP   the first lets running probes finish, the next ends them; the campaign is `stopped`
SIGUSR1                   lets running probes finish; the campaign is `paused`
SIGUSR2                   ends running probes at once; the campaign is `stopped`
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frontrunner.search.driver import Driver

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSE_SIGNAL = signal.SIGUSR1
CANCEL_SIGNAL = signal.SIGUSR2


@contextmanager
def stopped_by_signals() -> Iterator[Callable[[Driver], None]]:
    """Give out the function that lets signals stop a driver; the handlers before are back at the end.

    What was said to one driver holds for the next: a signal that comes between two campaigns of a pair is not lost.
    Only flags are set in the handlers: the driver says in its own time that it is stopping.
    """
    before: dict[signal.Signals, Any] = {}
    driving: list[Driver] = []
    said: list[signal.Signals] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        said.append(signal.Signals(number))
        _tell(driving[-1], said)

    def on_driver(driver: Driver) -> None:
        driving.append(driver)  # from here on signals reach it; one that comes meanwhile is told twice, which is once
        _tell(driver, said)
        for number in (*STOP_SIGNALS, PAUSE_SIGNAL, CANCEL_SIGNAL):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, for one, ignores SIGHUP on purpose
                before.setdefault(number, signal.getsignal(number))  # of several drivers in turn, the first finds it
                signal.signal(number, on_signal)

    try:
        yield on_driver
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
