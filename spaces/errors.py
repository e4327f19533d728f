"""Every error that a person can cause, as one tree; each knows the exit code of the command that meets it.

FrontrunnerError            1   anything below, caught as one
|- InvalidInput             2   a key, flag or value that cannot be used
|- ServiceUnreachable       3   no service answers at the given address
|- StoreUnusable            4   a store that this version cannot read or write
|- AlreadyDriven            5   another driver holds the campaign
|- CampaignFailed           6   the campaign stopped: its probes fail alike, or it has no nodes
|- NothingLegal             7   no recipe of the space is legal, or none was measured
|- NotFound                 2   a campaign, recipe or file that is not there
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable

from frontrunner.spaces.wording import shown


class FrontrunnerError(Exception):
    """What happened, with the numbers; `hint` is the one next step, printed on a line of its own."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInput(FrontrunnerError, ValueError):
    """A value given by a person that cannot be used."""

    exit_code = 2


class NotFound(FrontrunnerError, LookupError):
    """Something named by a person that does not exist."""

    exit_code = 2


class ServiceUnreachable(FrontrunnerError):
    """No service answers at the address given."""

    exit_code = 3


class StoreUnusable(FrontrunnerError):
    """The store cannot be opened by this version, or is not a store."""

    exit_code = 4


class AlreadyDriven(FrontrunnerError):
    """Another live driver holds the campaign's lease."""

    exit_code = 5


class CampaignFailed(FrontrunnerError):
    """The campaign paused itself: its probes fail alike, or there is nothing to run them on."""

    exit_code = 6


class NothingLegal(FrontrunnerError):
    """The space holds no legal recipe, or a question has no recipe to answer with."""

    exit_code = 7


def bad_value(key: str, value: object, expected: str, *, hint: str | None = None) -> InvalidInput:
    """The standard message for a value that cannot be used: its key, the value, and what was expected.

    The value None stands for a key that is not there.
    """
    given = f"{key} is missing" if value is None else f"{key} = {shown(value)}"
    return InvalidInput(f"{given}: expected {expected}", hint=hint)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the known word closest to `word`, or lists all of them where none is close."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(words)}" if words else None


def require_at_least(owner: str, minimum: float, **values: float) -> None:
    """Raise `InvalidInput` for the first of `values` that is below `minimum` (or not a number)."""
    for key, value in values.items():
        if not value >= minimum:  # also catches NaN, for which every comparison is false
            raise bad_value(f"{owner}.{key}", value, f"at least {minimum}")


def require_above_zero(key: str, value: float | None, expected: str, *, most: float = math.inf) -> None:
    """Raise `InvalidInput` unless `value` is a finite number above 0 and at most `most`, or None.

    What is above `most` is taken for a figure in another unit.
    """
    if value is None or 0 < value <= min(most, sys.float_info.max):
        return
    raise bad_value(key, value, f"at most {most:,.0f}: is it in another unit?" if value > most else expected)


def require_one_of(owner: str, key: str, value: str, known: Iterable[str]) -> None:
    """Raise `InvalidInput` unless `value` is one of `known`."""
    words = tuple(known)
    if value not in words:
        raise bad_value(f"{owner}.{key}", value, f"one of {', '.join(words)}", hint=did_you_mean(value, words))
