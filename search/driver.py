"""The driver: runs one campaign from its first probe, or from wherever it was left, to its end.

It is the campaign's only writer. Each outcome is on disk in its run folder before it is in the store, and in
the store before the strategy hears of it; so a driver killed at any moment is followed by one that goes on.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.evaluators.protocol import Finished, ProbeOrder, make_evaluator
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.provenance import collect
from frontrunner.results.records import Attempt, Campaign, Trial
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.search.budget import Spent, exhausted, limits, seconds_left
from frontrunner.search.listener import Ended, Listener, RunningProbe, Silent, View
from frontrunner.search.proposals import Proposals
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

LEASE_S = 30.0
RENEW_S = 5.0
TICK_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """How a driver left its campaign; `last_failure` is set where failures made it pause."""

    state: CampaignState
    reason: str
    measured: int
    last_failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class _InFlight:
    trial: Trial
    attempt: Attempt
    order: ProbeOrder
    started_s: float


class Driver:
    """Drives one campaign. `run` may be called once; `stop` and `kill` may be called from a signal handler."""

    def __init__(
        self, *, store: Store, campaign: Campaign, spec: CampaignSpec, listener: Listener | None = None
    ) -> None:
        self._store = store
        self._campaign = campaign
        self._spec = spec
        self._run_folder = spec.run_folder
        self._listener: Listener = listener or Silent()
        self._survey: Survey = spec.space.survey(spec.problem)
        self._in_flight: dict[str, _InFlight] = {}
        self._concluded = 0
        self._node_seconds = campaign.node_seconds_spent
        self._failures_of_trial: Counter[tuple[int, FailureKind]] = Counter()
        self._alike: list[Failure] = []
        self._wants_stop = False
        self._wants_kill = False
        self._view = View(name=campaign.name, strategy=spec.search.strategy, legal_recipes=len(self._survey.recipes))

    def stop(self) -> None:
        """Start nothing more; let running probes finish."""
        self._wants_stop = True

    def kill(self) -> None:
        """Start nothing more; end running probes, whose trials are tried again on resume."""
        self._wants_stop = self._wants_kill = True

    def run(self, *, take_over: bool = False) -> Conclusion:
        """Drive until the budget is used up, nothing is left to try, failures pause it, or somebody stops it.

        Raises `AlreadyDriven` where another live driver holds the campaign.
        """
        lease = self._store.acquire_lease(
            self._campaign.id, host=socket.gethostname(), pid=os.getpid(), duration_s=LEASE_S, take_over=take_over
        )
        self._writer = self._store.drive(lease)
        self._started_s = self._charged_s = time.monotonic()
        conclusion = Conclusion(state=CampaignState.PAUSED, reason="the driver ended on an error", measured=0)
        try:
            with self._writer.together():
                self._writer.set_state(CampaignState.RUNNING, reason="")
                self._writer.record_provenance(collect(self._spec.problem.cluster.device))
            self._evaluator = make_evaluator(self._spec.evaluator, self._spec.probe_setup())
            try:
                conclusion = self._drive()
            finally:
                self._evaluator.close()
                self._give_up_in_flight()
        finally:
            self._charge_time()
            self._writer.release(conclusion.state, reason=conclusion.reason)
        self._listener.ended(self._view, conclusion.state, conclusion.reason)
        return conclusion

    def _drive(self) -> Conclusion:
        self._recover()
        self._refresh()
        self._listener.began(self._view)
        while True:
            ending = self._why_end()
            while ending is None and len(self._in_flight) < self._spec.search.parallel_probes:
                if not self._start_next():
                    ending = CampaignState.FINISHED, "every legal recipe has been tried"
                    break
                ending = self._why_end()
            if self._wants_kill or (ending is not None and not self._in_flight):
                state, reason = ending or (CampaignState.STOPPED, "stopped")
                paused = state is CampaignState.PAUSED
                failure = self._alike[-1] if paused and self._alike else None
                return Conclusion(state=state, reason=reason, measured=self._view.measured, last_failure=failure)
            for finished in self._evaluator.finished(TICK_S):
                self._conclude(self._in_flight.pop(finished.token), finished)
            self._keep_lease()
            self._refresh()
            self._listener.ticked(self._view)

    def _recover(self) -> None:
        """Take in what earlier drivers left: stored outcomes, and those that lie finished in run folders."""
        open_attempts = self._store.open_attempts(self._campaign.id)
        trials = {trial.id: trial for trial in self._store.trials(self._campaign.id)}
        for attempt in open_attempts:
            trial = trials[attempt.trial_id]
            folder = Path(attempt.run_folder)
            found = self._evaluator.harvest(ProbeOrder(token=folder.name, recipe=trial.recipe, run_folder=folder))
            outcome = found or Failure(kind=FailureKind.LOST, message="its driver ended before the probe did")
            self._writer.finish_attempt(attempt, outcome, retry=found is None)
            self._notice("harvested" if found else "lost", trial=trial.number, recipe=trial.recipe.describe())
            self._node_seconds += outcome.node_seconds
        stored = self._store.told(self._campaign.id)
        self._proposals = Proposals(
            name=self._spec.search.strategy,
            survey=self._survey,
            seed=self._spec.search.seed,
            told=stored,
            notice=self._notice,
        )
        outcomes = dict(stored)
        for trial in self._store.trials(self._campaign.id):
            if trial.state is TrialState.QUEUED:
                self._proposals.put_back(trial)
                continue
            self._concluded += 1
            if trial.recipe in outcomes:
                self._view.count(self._ended(trial, outcomes[trial.recipe], will_retry=False))

    def _why_end(self) -> tuple[CampaignState, str] | None:
        """The state and the reason for which nothing more is to be started, or None."""
        if self._wants_stop:
            return CampaignState.STOPPED, "stopped by request"
        if len(self._alike) >= self._spec.search.identical_failures:
            kind = self._alike[-1].kind
            return CampaignState.PAUSED, f"the first {len(self._alike)} probes all failed alike: {kind}"
        used_up = exhausted(self._spec.budget, self._spent(in_flight=len(self._in_flight)))
        if used_up is not None:
            return CampaignState.FINISHED, f"the budget is used up: {used_up}"
        return None

    def _start_next(self) -> bool:
        """Start one probe; False when there is nothing left to start."""
        chosen = self._proposals.next()
        if chosen is None:
            return False
        with self._writer.together():
            trial = chosen if isinstance(chosen, Trial) else self._propose(chosen)
            folder = self._new_folder(trial)
            attempt = self._writer.start_attempt(trial, run_folder=str(folder))
        order = ProbeOrder(token=folder.name, recipe=trial.recipe, run_folder=folder)
        self._in_flight[order.token] = _InFlight(trial=trial, attempt=attempt, order=order, started_s=time.monotonic())
        self._evaluator.start(order)
        self._listener.probe_began(self._view, trial.number, trial.recipe)
        return True

    def _propose(self, recipe: Recipe) -> Trial:
        return self._writer.propose(recipe_id(self._spec.problem, recipe), recipe)

    def _new_folder(self, trial: Trial) -> Path:
        """A folder that no earlier attempt has used, not even one that the store did not hear of."""
        number = 1
        while (folder := self._run_folder / f"{trial.number:05d}.{number}").exists():
            number += 1
        return folder

    def _conclude(self, flight: _InFlight, finished: Finished) -> None:
        """Store an outcome, then tell the strategy; or queue the trial for another attempt."""
        outcome, trial = finished.outcome, flight.trial
        will_retry = isinstance(outcome, Failure) and self._deserves_retry(trial, outcome)
        self._writer.finish_attempt(flight.attempt, outcome, retry=will_retry)
        self._node_seconds += outcome.node_seconds
        if will_retry:
            self._proposals.put_back(replace(trial, state=TrialState.QUEUED))
        else:
            self._concluded += 1
            self._proposals.tell(trial.recipe, outcome)
            self._count_alike(outcome)
        ended = self._ended(trial, outcome, will_retry=will_retry)
        self._view.count(ended)
        self._listener.probe_ended(self._view, ended)

    def _deserves_retry(self, trial: Trial, failure: Failure) -> bool:
        self._failures_of_trial[trial.id, failure.kind] += 1
        return self._failures_of_trial[trial.id, failure.kind] < failure.policy.max_attempts

    def _count_alike(self, outcome: Measurement | Failure) -> None:
        """Follow the failures of one kind since this driver began, until anything else happens."""
        if isinstance(outcome, Measurement) or self._view.measured:
            self._alike.clear()
        elif self._alike and self._alike[-1].kind is not outcome.kind:
            self._alike = [outcome]
        else:
            self._alike.append(outcome)

    def _ended(self, trial: Trial, outcome: Measurement | Failure, *, will_retry: bool) -> Ended:
        return Ended(
            number=trial.number,
            recipe=trial.recipe,
            recipe_id=trial.recipe_id,
            outcome=outcome,
            will_retry=will_retry,
        )

    def _give_up_in_flight(self) -> None:
        """Queue the trials of probes that were cut off, for the next driver."""
        for flight in self._in_flight.values():
            cut = Failure(kind=FailureKind.LOST, message="cut off when its driver ended")
            self._writer.finish_attempt(flight.attempt, cut, retry=True)
        self._in_flight.clear()

    def _notice(self, kind: str, **data: str | int | float | None) -> None:
        self._writer.event(kind, **data)
        self._heard(kind, data)

    def _heard(self, kind: str, data: Mapping[str, str | int | float | None]) -> None:
        self._listener.noticed(self._view, kind, data)

    def _keep_lease(self) -> None:
        if time.monotonic() - self._charged_s > RENEW_S:
            with self._writer.together():
                self._writer.renew()
                self._charge_time()

    def _charge_time(self) -> None:
        now = time.monotonic()
        self._writer.add_driver_seconds(now - self._charged_s)
        self._charged_s = now

    def _spent(self, *, in_flight: int = 0) -> Spent:
        """What was spent; probes in flight count as outcomes to come where it is asked for."""
        return Spent(
            probes=self._concluded + in_flight,
            driver_seconds=self._campaign.driver_seconds + time.monotonic() - self._started_s,
            node_seconds=self._node_seconds,
        )

    def _refresh(self) -> None:
        """Bring the view up to date."""
        now, spent = time.monotonic(), self._spent()
        self._view.limits = tuple(limits(self._spec.budget, spent))
        self._view.seconds_left = seconds_left(self._spec.budget, spent)
        self._view.running = tuple(
            RunningProbe(
                number=flight.trial.number,
                recipe=flight.trial.recipe,
                seconds=now - flight.started_s,
                progress=self._evaluator.progress(token),
            )
            for token, flight in self._in_flight.items()
        )
