"""A check: what was found, how it is judged, and the next step.

Each check function judges facts that are passed in, so that every judgment can be tested without
the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from frontrunner.evaluators.nodes.settings import NodeSource


class Status(Enum):
    """Outcome of a check, from good to bad: a note needs nothing, a warning costs speed or may
    fail, a problem will.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


OK, NOTE, WARNING, PROBLEM = Status


@dataclass(frozen=True)
class Check:
    """One thing that was examined. `remedy` is the next step, None where none is needed."""

    name: str
    found: str
    status: Status = OK
    remedy: str | None = None
    section: str = ""


def judge(name: str, found: str, *, fine: bool, otherwise: Status, remedy: str) -> Check:
    """Return a check that is ok where it is `fine`, and has the remedy where it is not."""
    return Check(name, found) if fine else Check(name, found, otherwise, remedy)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a campaign needs of the machine, or an installation without a campaign.

    `store_path` is None for a store on a database server; `scheduler` is the batch system that it
    requests nodes from, and `ray` what it requests of a Ray cluster, so that this machine need not
    be one.
    """

    store_path: Path | None
    run_folder: Path
    nodes: int = 1
    backend: str | None = None
    devices_per_node: int | None = None
    packages: tuple[str, ...] = ()
    scheduler: str | None = None
    compiles: bool = False
    disk_folder: Path | None = None
    trainer: str | None = None
    ray: NodeSource | None = None


Examination = tuple[str, str, Callable[[], Iterable[Check]]]
"""A section, the name of the check, and the function that gathers facts and judges them."""


def run_checks(examinations: Iterable[Examination]) -> tuple[Check, ...]:
    """Return all checks, in order; an examination that raises is a warning that says why."""
    found: list[Check] = []
    for section, name, examine in examinations:
        try:
            checks = list(examine())
        except (
            Exception
        ) as error:  # whatever it is: the other checks must still be made, and this one says so
            why = f"{type(error).__name__}: {error}".strip(": ").split("\n", maxsplit=1)[0]
            checks = [Check(name, f"could not be checked: {why}", WARNING)]
        found += [replace(check, section=section) for check in checks]
    return tuple(found)


def has_problem(checks: Iterable[Check]) -> bool:
    """Return whether any check is a problem."""
    return any(check.status is PROBLEM for check in checks)
