"""The board that called ranks write to: a TCPStore held by whoever started rank 0, so that it outlives every rank.

The words on it are those of `frontrunner.evaluators.trainer.roll_call.order`. Whoever started a rank also writes how it
ended, and whoever holds the board how the roll call did: all others follow that.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.trainer.roll_call.order import ALL_CAME, ARRIVED, PREFIX, REPORT, SIGN, key
from frontrunner.spaces.errors import FrontrunnerError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import PrefixStore, TCPStore

ENDED, OVER = "ended", "over"


class Over(Enum):
    """How a roll call stands: GONE where nobody holds the board any more, which happens after all other ends too."""

    LASTS = "lasts"
    WELL = "well"
    BADLY = "badly"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """What a rank says of itself when it comes; `wall_s` is its wall clock then."""

    host: str
    pid: int
    wall_s: float
    python: str
    torch: str


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A rank's latest sign: its number, and how far the rank is."""

    count: int
    stage: str
    step: int


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a rank ended before it was done: its exit status, below 0 for a signal, and the end of its output."""

    status: int
    tail: str


class Board:
    """A connection to the board, in the words above. One thread uses it."""

    def __init__(self, host: str, port: int, *, holds: bool, wait_s: float) -> None:
        """Hold the board at a port (0: any that is free), or connect to it within `wait_s`.

        Raises `FrontrunnerError` where the port is taken or nobody answers.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore
        from torch.distributed import DistNetworkError, DistStoreError

        wait = dt.timedelta(seconds=wait_s)
        try:
            self._server: TCPStore = TCPStore(host, port, is_master=holds, wait_for_workers=False, timeout=wait)
        except (DistNetworkError, DistStoreError) as error:
            what = "cannot be listened on" if holds else f"does not answer within {wait_s:g} s"
            raise FrontrunnerError(
                f"port {port} of {host}, where the ranks meet, {what}: {str(error).splitlines()[0]}",
                hint="set MASTER_ADDR and MASTER_PORT to a host that all ranks reach and a free port of it",
            ) from None
        self.port: int = self._server.port
        self._store: PrefixStore = PrefixStore(PREFIX, self._server)

    def _read(self, word: str) -> Any | None:
        return json.loads(self._store.get(word)) if self._store.check([word]) else None

    def arrivals(self, ranks: range, known: Mapping[int, Arrival]) -> dict[int, Arrival]:
        """Those who have come; whoever is known is not asked for again."""
        found = {rank: self._read(key(ARRIVED, rank)) for rank in ranks if rank not in known}
        return {**known, **{rank: Arrival(**told) for rank, told in found.items() if told is not None}}

    def all_came(self) -> None:
        """Let the ranks begin."""
        self._store.set(ALL_CAME, "1")

    def signs(self, ranks: range) -> dict[int, Sign]:
        """Each rank's latest sign."""
        found = {rank: self._read(key(SIGN, rank)) for rank in ranks}
        return {rank: Sign(**told) for rank, told in found.items() if told is not None}

    def end(self, rank: int, ending: Ending) -> None:
        """Say how a rank ended."""
        self._store.set(key(ENDED, rank), json.dumps({"status": ending.status, "tail": ending.tail}))

    def endings(self, ranks: range) -> dict[int, Ending]:
        """The ranks that ended before they were done."""
        found = {rank: self._read(key(ENDED, rank)) for rank in ranks}
        return {rank: Ending(**told) for rank, told in found.items() if told is not None}

    def reports(self, ranks: range) -> dict[int, dict[str, Any]]:
        """What each rank measured, once all are done."""
        return {rank: self._read(key(REPORT, rank)) or {} for rank in ranks}

    def close(self, *, ok: bool) -> None:
        """Say that the roll call is over."""
        self._store.set(OVER, json.dumps(ok))

    def over(self) -> Over:
        """How the roll call stands for those who do not hold the board."""
        from torch.distributed import DistNetworkError

        try:
            found = self._read(OVER)
        except DistNetworkError:
            return Over.GONE
        return Over.LASTS if found is None else Over.WELL if found else Over.BADLY


def held_elsewhere(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun's agent already holds a store at MASTER_PORT, which its ranks then share."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
