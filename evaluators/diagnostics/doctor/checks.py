"""A check: what was found, how that is judged, and what to do about it.

An examination gathers facts and judges them. Judging is a function of the facts alone, so that every judgement can be
tried without the machine; what goes wrong while facts are gathered becomes the check's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

F = TypeVar("F")


class Status(Enum):
    """How a check ended, from good to bad: a note needs nothing, a warning costs speed or may fail, a problem will."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `remedy` is the next step, None where none is needed."""

    section: str
    name: str
    status: Status
    found: str
    remedy: str | None = None


Examination = Callable[[], Iterable[Check]]
"""Gathers facts and judges them."""


@dataclass(frozen=True, kw_only=True)
class Titled:
    """An examination with the words under which its failure is told."""

    section: str
    name: str
    examine: Examination


def examination(section: str, name: str, gather: Callable[[], F], judge: Callable[[F], Iterable[Check]]) -> Titled:
    """The examination that judges what is gathered."""
    return Titled(section=section, name=name, examine=partial(_examine, gather, judge))


def _examine(gather: Callable[[], F], judge: Callable[[F], Iterable[Check]]) -> Iterable[Check]:
    return judge(gather())


def run_checks(examinations: Iterable[Titled]) -> tuple[Check, ...]:
    """All checks, in order; one that fails to look is a warning that says why."""
    found: list[Check] = []
    for each in examinations:
        try:
            found += each.examine()
        except Exception as error:  # whatever it is: the other checks must still be made, and this one says so
            why = str(error).strip().split("\n", maxsplit=1)[0]
            words = f"could not be looked at: {type(error).__name__}" + (f": {why}" if why else "")
            found.append(Check(section=each.section, name=each.name, status=Status.WARNING, found=words))
    return tuple(found)


def has_problem(checks: Iterable[Check]) -> bool:
    """Whether any check is a problem."""
    return any(check.status is Status.PROBLEM for check in checks)
