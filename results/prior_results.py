"""Final outcomes of a store's campaigns, for campaigns that come after them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from frontrunner.results.outcome import Failure, Measurement, undisturbed
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Campaign, Event, Probed
from frontrunner.results.rows import (
    DamagedCell,
    finished_attempts,
    interpreted,
    provenance_by_attempt,
    values,
)
from frontrunner.results.schema import AttemptRow, EventRow, TrialRow
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import Recipe

REUSED = "reused"
"""Event of a trial whose outcome is an earlier campaign's; its data names the `trial` by its
number.
"""
CUT = "cut"
"""Event of an attempt whose nodes were taken away, or not there yet; its data names the `trial` by
its number.
"""


@dataclass(frozen=True, kw_only=True)
class PriorResult:
    """One recipe of a campaign with its outcome: its `undisturbed` measurements, the oldest first,
    or one failure.

    When and with what it ran is of the newest of these.
    """

    recipe_id: str
    recipe: Recipe
    trial_number: int
    outcomes: tuple[Measurement, ...] | Failure
    provenance: Provenance | None
    finished_at: str
    run_folder: str


def campaign_results(store: Store, campaign_id: int) -> list[PriorResult]:
    """Return the recipes of a campaign with a final outcome, without those reused from an earlier
    campaign.
    """
    mine, by_trial = AttemptRow.campaign_id == campaign_id, defaultdict[int, list[Probed]](list)
    with store.database.reading(), store.database.read() as connection:
        reused = trials_noted(store, campaign_id, REUSED)
        ran_with = provenance_by_attempt(connection, mine)
        for one in finished_attempts(connection, mine, AttemptRow.state != AttemptState.LOST):
            if (
                one.trial.state in (TrialState.MEASURED, TrialState.FAILED)
                and one.trial.number not in reused
            ):
                by_trial[one.trial.number].append(one)
    return [_prior_result(attempts, ran_with) for _, attempts in sorted(by_trial.items())]


def _prior_result(attempts: list[Probed], ran_with: dict[int, Provenance]) -> PriorResult:
    trial = attempts[-1].trial
    measured = undisturbed([one for one in attempts if isinstance(one.outcome, Measurement)])
    failed = [
        one
        for one in attempts
        if isinstance(one.outcome, Failure) and trial.state is TrialState.FAILED
    ]
    if not (measured or failed):
        raise DamagedCell(
            TrialRow, trial.id, "state", f"it is {trial.state}, and no such outcome is stored"
        )
    last = (failed or measured)[-1]
    repeats = tuple(one.outcome for one in measured if isinstance(one.outcome, Measurement))
    return PriorResult(
        recipe_id=trial.recipe_id,
        recipe=trial.recipe,
        trial_number=trial.number,
        outcomes=last.outcome if isinstance(last.outcome, Failure) else repeats,
        provenance=ran_with.get(last.attempt.id),
        finished_at=last.attempt.finished_at or "",
        run_folder=last.attempt.run_folder,
    )


def trials_noted(store: Store, campaign_id: int, kind: str) -> Counter[int]:
    """Count the campaign's events of a kind, `REUSED` or `CUT`, by the number of the trial that
    they name.
    """
    with store.database.read() as connection:
        events = values(
            connection, Event, EventRow.campaign_id == campaign_id, EventRow.kind == kind
        )
        return Counter(map(_trial_number, events))


def _trial_number(event: Event) -> int:
    return interpreted(EventRow, event.id, "data_json", lambda: int(str(event.data["trial"])))


def probes_made(store: Store, campaign: Campaign) -> int:
    """Count the outcomes that are charged to a budget of probes: all but those reused from earlier
    campaigns.
    """
    return max(0, campaign.outcomes - len(trials_noted(store, campaign.id, REUSED)))
