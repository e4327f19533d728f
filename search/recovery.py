"""What earlier drivers of a campaign left: attempts under way, queued trials, and outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from frontrunner.evaluators.cluster.left_behind import LeftBehind, was_interrupted
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.probe.stragglers import Orphans
from frontrunner.evaluators.protocol import Evaluator, ProbeOrder
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.results.predictions import measured_by, newest_outlooks, outlook_shares
from frontrunner.results.records import Attempt, Trial
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.search.listener import Ended, View
from frontrunner.search.proposals import Proposals
from frontrunner.search.stopping import IN_A_ROW, StopRule
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

LOOK_S = 0.25


def wait_for_old_ranks(
    attempts: Collection[Attempt], meanwhile: Callable[[], None], orphans: Orphans | None = None
) -> None:
    """End what an earlier driver's attempts still run on nodes, and wait for it: they are needed, and so is its word.

    So is what `orphans` are, where probes run on this host. `meanwhile` is called several times a second. Raises
    `NodesUnavailable` where something of it cannot be ended.
    """
    left = LeftBehind(Path(attempt.run_folder) for attempt in attempts)
    while not ((orphans is None or orphans.have_ended()) and left.have_ended()):
        time.sleep(LOOK_S)
        meanwhile()


def was_cut(attempt: Attempt, outcome: Outcome) -> bool:
    """Whether an attempt whose driver is gone was lost because its nodes were taken away."""
    is_lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.LOST
    return is_lost and was_interrupted(Path(attempt.run_folder))


def harvest(evaluator: Evaluator, attempt: Attempt, trial: Trial, problem: Problem) -> tuple[str, Outcome]:
    """What an attempt came to whose driver is gone, after the word for it: harvested, or lost."""
    folder = Path(attempt.run_folder)
    outcome = evaluator.harvest(ProbeOrder(token=folder.name, recipe=trial.recipe, run_folder=folder))
    if outcome is not None:
        return "harvested", outcome
    seconds = RunFolder(folder).busy_seconds() * nodes_used(trial.recipe, problem)
    return "lost", Failure(kind=FailureKind.LOST, message="its driver ended before the probe did", node_seconds=seconds)


def take_in_trials(
    trials: list[Trial], told: list[tuple[Recipe, Outcome]], *, proposals: Proposals, view: View
) -> None:
    """Count every outcome, queue the trials that wait, and keep the others from being proposed again."""
    by_recipe = {trial.recipe: trial for trial in trials}
    for recipe, outcome in told:
        view.count(ended(by_recipe[recipe], outcome, will_retry=False))
    heard = {recipe for recipe, _ in told}
    lost = Failure(kind=FailureKind.LOST, message="lost each time it was tried")
    for trial in trials:
        if trial.state is TrialState.QUEUED:
            proposals.put_back(trial)
            continue
        proposals.leave_out(trial.recipe)
        if trial.recipe not in heard:
            view.count(ended(trial, lost, will_retry=False))


def take_in_outlooks(store: Store, campaign_id: int, *, rule: StopRule, view: View) -> None:
    """Let the stop rule go on from what was expected before, so that a campaign that it ended stays ended."""
    with store.database.read() as connection:
        events = newest_outlooks(connection, campaign_id, IN_A_ROW)
    for event in events:
        view.outlook = Outlook(**outlook_shares(event))
        rule.hear(view.outlook, measured=measured_by(event))


def ended(trial: Trial, outcome: Outcome, *, will_retry: bool) -> Ended:
    """An outcome of a trial, as listeners hear of it."""
    return Ended(
        number=trial.number, recipe=trial.recipe, recipe_id=trial.recipe_id, outcome=outcome, will_retry=will_retry
    )
