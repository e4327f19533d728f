"""The sign of life of an attempt, by whatever runs for it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HEARTBEAT = "heartbeat.json"
BEAT_S = 2.0
"""Whatever runs for an attempt shows so at least this often."""


class RunHeartbeat:
    """Shows in run folders that something runs for them; on several nodes the first one does.

    What an attempt is charged follows from it where its driver died, whatever the trainer wrote.
    """

    def __init__(self) -> None:
        self._beat_s = -math.inf
        self._count = 0

    def beat(self, folders: Iterable[Path]) -> None:
        """Write to these folders, if the last time was `BEAT_S` ago."""
        if time.monotonic() - self._beat_s < BEAT_S:
            return
        self._beat_s, self._count = time.monotonic(), self._count + 1
        for folder in folders:
            with suppress(OSError):  # the disk is full, or the folder was removed
                (folder / HEARTBEAT).write_text(str(self._count), encoding="ascii")
