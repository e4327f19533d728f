"""The attempts of one driver: started, followed, stored with their outcomes, tried again, and harvested on resume."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.cluster.step import OrphanedSteps, was_interrupted
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.processes import Orphans
from frontrunner.evaluators.probe.run_folder import RunFolder
from frontrunner.evaluators.protocol import QUEUED, Evaluator, Finished, ProbeOrder, Progress
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.prior_results import CUT, REUSED, cuts_by_trial
from frontrunner.results.records import Attempt, Trial
from frontrunner.results.states import TrialState
from frontrunner.search.campaign_session import CampaignSession, about
from frontrunner.search.listener import RunningProbe
from frontrunner.search.result_reuse import ReusableResult
from frontrunner.search.strategy import TOKENS_ALONE
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe

MAX_ATTEMPTS = 8
"""Per trial, over all drivers, cut attempts not counted: some recipes crash their driver."""
MOST_CUTS = 50
"""Attempts per trial, those included that preemption or walltimes cut: with more it will never be measured there."""
LOOK_S = 0.25


class RetryPolicy:
    """Decides whether a failed attempt is repeated, and when equal failures pause the campaign."""

    def __init__(self, identical_failures: int) -> None:
        self._identical_failures = identical_failures
        self._failures_of_trial: Counter[tuple[int, FailureKind]] = Counter()
        self._cuts_of_trial: Counter[int] = Counter()
        self._alike: list[Failure] = []

    def remember_cuts(self, cuts_of_trial: Mapping[int, int]) -> None:
        """Add the cut attempts of each trial, by its id, that earlier drivers found."""
        self._cuts_of_trial.update(cuts_of_trial)

    def deserves_retry(self, attempt: Attempt, outcome: Outcome, *, is_cut: bool = False) -> bool:
        """Return whether another attempt follows; failures before a measurement are forgotten.

        An attempt that `is_cut` lost its nodes: that says nothing of the recipe and does not count.
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
        """Count failures of one kind in a row, from this driver's start and until anything was measured."""
        if isinstance(outcome, Measurement) or measured_before:
            self._alike.clear()
        elif self._alike and self._alike[-1].kind is not outcome.kind:
            self._alike = [outcome]
        else:
            self._alike.append(outcome)

    @property
    def last_alike(self) -> Failure | None:
        """The newest of the equal failures."""
        return self._alike[-1] if self._alike else None

    def why_pause(self) -> str | None:
        """Return the reason to pause the campaign, or None."""
        if len(self._alike) < self._identical_failures:
            return None
        return f"the first {len(self._alike)} probes all failed alike: {self._alike[-1].kind}"


@dataclass(kw_only=True)
class RunningAttempt:
    """An attempt under way; `started_s` is by the monotonic clock, `nodes` how many it occupies.

    `held_since_s` is when it got its nodes, None while it waits for them, for which nothing is charged. An evaluator
    that does not report waiting has given them at once.
    """

    trial: Trial
    attempt: Attempt
    order: ProbeOrder
    started_s: float
    nodes: int
    held_since_s: float | None = field(init=False)
    _progress: Progress | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.held_since_s = self.started_s

    def update(self, evaluator: Evaluator) -> RunningProbe:
        """Ask the evaluator for its progress, and note whether it holds its nodes."""
        self._progress = progress = evaluator.progress(self.order.token)
        if progress is not None and progress.phase == QUEUED:
            self.held_since_s = None
        elif self.held_since_s is None:
            self.held_since_s = time.monotonic()
        seconds = time.monotonic() - self.started_s
        return RunningProbe(number=self.trial.number, recipe=self.trial.recipe, seconds=seconds, progress=progress)

    @property
    def node_seconds(self) -> float:
        """What it has spent so far."""
        if self._progress is not None and self._progress.node_seconds is not None:
            return self._progress.node_seconds
        return 0.0 if self.held_since_s is None else self.nodes * (time.monotonic() - self.held_since_s)


class Attempts:
    """The attempts that one driver makes; `running` are those under way, by token."""

    def __init__(self, session: CampaignSession, evaluator: Evaluator, retries: RetryPolicy) -> None:
        """The evaluator is closed by `close`."""
        self.running: dict[str, RunningAttempt] = {}
        self._session = session
        self._evaluator = evaluator
        self._retries = retries
        self._spec, self._writer = session.spec, session.writer

    def settle_earlier(self) -> None:
        """Store the outcomes, or the loss, of attempts that earlier drivers left under way."""
        store, campaign_id = self._session.store, self._session.campaign.id
        trials = {trial.id: trial for trial in store.trials(campaign_id)}
        cuts = cuts_by_trial(store, campaign_id)
        self._retries.remember_cuts({trial.id: cuts[trial.number] for trial in trials.values()})
        left_open = store.open_attempts(campaign_id)
        self._end_old_ranks([Path(attempt.run_folder) for attempt in left_open])
        for attempt in left_open:
            trial = trials[attempt.trial_id]
            event, outcome = self._harvest(attempt, trial)
            is_lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.LOST
            is_cut = is_lost and was_interrupted(Path(attempt.run_folder))
            self._store(attempt, trial, outcome, is_cut=is_cut)
            self._session.notice(event, **about(trial))

    def _end_old_ranks(self, folders: list[Path]) -> None:
        """End what earlier drivers' attempts still run on nodes, and wait: the devices are needed, and the outcomes.

        Raises `NodesUnavailable` where something cannot be ended.
        """
        orphans = Orphans(self._session.fenced) if self._evaluator.measures_here else None
        left = OrphanedSteps(folders)
        while not ((orphans is None or orphans.have_ended()) and left.have_ended()):
            time.sleep(LOOK_S)
            self._session.keep()

    def _harvest(self, attempt: Attempt, trial: Trial) -> tuple[str, Outcome]:
        """The event and the outcome of an attempt whose driver is gone."""
        folder = Path(attempt.run_folder)
        outcome = self._evaluator.harvest(ProbeOrder(token=folder.name, recipe=trial.recipe, run_folder=folder))
        if outcome is not None:
            return "harvested", outcome
        seconds = RunFolder(folder).busy_seconds() * nodes_used(trial.recipe, self._spec.problem)
        message = "its driver ended before the probe did"
        return "lost", Failure(kind=FailureKind.LOST, message=message, node_seconds=seconds)

    def start(self, chosen: Trial | Recipe) -> None:
        """Start one probe: of a waiting trial, a new recipe, or a measured one again."""
        trial, folder, attempt = self._writer.atomically(lambda: self._begin(chosen))
        order = ProbeOrder(
            token=folder.name,
            recipe=trial.recipe,
            run_folder=folder,
            best_tokens_per_s=self._speed_to_beat(),
        )
        self.running[order.token] = RunningAttempt(
            trial=trial,
            attempt=attempt,
            order=order,
            started_s=time.monotonic(),
            nodes=nodes_used(trial.recipe, self._spec.problem),
        )
        self._evaluator.start(order)
        self._session.listener.probe_began(self._session.view, trial.number, trial.recipe)

    def _begin(self, chosen: Trial | Recipe) -> tuple[Trial, Path, Attempt]:
        """Queue the trial where it is not yet, and begin its next attempt in a new folder."""
        if isinstance(chosen, Trial):
            trial = chosen
        else:
            trial = self._writer.propose(recipe_id(self._spec.problem, chosen), chosen)
            if trial.state is TrialState.MEASURED:
                self._session.notice("repeat", **about(trial))
                trial = self._writer.repeat(trial)
        folder = new_folder(self._spec.run_folder, trial)
        return trial, folder, self._writer.start_attempt(trial, run_folder=str(folder))

    def _speed_to_beat(self) -> float | None:
        """The best tokens/s so far; None with several objectives, of which a slower recipe may be the best in others.

        Its memory, which could tell, is known only when its probe has ended.
        """
        best = self._session.view.best
        alone = self._spec.search.objectives == TOKENS_ALONE
        return best.outcome.tokens_per_s if alone and best and isinstance(best.outcome, Measurement) else None

    def reuse(self, recipe: Recipe, result: ReusableResult) -> Trial:
        """Store an earlier campaign's result as the outcome of a new recipe; it takes nothing of the budget."""

        def reused() -> Trial:
            trial = self._writer.propose(recipe_id(self._spec.problem, recipe), recipe)
            attempt = self._writer.start_attempt(trial, run_folder=result.run_folder)
            self._writer.finish_attempt(attempt, result.outcome, retry=False)
            self._writer.event(REUSED, **about(trial), **result.origin)
            return trial

        trial = self._writer.atomically(reused)
        self._session.listener.noticed(self._session.view, REUSED, {**about(trial), **result.origin})
        return trial

    def finished(self, timeout_s: float) -> list[Finished]:
        """Return the probes that have ended, waiting up to `timeout_s` for the first."""
        return self._evaluator.finished(timeout_s)

    def conclude(self, finished: Finished) -> tuple[Trial, bool]:
        """Store the outcome of a running probe; return its trial, and whether that is tried again."""
        ended = self.running.pop(finished.token)
        return ended.trial, self._store(ended.attempt, ended.trial, finished.outcome, is_cut=finished.is_cut)

    def _store(self, attempt: Attempt, trial: Trial, outcome: Outcome, *, is_cut: bool) -> bool:
        """Store an outcome; return whether the trial is queued for another attempt."""
        will_retry = self._retries.deserves_retry(attempt, outcome, is_cut=is_cut)

        def finished() -> None:
            self._writer.finish_attempt(attempt, outcome, retry=will_retry)
            if is_cut:
                self._writer.event(CUT, **about(trial))

        self._writer.atomically(finished)
        self._session.budget.ledger.node_seconds += outcome.node_seconds
        return will_retry

    def withdraw_waiting(self) -> list[Finished]:
        """Take back the probes that wait for nodes; that says nothing of their recipes."""
        lost = Failure(kind=FailureKind.LOST, message="withdrawn while it waited for nodes", node_seconds=0.0)
        waiting = [attempt.order.token for attempt in self.running.values() if attempt.held_since_s is None]
        withdrawn = [token for token in waiting if self._evaluator.withdraw(token)]
        return [Finished(token=token, outcome=lost, is_cut=True) for token in withdrawn]

    def refresh_view(self) -> None:
        """Bring what listeners see up to date."""
        # First the progress: it notes which attempts hold their nodes and are charged.
        self._session.view.running = tuple(attempt.update(self._evaluator) for attempt in self.running.values())
        self._session.refresh_view(self.running.values())

    def close(self) -> None:
        """Close the evaluator; store what ended just in time, and queue the trials whose probes that cut off."""
        self._evaluator.close()
        for running in self.running.values():
            cut = Failure(
                kind=FailureKind.LOST, message="cut off when its driver ended", node_seconds=running.node_seconds
            )
            found = self._evaluator.harvest(running.order)
            self._writer.finish_attempt(running.attempt, found or cut, retry=found is None)
            if found is None and running.held_since_s is None:
                self._writer.event(CUT, **about(running.trial))
        self.running.clear()


def new_folder(root: Path, trial: Trial) -> Path:
    """Make a folder that no other attempt has used, also none that the store does not know or of another store."""
    number = 1
    while True:
        folder = root / f"{trial.number:05d}.{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder
