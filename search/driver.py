"""The driver: runs one campaign from its first probe, or from wherever it was left, to its end.

It is the campaign's only writer. Each outcome is on disk in its run folder before it is in the store, and in
the store before the strategy hears of it; so a driver killed at any moment is followed by one that goes on.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.evaluators.measure import nodes_used
from frontrunner.evaluators.protocol import ProbeOrder, make_evaluator
from frontrunner.evaluators.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.provenance import collect
from frontrunner.results.records import Attempt, Campaign, Trial
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.search.budget import Ledger, exhausted, limits, seconds_left
from frontrunner.search.listener import Ended, Listener, RunningProbe, Silent, View
from frontrunner.search.proposals import Proposals
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

LEASE_S = 30.0
RENEW_S = 5.0
TICK_S = 0.25
MAX_ATTEMPTS = 8
"""Of one trial, whatever ended them and however many drivers made them: some recipes take their driver along."""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """How a driver left its campaign; `last_failure` is set where failures made it pause."""

    state: CampaignState
    reason: str
    measured: int
    last_failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class _InFlight:
    """An attempt under way; `started_s` is by the monotonic clock, `nodes` how many it occupies."""

    trial: Trial
    attempt: Attempt
    order: ProbeOrder
    started_s: float
    nodes: int

    @property
    def node_seconds(self) -> float:
        return self.nodes * (time.monotonic() - self.started_s)


class Driver:
    """Drives one campaign. `run` may be called once; `stop` and `kill` may be called from a signal handler."""

    def __init__(
        self,
        *,
        store: Store,
        campaign: Campaign,
        spec: CampaignSpec,
        listener: Listener | None = None,
        survey: Survey | None = None,
    ) -> None:
        """`survey` is the space's, where the caller has made it already."""
        self._store = store
        self._campaign = campaign
        self._spec = spec
        self._listener: Listener = listener or Silent()
        self._survey = survey or spec.survey()
        self._in_flight: dict[str, _InFlight] = {}
        self._failures_of_trial: Counter[tuple[int, FailureKind]] = Counter()
        self._alike: list[Failure] = []
        self._wants_stop = self._wants_kill = self._told_of_stop = False
        self._view = View(
            name=campaign.name,
            strategy=spec.search.strategy,
            legal_recipes=len(self._survey.recipes),
            figures=campaign.figures,
        )

    def stop(self) -> None:
        """Start nothing more; let running probes finish."""
        self._wants_stop = True

    def kill(self) -> None:
        """Start nothing more; end running probes, whose trials are tried again on resume."""
        self._wants_stop = self._wants_kill = True

    def run(self, *, take_over: bool = False) -> Conclusion:
        """Drive until the budget is used up, nothing is left to try, failures pause it, or somebody stops it.

        Raises `AlreadyDriven` where another live driver holds the campaign or has taken it over, and
        `FrontrunnerError` where the evaluator or a disk fails; the campaign can be resumed after each.
        """
        self._writer = self._store.drive(
            self._store.acquire_lease(
                self._campaign.id, host=socket.gethostname(), pid=os.getpid(), duration_s=LEASE_S, take_over=take_over
            )
        )
        held = self._store.campaign(self._campaign.name)  # what an earlier driver charged until its lease ended
        self._ledger = Ledger(driver_seconds=held.driver_seconds, node_seconds=held.node_seconds_spent)
        conclusion = Conclusion(state=CampaignState.FAILED, reason="the driver was interrupted", measured=0)
        try:
            conclusion = self._drive_with_evaluator()
        except Exception as error:
            conclusion = replace(conclusion, reason=f"the driver ended on {type(error).__name__}: {error}"[:500])
            if isinstance(error, OSError):  # such as a full disk
                raise FrontrunnerError(
                    f"campaign {self._campaign.name} has stopped: {error}",
                    hint=f"once mended: frontrunner resume {self._campaign.name}",
                ) from error
            raise
        finally:
            self._let_go(conclusion)
        self._listener.ended(self._view, conclusion.state, conclusion.reason)
        return conclusion

    def _drive_with_evaluator(self) -> Conclusion:
        with self._writer.together():
            self._writer.set_state(CampaignState.RUNNING, reason="")
            self._writer.record_provenance(collect(self._spec.problem.cluster.device))
        self._evaluator = make_evaluator(self._spec.evaluator, self._spec.probe_setup())
        try:
            return self._drive()
        finally:
            self._evaluator.close()
            self._give_up_in_flight()

    def _let_go(self, conclusion: Conclusion) -> None:
        with self._writer.together():
            self._writer.add_driver_seconds(self._ledger.charge())
            self._writer.release(conclusion.state, reason=conclusion.reason)

    def _drive(self) -> Conclusion:
        self._recover()
        self._refresh()
        self._listener.began(self._view)
        while True:
            ending = self._start_what_fits()
            if ending is not None and (self._wants_kill or not self._in_flight):
                return self._concluded(*ending)
            for finished in self._evaluator.finished(TICK_S):
                self._conclude(self._in_flight.pop(finished.token), finished.outcome)
            if self._wants_stop and not self._told_of_stop:
                self._told_of_stop = True
                self._notice("stopping", probes_to_finish=0 if self._wants_kill else len(self._in_flight))
            self._keep_lease()
            self._refresh()
            self._listener.ticked(self._view)

    def _start_what_fits(self) -> tuple[CampaignState, str] | None:
        """Start probes while there is room; the state and the reason for which nothing more is to be started."""
        while (ending := self._why_end()) is None and len(self._in_flight) < self._spec.search.parallel_probes:
            if not self._start_next():
                return CampaignState.FINISHED, "every legal recipe has been tried"
        return ending

    def _concluded(self, state: CampaignState, reason: str) -> Conclusion:
        failure = self._alike[-1] if state is CampaignState.PAUSED and self._alike else None
        return Conclusion(state=state, reason=reason, measured=self._view.measured, last_failure=failure)

    def _recover(self) -> None:
        """Take in what earlier drivers left: stored outcomes, and those that lie finished in run folders."""
        trials = {trial.id: trial for trial in self._store.trials(self._campaign.id)}
        for attempt in self._store.open_attempts(self._campaign.id):
            self._close_attempt(attempt, trials[attempt.trial_id])
        stored = self._store.told(self._campaign.id)
        self._proposals = Proposals(
            name=self._spec.search.strategy,
            survey=self._survey,
            seed=self._spec.search.seed,
            told=stored,
            notice=self._notice,
        )
        outcomes = dict(stored)
        lost = Failure(kind=FailureKind.LOST, message="lost each time it was tried")
        for trial in self._store.trials(self._campaign.id):
            if trial.state is TrialState.QUEUED:
                self._proposals.put_back(trial)
            else:
                self._ledger.probes += 1
                self._proposals.leave_out(trial.recipe)
                self._view.count(_ended(trial, outcomes.get(trial.recipe, lost), will_retry=False))

    def _close_attempt(self, attempt: Attempt, trial: Trial) -> None:
        """Store what an attempt came to whose driver is gone."""
        folder = Path(attempt.run_folder)
        outcome = self._evaluator.harvest(ProbeOrder(token=folder.name, recipe=trial.recipe, run_folder=folder))
        event = "lost" if outcome is None else "harvested"
        if outcome is None:
            seconds = RunFolder(folder).busy_seconds() * nodes_used(trial.recipe, self._spec.problem)
            outcome = Failure(
                kind=FailureKind.LOST, message="its driver ended before the probe did", node_seconds=seconds
            )
        self._writer.finish_attempt(attempt, outcome, retry=self._deserves_retry(attempt, outcome))
        self._ledger.node_seconds += outcome.node_seconds
        self._notice(event, trial=trial.number, recipe=trial.recipe.describe())

    def _why_end(self) -> tuple[CampaignState, str] | None:
        """The state and the reason for which nothing more is to be started, or None."""
        if self._wants_stop:
            return CampaignState.STOPPED, "stopped by request"
        if len(self._alike) >= self._spec.search.identical_failures:
            kind = self._alike[-1].kind
            return CampaignState.PAUSED, f"the first {len(self._alike)} probes all failed alike: {kind}"
        spent = self._ledger.spent(
            probes_in_flight=len(self._in_flight),
            node_seconds_in_flight=sum(flight.node_seconds for flight in self._in_flight.values()),
        )
        used_up = exhausted(self._spec.budget, spent)
        return None if used_up is None else (CampaignState.FINISHED, f"the budget is used up: {used_up}")

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
        self._in_flight[order.token] = _InFlight(
            trial=trial,
            attempt=attempt,
            order=order,
            started_s=time.monotonic(),
            nodes=nodes_used(trial.recipe, self._spec.problem),
        )
        self._evaluator.start(order)
        self._listener.probe_began(self._view, trial.number, trial.recipe)
        return True

    def _propose(self, recipe: Recipe) -> Trial:
        return self._writer.propose(recipe_id(self._spec.problem, recipe), recipe)

    def _new_folder(self, trial: Trial) -> Path:
        """Make a folder that no other attempt has used: not one that the store never heard of, nor another store's."""
        number = 1
        while True:
            folder = self._spec.run_folder / f"{trial.number:05d}.{number}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return folder

    def _conclude(self, flight: _InFlight, outcome: Outcome) -> None:
        """Store an outcome, then tell the strategy; or queue the trial for another attempt."""
        trial, will_retry = flight.trial, self._deserves_retry(flight.attempt, outcome)
        self._writer.finish_attempt(flight.attempt, outcome, retry=will_retry)
        self._ledger.node_seconds += outcome.node_seconds
        if will_retry:
            self._proposals.put_back(replace(trial, state=TrialState.QUEUED))
        else:
            self._ledger.probes += 1
            self._proposals.tell(trial.recipe, outcome)
            self._count_alike(outcome)
        ended = _ended(trial, outcome, will_retry=will_retry)
        self._view.count(ended)
        self._refresh()
        self._listener.probe_ended(self._view, ended)

    def _deserves_retry(self, attempt: Attempt, outcome: Outcome) -> bool:
        if isinstance(outcome, Measurement):
            return False
        self._failures_of_trial[attempt.trial_id, outcome.kind] += 1
        alike = self._failures_of_trial[attempt.trial_id, outcome.kind]
        return alike < outcome.policy.max_attempts and attempt.number < MAX_ATTEMPTS

    def _count_alike(self, outcome: Outcome) -> None:
        """Follow the failures of one kind since this driver began, until anything else happens."""
        if isinstance(outcome, Measurement) or self._view.measured:
            self._alike.clear()
        elif self._alike and self._alike[-1].kind is not outcome.kind:
            self._alike = [outcome]
        else:
            self._alike.append(outcome)

    def _give_up_in_flight(self) -> None:
        """Queue the trials of probes that were cut off for the next driver, except those that ended just in time."""
        for flight in self._in_flight.values():
            cut = Failure(
                kind=FailureKind.LOST, message="cut off when its driver ended", node_seconds=flight.node_seconds
            )
            found = self._evaluator.harvest(flight.order)
            self._writer.finish_attempt(flight.attempt, found or cut, retry=found is None)
        self._in_flight.clear()

    def _notice(self, kind: str, **data: str | int | float | None) -> None:
        self._writer.event(kind, **data)
        self._listener.noticed(self._view, kind, data)

    def _keep_lease(self) -> None:
        if self._ledger.uncharged_s > RENEW_S:
            with self._writer.together():
                self._writer.renew()
                self._writer.add_driver_seconds(self._ledger.charge())

    def _refresh(self) -> None:
        """Bring the view up to date."""
        now = time.monotonic()
        running = sum(flight.node_seconds for flight in self._in_flight.values())
        spent = self._ledger.spent(node_seconds_in_flight=running)
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


def _ended(trial: Trial, outcome: Outcome, *, will_retry: bool) -> Ended:
    return Ended(
        number=trial.number, recipe=trial.recipe, recipe_id=trial.recipe_id, outcome=outcome, will_retry=will_retry
    )
