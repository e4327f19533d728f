"""The attempts of one driver: started in folders of their own, followed in flight, and stored with their outcomes."""

from __future__ import annotations

import time
from pathlib import Path

from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.stragglers import Orphans
from frontrunner.evaluators.protocol import Evaluator, Finished, Located, ProbeOrder
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.prior_results import CUT, REUSED, cuts_by_trial
from frontrunner.results.records import Attempt, Trial
from frontrunner.results.states import TrialState
from frontrunner.search.answers import Answer
from frontrunner.search.flight import Flight, new_folder, withdrawn
from frontrunner.search.held import Held, about
from frontrunner.search.objectives import TOKENS_ALONE
from frontrunner.search.patience import Patience
from frontrunner.search.recovery import harvest, wait_for_old_ranks, was_cut
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe


class Attempts:
    """The attempts that one driver makes; `in_flight` are those under way, by token."""

    def __init__(self, held: Held, evaluator: Evaluator, patience: Patience) -> None:
        """The evaluator is closed by `end`."""
        self.in_flight: dict[str, Flight] = {}
        self._held = held
        self._evaluator = evaluator
        self._patience = patience
        self._spec, self._writer = held.spec, held.writer

    def settle_earlier(self) -> None:
        """Store what became of the attempts that earlier drivers left under way: outcomes in run folders, or none."""
        store, campaign_id = self._held.store, self._held.campaign.id
        trials = {trial.id: trial for trial in store.trials(campaign_id)}
        cuts = cuts_by_trial(store, campaign_id)
        self._patience.remember_cuts({trial.id: cuts[trial.number] for trial in trials.values()})
        left_open = store.open_attempts(campaign_id)
        is_elsewhere = isinstance(self._evaluator, Located) and not self._evaluator.measures_here
        wait_for_old_ranks(left_open, self._held.keep, None if is_elsewhere else Orphans(self._held.fenced))
        for attempt in left_open:
            trial = trials[attempt.trial_id]
            event, outcome = harvest(self._evaluator, attempt, trial, self._spec.problem)
            self._store(attempt, trial, outcome, is_cut=was_cut(attempt, outcome))
            self._held.notice(event, **about(trial))

    def start(self, chosen: Trial | Recipe) -> None:
        """Start one probe: of a trial that waits, a new recipe, or a measured one again."""
        trial, folder, attempt = self._writer.atomically(lambda: self._begun(chosen))
        order = ProbeOrder(
            token=folder.name,
            recipe=trial.recipe,
            run_folder=folder,
            best_tokens_per_s=self._speed_to_beat(),
        )
        self.in_flight[order.token] = Flight(
            trial=trial,
            attempt=attempt,
            order=order,
            started_s=time.monotonic(),
            nodes=nodes_used(trial.recipe, self._spec.problem),
        )
        self._evaluator.start(order)
        self._held.listener.probe_began(self._held.view, trial.number, trial.recipe)

    def _begun(self, chosen: Trial | Recipe) -> tuple[Trial, Path, Attempt]:
        """The trial's next attempt, with a folder of its own."""
        trial = chosen if isinstance(chosen, Trial) else self._queued(chosen)
        folder = new_folder(self._spec.run_folder, trial)
        return trial, folder, self._writer.start_attempt(trial, run_folder=str(folder))

    def _queued(self, recipe: Recipe) -> Trial:
        """The recipe's trial, ready for an attempt."""
        trial = self._writer.propose(recipe_id(self._spec.problem, recipe), recipe)
        if trial.state is not TrialState.MEASURED:
            return trial
        self._held.notice("repeat", **about(trial))
        return self._writer.repeat(trial)

    def _speed_to_beat(self) -> float | None:
        """The best tokens/s so far; None with several objectives, of which a slower recipe may be the best in others.

        Its memory, which could tell, is known only when its probe has ended.
        """
        best = self._held.view.best
        alone = self._spec.search.objectives == TOKENS_ALONE
        return best.outcome.tokens_per_s if alone and best and isinstance(best.outcome, Measurement) else None

    def answer(self, recipe: Recipe, answer: Answer) -> Trial:
        """Make what an earlier campaign measured of a new recipe its outcome, and say so.

        It takes no probe, and nothing of the budget.
        """

        def answered() -> Trial:
            trial = self._writer.propose(recipe_id(self._spec.problem, recipe), recipe)
            attempt = self._writer.start_attempt(trial, run_folder=answer.run_folder)
            self._writer.finish_attempt(attempt, answer.outcome, retry=False)
            self._writer.event(REUSED, **about(trial), **answer.origin)
            return trial

        trial = self._writer.atomically(answered)
        self._held.listener.noticed(self._held.view, REUSED, {**about(trial), **answer.origin})
        return trial

    def finished(self, timeout_s: float) -> list[Finished]:
        """The probes that have ended, after waiting for one for at most this long."""
        return self._evaluator.finished(timeout_s)

    def conclude(self, finished: Finished) -> tuple[Trial, bool]:
        """Store what a probe in flight came to; its trial, and whether that is to be tried again."""
        flight = self.in_flight.pop(finished.token)
        return flight.trial, self._store(flight.attempt, flight.trial, finished.outcome, is_cut=finished.is_cut)

    def _store(self, attempt: Attempt, trial: Trial, outcome: Outcome, *, is_cut: bool) -> bool:
        """Store what an attempt came to; whether its trial is queued for another."""
        will_retry = self._patience.deserves_retry(attempt, outcome, is_cut=is_cut)

        def finished() -> None:
            self._writer.finish_attempt(attempt, outcome, retry=will_retry)
            if is_cut:
                self._writer.event(CUT, **about(trial))

        self._writer.atomically(finished)
        self._held.account.ledger.node_seconds += outcome.node_seconds
        return will_retry

    def withdraw_waiting(self) -> list[Finished]:
        """Take back the probes that wait for nodes."""
        return withdrawn(self.in_flight.values(), self._evaluator)

    def refresh_view(self) -> None:
        """Bring what listeners see up to date."""
        self._held.account.refresh(self.in_flight.values(), self._evaluator)

    def end(self) -> None:
        """Close the evaluator, and queue the trials whose probes that cut off; those that ended just in time count."""
        self._evaluator.close()
        for flight in self.in_flight.values():
            cut = Failure(
                kind=FailureKind.LOST, message="cut off when its driver ended", node_seconds=flight.node_seconds
            )
            found = self._evaluator.harvest(flight.order)
            self._writer.finish_attempt(flight.attempt, found or cut, retry=found is None)
            if found is None and flight.held_since_s is None:
                self._writer.event(CUT, **about(flight.trial))
        self.in_flight.clear()
