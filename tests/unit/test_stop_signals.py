"""What signals make a command end with: batch systems tell a preemption from Ctrl-C by it."""

from __future__ import annotations

import os
import signal
from typing import cast

import pytest

from frontrunner.search.driver import Driver
from frontrunner.stop_signals import CANCEL_SIGNAL, PAUSE_SIGNAL, stopped_by_signals


class Told:
    """Hears what a driver is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def stop(self) -> None:
        self.heard.append("stop")

    def pause(self) -> None:
        self.heard.append("pause")

    def kill(self) -> None:
        self.heard.append("kill")


@pytest.mark.parametrize(
    ("sent", "told", "code"),
    [
        ([], "", 130),
        ([signal.SIGINT], "stop", 130),
        ([signal.SIGINT, signal.SIGINT], "kill", 130),
        ([signal.SIGTERM], "stop", 143),
        ([signal.SIGTERM, signal.SIGTERM], "kill", 143),
        ([signal.SIGINT, signal.SIGTERM], "kill", 143),
        ([signal.SIGHUP], "stop", 129),
        ([PAUSE_SIGNAL], "pause", 130),
        ([signal.SIGTERM, CANCEL_SIGNAL], "kill", 143),
    ],
)
def test_the_exit_code_is_the_stop_signal_s(
    sent: list[signal.Signals], told: str, code: int
) -> None:
    driver, handlers = Told(), signal.getsignal(signal.SIGTERM)
    with stopped_by_signals() as on_driver:
        on_driver(cast(Driver, driver))
        for number in sent:
            os.kill(os.getpid(), number)
        assert (driver.heard or [""])[-1] == told
        assert on_driver.exit_code == code
    assert signal.getsignal(signal.SIGTERM) is handlers
