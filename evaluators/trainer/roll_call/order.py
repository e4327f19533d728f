"""What a called rank is asked to do, as JSON on its standard input; and the words of the board that all share.

The board is a TCPStore that the process which started rank 0 holds, so that it outlives every rank. Each rank writes
there how far it is; see `frontrunner.evaluators.diagnostics.doctor.board`, which reads it.
"""

import json
from dataclasses import dataclass
from typing import Self

PREFIX = "frontrunner-doctor"
"""Of every key: under torchrun the board is torchrun's own store."""
ARRIVED, SIGN, REPORT, ALL_CAME = "arrived", "sign", "report", "all-came"
"""Keys; all but the last with `/RANK` behind."""
SIGN_S = 0.5
"""Between two signs of a rank."""
DONE = "done"
"""The stage of a rank that has reported."""


def key(word: str, rank: int) -> str:
    """A rank's key."""
    return f"{word}/{rank}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One rank's place, and where the board is.

    `device` is torch's word: cpu, cuda (ROCm too) or xpu. A rank waits for the others for `deadline_s`, and its
    collectives fail after that; whoever watches the board has named the cause by then.
    """

    device: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    port: int
    deadline_s: float

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The order that a parent wrote; TypeError for a missing or unknown key."""
        return cls(**json.loads(text))
