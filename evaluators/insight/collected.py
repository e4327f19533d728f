"""What every figure is computed from: a campaign's outcomes, its ranking and the space that it searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontrunner.results.outcome import Failure
from frontrunner.results.prior_results import reused_trials
from frontrunner.results.ranking import RankedRecipe, best, pareto
from frontrunner.results.records import Campaign, Event
from frontrunner.results.status import FailedTrial, failures, status
from frontrunner.results.store import Store
from frontrunner.results.trial_history import Probed, probed
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a figure is not drawn, as a sentence."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One campaign as the store knows it.

    `attempts` are in the order in which they ended; `ranking` and `front` have the fastest first, a row a recipe,
    repeats pooled; `failed` are the trials whose final outcome is a failure. `outlook` is the newest estimate of what
    is left to gain (`results.predictions`), None where the strategy makes none. `answers` counts the attempts
    that were no probes: outcomes of earlier campaigns.
    """

    campaign: Campaign
    survey: Survey
    attempts: Sequence[Probed]
    ranking: Sequence[RankedRecipe]
    front: Sequence[RankedRecipe]
    failed: Sequence[FailedTrial]
    outlook: Event | None = None
    answers: int = 0

    @property
    def problem(self) -> Problem:
        """The problem that the campaign's recipes solve."""
        return self.survey.problem

    @property
    def final_failures(self) -> dict[Recipe, Failure]:
        """The failure of each recipe that ended with one."""
        return {row.trial.recipe: row.failure for row in self.failed}


def collect(store: Store, campaign: Campaign, survey: Survey) -> Collected:
    """Read what the figures need; `survey` is that of the campaign's own space and problem."""
    return Collected(
        campaign=campaign,
        survey=survey,
        attempts=probed(store, campaign),
        ranking=best(store, campaign, top=None),
        front=pareto(store, campaign),
        failed=failures(store, campaign),
        outlook=status(store, campaign).outlook,
        answers=len(reused_trials(store, campaign.id)),
    )
