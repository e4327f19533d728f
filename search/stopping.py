"""The rule that ends a campaign when little is left to gain, and outlooks in words."""

from __future__ import annotations

from collections.abc import Iterable

from frontrunner.search.budget import Limit
from frontrunner.search.strategy import Outlook

LEAST_MEASURED = 3
"""Assumed: recipes that must be measured before a forecast may end a campaign."""
STOPPING = "stopping"
"""Event of a driver that was asked to stop: `leaves` is the state in which it will leave the campaign,
`probes_to_finish` the probes that it lets finish first."""
IN_A_ROW = 2
"""Assumed: outcomes in a row after which little must be expected; one forecast may be a fluke of the last outcome."""


class StopRule:
    """Ends a campaign when, `IN_A_ROW` times, the next probe's expected gain is `below` a share; 0 never ends it.

    It is a share of the best tokens/s or, with several objectives, of what the front is worth (`Outlook`).
    """

    def __init__(self, below: float) -> None:
        self._below = below
        self._in_a_row = 0
        self._outlook: Outlook | None = None

    def hear(self, outlook: Outlook | None, *, measured: int) -> None:
        """Take in an outlook after an outcome; `measured` recipes were measured by then."""
        self._outlook = outlook
        promises_little = outlook is not None and outlook.expected_improvement < self._below
        self._in_a_row = self._in_a_row + 1 if promises_little and measured >= LEAST_MEASURED else 0

    def why_stop(self, limits: Iterable[Limit]) -> str | None:
        """Return the reason to end, with the unused rest of the budget, or None."""
        if self._outlook is None or self._in_a_row < IN_A_ROW:
            return None
        parts = [f"{_gain_in_words(self._outlook)}, under {_percent(self._below)}", gap_in_words(self._outlook)]
        rest = unused(limits)
        return "; ".join(parts + ([f"{rest} unused"] if rest else []))


def _gain_in_words(outlook: Outlook) -> str:
    does = "add {} to the front" if outlook.of_front else "gain {}"
    return f"the next probe is expected to {does.format(_percent(outlook.expected_improvement))}"


def gap_in_words(outlook: Outlook) -> str:
    """Describe the estimated distance of the best recipe, or the front, to that of the whole legal space."""
    below, at_most = _percent(outlook.share_below), _percent(outlook.share_below_at_most)
    if outlook.of_front:
        return f"the front is estimated to cover {below} less than that of the whole space (95 %: at most {at_most})"
    return f"the best is estimated to be {below} below the best of the whole space (95 %: at most {at_most})"


def outlook_in_words(outlook: Outlook) -> str:
    """Describe an outlook on one line."""
    return f"{_gain_in_words(outlook)}; {gap_in_words(outlook)}"


def unused(limits: Iterable[Limit]) -> str:
    """Describe the rest of each limit: `12 of 40 probes, 1.5 of 4 minutes`; empty without limits."""
    return ", ".join(
        f"{max(0.0, limit.allowed - limit.used):.3g} of {limit.allowed:.3g} {limit.name}" for limit in limits
    )


def _percent(share: float) -> str:
    """Write a share with two digits: 0.04 %, 3.2 %, 12 %."""
    value = 100 * share
    return f"{value:.2g} %" if value < 10 else f"{value:.0f} %"
