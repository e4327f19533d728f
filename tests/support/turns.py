"""Which tests run beside which, where several processes share them (pytest -n).

Some tests watch how long things take, or wait only so long for processes to come or to go. These run one after another,
in one process, and all others give way to them: a busy core is theirs first.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parents[1]
WATCHING = "what watches the time"
WATCHED = (
    "faults",
    *(
        f"integration/test_{name}.py"
        for name in ("calibrate", "campaign", "doctor", "doctor_slurm", "profile", "replay", "service")
    ),
)
WAITING = ("integration/test_slurm.py",)
"""These take minutes, most of them in wait for a batch system: begun last, they would be all that still runs."""
GIVING_WAY = 10
"""The niceness of what gives way: a ninth of the weight of what does not."""


@cache
def turn_of(path: str | Path) -> int:
    """0 for what watches the time, 1 for what waits long, 2 for all else; a path may begin at the repository."""
    return 0 if _is_among(WATCHED, path) else 1 if _is_among(WAITING, path) else 2


def _is_among(places: tuple[str, ...], path: str | Path) -> bool:
    file = TESTS.parent / path
    return any(file.is_relative_to(TESTS / place) for place in places)


def give_way(item: pytest.Item) -> None:
    """Lower this process's priority for good once it comes to a test that does not watch the time."""
    if "PYTEST_XDIST_WORKER" in os.environ and turn_of(item.path) > 0:
        lower = GIVING_WAY - os.getpriority(os.PRIO_PROCESS, 0)
        if lower > 0:
            os.nice(lower)


class ByTurns(LoadFileScheduling):
    """Gives each process whole files; all that watches the time goes to one process, as if it were one file."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return WATCHING if turn_of(file) == 0 else file
