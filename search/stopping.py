"""When a campaign has found enough: the rule that ends it, and what is left to gain in words."""

from __future__ import annotations

from collections.abc import Iterable

from frontrunner.search.budget import Limit
from frontrunner.search.strategy import Outlook

LEAST_MEASURED = 3
"""Assumed: recipes that must be measured before a forecast is trusted to end a campaign."""
STOPPING = "stopping"
"""The kind of the event that a driver writes when it is told to end: `leaves` is the state in which it will leave the
campaign, `probes_to_finish` the probes that it lets finish before."""
IN_A_ROW = 2
"""Assumed: outcomes in a row after which little must be expected; one forecast may be a fluke of the last outcome."""


class StopRule:
    """Ends a campaign when, `IN_A_ROW` times, the next probe's expected gain is `below` a share of what there is.

    That is the best tokens/s, or with several objectives what the front is worth (`Outlook`).

    With `below` 0 it never does.
    """

    def __init__(self, below: float) -> None:
        self._below = below
        self._in_a_row = 0
        self._outlook: Outlook | None = None

    def hear(self, outlook: Outlook | None, *, measured: int) -> None:
        """Take in what a strategy expects after an outcome; `measured` recipes were measured by then."""
        self._outlook = outlook
        promises_little = outlook is not None and outlook.expected_improvement < self._below
        self._in_a_row = self._in_a_row + 1 if promises_little and measured >= LEAST_MEASURED else 0

    def why_stop(self, limits: Iterable[Limit]) -> str | None:
        """The reason to end, with the budget's unused rest, or None to go on."""
        if self._outlook is None or self._in_a_row < IN_A_ROW:
            return None
        parts = [
            f"{_gain_in_words(self._outlook)}, under {_percent(self._below)}",
            gap_in_words(self._outlook),
        ]
        return "; ".join(parts + [f"{rest} unused" for rest in [unused(limits)] if rest])


def _gain_in_words(outlook: Outlook) -> str:
    does = "add {} to the front" if outlook.of_front else "gain {}"
    return f"the next probe is expected to {does.format(_percent(outlook.expected_improvement))}"


def gap_in_words(outlook: Outlook) -> str:
    """The estimated distance of the best recipe, or the front, so far to that of the whole legal space."""
    if outlook.of_front:
        return (
            f"the front is estimated to cover {_percent(outlook.share_below)} less than that of the whole space "
            f"(95 %: at most {_percent(outlook.share_below_at_most)})"
        )
    return (
        f"the best is estimated to be {_percent(outlook.share_below)} below the best of the whole space "
        f"(95 %: at most {_percent(outlook.share_below_at_most)})"
    )


def outlook_in_words(outlook: Outlook) -> str:
    """What going on promises, on one line."""
    return f"{_gain_in_words(outlook)}; {gap_in_words(outlook)}"


def unused(limits: Iterable[Limit]) -> str:
    """What is left of each limit of the budget: `12 of 40 probes, 1.5 of 4 minutes`; empty without limits."""
    return ", ".join(
        f"{max(0.0, limit.allowed - limit.used):.3g} of {limit.allowed:.3g} {limit.name}" for limit in limits
    )


def _percent(share: float) -> str:
    """A share with as many digits as it has meaning: 0.04 %, 3.2 %, 12 %."""
    value = 100 * share
    return f"{value:.2g} %" if value < 10 else f"{value:.0f} %"
