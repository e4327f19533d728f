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

    Only flags are set in the handlers: the driver says in its own time that it is stopping.
    """
    before: dict[signal.Signals, Any] = {}

    def on_driver(driver: Driver) -> None:
        steps = iter((driver.stop,))

        def on_stop(_number: int, _frame: FrameType | None) -> None:
            next(steps, driver.kill)()

        handlers = dict.fromkeys(STOP_SIGNALS, on_stop)
        handlers[PAUSE_SIGNAL] = lambda _number, _frame: driver.pause()
        handlers[CANCEL_SIGNAL] = lambda _number, _frame: driver.kill()
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, for one, ignores SIGHUP on purpose
                before.setdefault(number, signal.getsignal(number))  # of several drivers in turn, the first finds it
                signal.signal(number, handler)

    try:
        yield on_driver
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
