"""How often a failing probe is tried again, and when failures that are all alike pause a campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.records import Attempt

MAX_ATTEMPTS = 8
"""Of one trial, however many drivers made them, without those that were cut: some recipes take their driver along."""

MOST_CUTS = 50
"""Attempts of one trial with those that preemption or walltimes cut: more, and it never will be measured there."""


class Patience:
    """What one driver remembers of failures."""

    def __init__(self, identical_failures: int) -> None:
        self._identical_failures = identical_failures
        self._failures_of_trial: Counter[tuple[int, FailureKind]] = Counter()
        self._cuts_of_trial: Counter[int] = Counter()
        self._alike: list[Failure] = []

    def remember_cuts(self, cuts_of_trial: Mapping[int, int]) -> None:
        """Take in how many attempts of each trial, by its id, earlier drivers found to be cut."""
        self._cuts_of_trial.update(cuts_of_trial)

    def deserves_retry(self, attempt: Attempt, outcome: Outcome, *, is_cut: bool = False) -> bool:
        """Whether an attempt that came to this is followed by another; failures before a measurement are forgotten.

        One that `is_cut` had its nodes taken away: that says nothing of the recipe, and does not count.
        """
        if isinstance(outcome, Measurement):
            for kind in FailureKind:
                del self._failures_of_trial[attempt.trial_id, kind]
            return False
        if is_cut:
            self._cuts_of_trial[attempt.trial_id] += 1
            return attempt.number < MOST_CUTS
        self._failures_of_trial[attempt.trial_id, outcome.kind] += 1
        alike = self._failures_of_trial[attempt.trial_id, outcome.kind]
        uncut = attempt.number - self._cuts_of_trial[attempt.trial_id]
        return alike < outcome.policy.max_attempts and uncut < MAX_ATTEMPTS and attempt.number < MOST_CUTS

    def count(self, outcome: Outcome, *, measured_before: bool) -> None:
        """Follow the failures of one kind since this driver began, until anything else happens."""
        if isinstance(outcome, Measurement) or measured_before:
            self._alike.clear()
        elif self._alike and self._alike[-1].kind is not outcome.kind:
            self._alike = [outcome]
        else:
            self._alike.append(outcome)

    @property
    def last_alike(self) -> Failure | None:
        """The newest of the failures that are all alike."""
        return self._alike[-1] if self._alike else None

    def why_pause(self) -> str | None:
        """The reason for which nothing more is to be tried, or None."""
        if len(self._alike) < self._identical_failures:
            return None
        return f"the first {len(self._alike)} probes all failed alike: {self._alike[-1].kind}"
