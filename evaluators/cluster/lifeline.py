"""A sign of life from the driver to nodes that no pipe joins to it: a file that keeps changing.

Clocks of two machines differ, and so do their ideas of a file's age. The driver therefore writes a number that it
counts up, and whoever watches asks only, by its own monotonic clock, for how long it has seen the same one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

BEAT_S = 3.0
LOOK_S = 1.0


class Heart:
    """Beats from a thread of its own until it is stopped: a driver that is busy choosing is alive."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stopped = threading.Event()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("0", encoding="ascii")
        self._thread = threading.Thread(target=self._beat, name="frontrunner-lifeline", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while not self._stopped.wait(BEAT_S):
            count += 1
            try:
                self._file.write_text(str(count), encoding="ascii")
            except OSError:
                continue  # a full disk is met where outcomes are written; a beat that is missed is followed by another

    def stop(self) -> None:
        """Beat no more, and take the file away: whoever still watches it ends."""
        self._stopped.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)


class Listener:
    """Watches another process's heart."""

    def __init__(self, file: Path, *, silence_s: float) -> None:
        self._file = file
        self._silence_s = silence_s
        self._last: str | None = None
        self._changed_s = self._looked_s = time.monotonic()

    def is_silent(self) -> bool:
        """Whether nothing has been heard for `silence_s`."""
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            heard = self._read()
            if heard is not None and heard != self._last:
                self._last, self._changed_s = heard, now
        return now - self._changed_s > self._silence_s

    def _read(self) -> str | None:
        try:
            return self._file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
