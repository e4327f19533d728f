"""How old what a live page shows may be: so old that making it anew takes a small share of a processor core at most."""

from __future__ import annotations

from dataclasses import dataclass

SHARE_OF_CORE = 0.004
"""Of one core, for the pieces of a campaign's page and for its figures, each. What a live page asks costs
beside them; all of it should stay under 1 %."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Where there is news, makings follow one another after `least_s` at the soonest and `most_s` at the latest."""

    least_s: float
    most_s: float

    def age_s(self, cost_s: float) -> float:
        """Up to which age an answer is given again, in seconds, where making it took `cost_s` of processor time."""
        return min(max(self.least_s, cost_s / SHARE_OF_CORE), self.most_s)
