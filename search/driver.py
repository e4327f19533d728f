"""The driver: runs one campaign from its first probe, or from wherever it was left, to its end.

It is the campaign's only writer. Each outcome is on disk in its run folder before it is in the store, and in
the store before the strategy hears of it; so a driver killed at any moment is followed by one that goes on.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from frontrunner.evaluators.measure import nodes_used
from frontrunner.evaluators.protocol import Finished, NodesUnavailable, ProbeOrder, make_evaluator
from frontrunner.evaluators.room import is_full, why_no_room
from frontrunner.results.known import CUT, REUSED, cuts_by_trial, probes_made, reused_trials
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.outlooks import OUTLOOK
from frontrunner.results.provenance import collect
from frontrunner.results.records import Attempt, Campaign, Trial
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.search.account import Account
from frontrunner.search.conclusion import Conclusion
from frontrunner.search.evidence import Gathered
from frontrunner.search.flight import Flight, new_folder, withdrawn
from frontrunner.search.listener import Listener, Silent
from frontrunner.search.objectives import TOKENS_ALONE
from frontrunner.search.patience import Patience
from frontrunner.search.proposals import Proposals
from frontrunner.search.recovery import (
    ended,
    harvest,
    take_in_outlooks,
    take_in_trials,
    wait_for_old_ranks,
    was_cut,
)
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.stopping import StopRule
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

LEASE_S = 30.0
RENEW_S = 5.0
TICK_S = 0.25
PAUSED_BY_REQUEST = "paused by request"


class Driver:
    """Drives one campaign. `run` may be called once; `stop`, `pause` and `kill` may be called from a signal handler."""

    def __init__(
        self,
        *,
        store: Store,
        campaign: Campaign,
        spec: CampaignSpec,
        listener: Listener | None = None,
        survey: Survey | None = None,
        gathered: Gathered | None = None,
    ) -> None:
        """`survey` is the space's, where the caller has made it already; `gathered` what was known before."""
        self._store = store
        self._campaign = campaign
        self._spec = spec
        self._listener: Listener = listener or Silent()
        self._survey = survey or spec.survey()
        self._gathered = gathered or Gathered()
        self._in_flight: dict[str, Flight] = {}
        self._patience = Patience(spec.search.identical_failures)
        self._stop_rule = StopRule(spec.search.stop_below_improvement)
        self._has_measured = False
        self._wants_stop = self._wants_pause = self._wants_kill = self._told_of_stop = False

    @property
    def campaign_name(self) -> str:
        """The name of the campaign that it drives."""
        return self._campaign.name

    def stop(self) -> None:
        """Start nothing more; let running probes finish."""
        self._wants_stop, self._wants_pause = True, False

    def pause(self) -> None:
        """As `stop`, but the campaign is left paused, unless it was being stopped already."""
        self._wants_pause = self._wants_pause or not self._wants_stop
        self._wants_stop = True

    def kill(self) -> None:
        """Start nothing more; end running probes, whose trials are tried again on resume."""
        self._wants_stop = self._wants_kill = True
        self._wants_pause = False

    def run(self, *, take_over: bool = False) -> Conclusion:
        """Drive until the budget is used up, little or nothing is left to gain, failures pause it, or it is stopped.

        Raises `AlreadyDriven` where another live driver holds the campaign or has taken it over, and
        `FrontrunnerError` where the evaluator or a disk fails; the campaign can be resumed after each.
        """
        self._writer = self._store.drive(
            self._store.acquire_lease(
                self._campaign.id, host=socket.gethostname(), pid=os.getpid(), duration_s=LEASE_S, take_over=take_over
            )
        )
        held = self._store.campaign(self._campaign.name)
        self._account = Account(self._spec, held, len(self._survey.recipes))
        self._ledger, self._view = self._account.ledger, self._account.view
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
        provenance = collect(self._spec.problem.cluster.device)

        def began() -> None:
            self._writer.set_state(CampaignState.RUNNING, reason="")
            self._writer.record_provenance(provenance)

        self._writer.atomically(began)
        self._evaluator = make_evaluator(self._spec.evaluator, self._spec.probe_setup())
        try:
            return self._drive()
        except NodesUnavailable as error:
            return self._concluded(CampaignState.PAUSED, f"no nodes: {error.message}")
        except OSError as error:
            if not is_full(error):
                raise
            return self._concluded(CampaignState.PAUSED, f"a disk is full: {error}")
        finally:
            self._evaluator.close()
            self._give_up_in_flight()

    def _let_go(self, conclusion: Conclusion) -> None:
        seconds = self._ledger.charge()

        def let_go() -> None:
            self._writer.add_driver_seconds(seconds)
            self._writer.release(conclusion.state, reason=conclusion.reason)

        self._writer.atomically(let_go)

    def _drive(self) -> Conclusion:
        self._recover()
        self._refresh()
        self._listener.began(self._view)
        if self._gathered.is_worth_telling:
            self._notice("evidence", **self._gathered.counts(used=self._proposals.remembers))
        while True:
            ending = self._start_what_fits()
            if ending is not None:
                self._withdraw_queued()
            is_over = not self._in_flight or self._wants_kill or self._account.must_cut(self._in_flight.values())
            if ending is not None and is_over:
                return self._concluded(*ending)
            for finished in self._evaluator.finished(TICK_S):
                self._conclude(self._in_flight.pop(finished.token), finished)
            if self._wants_stop and not self._told_of_stop:
                self._told_of_stop = True
                self._notice("stopping", probes_to_finish=0 if self._wants_kill else len(self._in_flight))
            self._keep_lease()
            self._refresh()
            self._listener.ticked(self._view)

    def _start_what_fits(self) -> tuple[CampaignState, str] | None:
        """Start probes while there is room; the state and the reason for which nothing more is to be started."""
        flights, most = self._in_flight, self._spec.search.parallel_probes
        while (ending := self._why_end(flights.values())) is None and len(flights) < most:
            if (full := why_no_room(self._spec.run_folder)) is not None:
                return CampaignState.PAUSED, full
            if (again := self._proposals.again()) is not None:
                self._start(again)
                continue
            if (enough := self._stop_rule.why_stop(self._account.limits)) is not None:
                return CampaignState.FINISHED, enough
            if (new := self._proposals.new()) is None:
                return CampaignState.FINISHED, "every legal recipe has been tried"
            if not self._answered(new):
                self._start(new)
            self._keep_lease()  # answers may follow one another for longer than a lease lasts
        return ending

    def _withdraw_queued(self) -> None:
        """Take back the probes that wait for nodes, where even those that have theirs leave room for no other.

        A budget of probes leaves room for all that were ordered.
        """
        with_nodes = [flight for flight in self._in_flight.values() if flight.held_since_s is not None]
        if self._why_end(with_nodes) is not None:
            for finished in withdrawn(self._in_flight.values(), self._evaluator):
                self._conclude(self._in_flight.pop(finished.token), finished)

    def _answered(self, recipe: Recipe) -> bool:
        """Make what an earlier campaign measured of a new recipe its outcome, where there is such an answer.

        It takes no probe, and nothing of the budget.
        """
        its_id = recipe_id(self._spec.problem, recipe)
        answer = self._gathered.answers.get(its_id)
        if answer is None:
            return False

        def answered() -> Trial:
            trial = self._writer.propose(its_id, recipe)
            attempt = self._writer.start_attempt(trial, run_folder=answer.run_folder)
            self._writer.finish_attempt(attempt, answer.outcome, retry=False)
            self._writer.event(REUSED, **self._about(trial), **answer.origin)
            return trial

        trial = self._writer.atomically(answered)
        self._listener.noticed(self._view, REUSED, {**self._about(trial), **answer.origin})
        self._view.count(ended(trial, answer.outcome, will_retry=False))
        self._proposals.tell(recipe, answer.outcome)
        self._look_ahead()
        return True

    def _concluded(self, state: CampaignState, reason: str) -> Conclusion:
        return Conclusion(
            state=state,
            reason=reason,
            measured=self._view.measured,
            last_failure=self._patience.last_alike if state is CampaignState.PAUSED else None,
            outlook=self._view.outlook,
            limits=self._account.limits,
            objectives=self._spec.search.objectives,
            trainer=self._spec.trainer,
        )

    def _recover(self) -> None:
        """Take in what earlier drivers left: stored outcomes, and those that lie finished in run folders."""
        campaign_id = self._campaign.id
        trials = {trial.id: trial for trial in self._store.trials(campaign_id)}
        cuts = cuts_by_trial(self._store, campaign_id)
        self._patience.remember_cuts({trial.id: cuts[trial.number] for trial in trials.values()})
        left_open = self._store.open_attempts(campaign_id)
        wait_for_old_ranks(left_open, self._keep_lease)
        for attempt in left_open:
            trial = trials[attempt.trial_id]
            event, outcome = harvest(self._evaluator, attempt, trial, self._spec.problem)
            self._finish(attempt, trial, outcome, is_cut=was_cut(attempt, outcome))
            self._notice(event, trial=trial.number, recipe=trial.recipe.describe())
        told = self._store.told(campaign_id)
        self._proposals = Proposals(
            search=self._spec.search,
            survey=self._survey,
            told=told,
            notice=self._notice,
            evidence=self._gathered.evidence,
        )
        now = self._store.trials(campaign_id)
        take_in_trials(now, told, proposals=self._proposals, view=self._view)
        take_in_outlooks(self._store, campaign_id, rule=self._stop_rule, view=self._view)
        reused = reused_trials(self._store, campaign_id)
        self._ledger.probes = probes_made(self._store, self._store.campaign(self._campaign.name))
        # An answer of an earlier campaign does not say that anything runs here.
        self._has_measured = any(trial.state is TrialState.MEASURED and trial.number not in reused for trial in now)

    def _why_end(self, flights: Collection[Flight]) -> tuple[CampaignState, str] | None:
        """The state and the reason for which nothing at all is to be started beside these flights, or None."""
        if self._wants_pause:
            return CampaignState.PAUSED, PAUSED_BY_REQUEST
        if self._wants_stop:
            return CampaignState.STOPPED, "stopped by request"
        if (alike := self._patience.why_pause()) is not None:
            return CampaignState.PAUSED, alike
        used_up = self._account.used_up(flights)
        return None if used_up is None else (CampaignState.FINISHED, f"the budget is used up: {used_up}")

    def _start(self, chosen: Trial | Recipe) -> None:
        """Start one probe: of a trial that waits, a new recipe, or a measured one again."""
        trial, folder, attempt = self._writer.atomically(lambda: self._begun(chosen))
        order = ProbeOrder(
            token=folder.name,
            recipe=trial.recipe,
            run_folder=folder,
            best_tokens_per_s=self._speed_to_beat(),
        )
        self._in_flight[order.token] = Flight(
            trial=trial,
            attempt=attempt,
            order=order,
            started_s=time.monotonic(),
            nodes=nodes_used(trial.recipe, self._spec.problem),
        )
        self._evaluator.start(order)
        self._listener.probe_began(self._view, trial.number, trial.recipe)

    def _begun(self, chosen: Trial | Recipe) -> tuple[Trial, Path, Attempt]:
        """The trial's next attempt, with a folder of its own."""
        trial = chosen if isinstance(chosen, Trial) else self._queued(chosen)
        folder = new_folder(self._spec.run_folder, trial)
        return trial, folder, self._writer.start_attempt(trial, run_folder=str(folder))

    def _speed_to_beat(self) -> float | None:
        """The best tokens/s so far; None with several objectives, of which a slower recipe may be the best in others.

        Its memory, which could tell, is known only when its probe has ended.
        """
        best = self._view.best.outcome if self._view.best else None
        alone = self._spec.search.objectives == TOKENS_ALONE
        return best.tokens_per_s if alone and isinstance(best, Measurement) else None

    def _queued(self, recipe: Recipe) -> Trial:
        """The recipe's trial, ready for an attempt."""
        trial = self._writer.propose(recipe_id(self._spec.problem, recipe), recipe)
        if trial.state is not TrialState.MEASURED:
            return trial
        self._notice("repeat", trial=trial.number, recipe=recipe.describe())
        return self._writer.repeat(trial)

    def _finish(self, attempt: Attempt, trial: Trial, outcome: Outcome, *, is_cut: bool) -> bool:
        """Store what an attempt came to; whether its trial is queued for another."""
        will_retry = self._patience.deserves_retry(attempt, outcome, is_cut=is_cut)

        def finished() -> None:
            self._writer.finish_attempt(attempt, outcome, retry=will_retry)
            if is_cut:
                self._writer.event(CUT, **self._about(trial))

        self._writer.atomically(finished)
        self._ledger.node_seconds += outcome.node_seconds
        return will_retry

    def _conclude(self, flight: Flight, finished: Finished) -> None:
        """Store an outcome, then tell the strategy; or queue the trial for another attempt."""
        trial, outcome = flight.trial, finished.outcome
        will_retry = self._finish(flight.attempt, trial, outcome, is_cut=finished.is_cut)
        done = ended(trial, outcome, will_retry=will_retry)
        self._view.count(done)
        if will_retry:
            self._proposals.put_back(replace(trial, state=TrialState.QUEUED))
        else:
            self._ledger.probes += 1
            self._proposals.tell(trial.recipe, outcome)
            self._patience.count(outcome, measured_before=self._has_measured)
            self._has_measured = self._has_measured or isinstance(outcome, Measurement)
            self._look_ahead()
        self._view.running = tuple(probe for probe in self._view.running if probe.number != trial.number)
        self._account.refresh_limits(self._in_flight.values())
        self._listener.probe_ended(self._view, done)

    def _look_ahead(self) -> None:
        """Ask the strategy, where it can tell, what going on promises, and keep it in the campaign's history."""
        outlook = self._proposals.outlook()
        self._stop_rule.hear(outlook, measured=self._view.measured)
        self._view.outlook = outlook
        if outlook is not None:
            self._writer.event(OUTLOOK, **asdict(outlook), measured=self._view.measured)

    def _give_up_in_flight(self) -> None:
        """Queue the trials of probes that were cut off for the next driver, except those that ended just in time."""
        for flight in self._in_flight.values():
            cut = Failure(
                kind=FailureKind.LOST, message="cut off when its driver ended", node_seconds=flight.node_seconds
            )
            found = self._evaluator.harvest(flight.order)
            self._writer.finish_attempt(flight.attempt, found or cut, retry=found is None)
            if found is None and flight.held_since_s is None:
                self._writer.event(CUT, **self._about(flight.trial))
        self._in_flight.clear()

    @staticmethod
    def _about(trial: Trial) -> dict[str, str | int]:
        """What events say of the trial that they are about."""
        return {"trial": trial.number, "recipe": trial.recipe.describe()}

    def _notice(self, kind: str, **data: str | int | float | None) -> None:
        self._writer.event(kind, **data)
        self._listener.noticed(self._view, kind, data)

    def _keep_lease(self) -> None:
        if self._ledger.uncharged_s > RENEW_S:
            seconds = self._ledger.charge()

            def kept() -> None:
                self._writer.renew()
                self._writer.add_driver_seconds(seconds)

            self._writer.atomically(kept)

    def _refresh(self) -> None:
        """Bring the view up to date."""
        self._account.refresh(self._in_flight.values(), self._evaluator)
