"""The driver: runs one campaign from its first probe, or from wherever it was left, to its end.

It is the campaign's only writer. Each outcome is on disk in its run folder before it is in the store, and in
the store before the strategy hears of it; so a driver killed at any moment is followed by one that goes on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from frontrunner.evaluators.probe.files import is_disk_full, why_disk_full
from frontrunner.evaluators.protocol import Finished, NodesUnavailable
from frontrunner.evaluators.registry import make_evaluator
from frontrunner.results.provenance import collect
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.search.account import Account
from frontrunner.search.attempts import Attempts
from frontrunner.search.conclusion import Conclusion
from frontrunner.search.evidence import Gathered
from frontrunner.search.flight import Flight
from frontrunner.search.held import Held, fenced_here, take_lease
from frontrunner.search.lessons import Lessons
from frontrunner.search.listener import Listener, Silent
from frontrunner.search.patience import Patience
from frontrunner.search.recovery import ended
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.stopping import STOPPING
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

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
        self._patience = Patience(spec.search.identical_failures)
        self._wants_stop = self._wants_pause = self._wants_kill = False
        self._told_of: CampaignState | None = None

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
        self._held = held = self._hold(take_over=take_over)
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
            held.let_go(conclusion)
        held.listener.ended(held.view, conclusion.state, conclusion.reason)
        return conclusion

    def _hold(self, *, take_over: bool) -> Held:
        holder = self._store.campaign(self._campaign.name).driver
        writer = take_lease(self._store, self._campaign, take_over=take_over)
        as_left = self._store.campaign(self._campaign.name)
        return Held(
            store=self._store,
            campaign=self._campaign,
            spec=self._spec,
            survey=self._survey,
            writer=writer,
            account=Account(self._spec, as_left, len(self._survey.recipes)),
            listener=self._listener,
            fenced=fenced_here(holder, self._spec.run_folder),
        )

    def _drive_with_evaluator(self) -> Conclusion:
        self._held.begin(collect(self._spec.problem.cluster.device))
        evaluator = make_evaluator(self._spec.evaluator, self._spec.probe_setup())
        self._attempts = Attempts(self._held, evaluator, self._patience)
        try:
            return self._drive()
        except NodesUnavailable as error:
            return self._concluded(CampaignState.PAUSED, f"no nodes: {error.message}")
        except OSError as error:
            if not is_disk_full(error):
                raise
            return self._concluded(CampaignState.PAUSED, f"a disk is full: {error}")
        finally:
            self._attempts.end()

    def _drive(self) -> Conclusion:
        held, attempts = self._held, self._attempts
        attempts.settle_earlier()
        self._lessons = Lessons(held, self._patience, self._gathered)
        attempts.refresh_view()
        held.listener.began(held.view)
        if self._gathered.is_worth_telling:
            held.notice("evidence", **self._gathered.counts(used=self._lessons.proposals.remembers))
        while True:
            ending = self._start_what_fits()
            if ending is not None:
                self._withdraw_queued()
            is_over = not attempts.in_flight or self._wants_kill or held.account.must_cut(attempts.in_flight.values())
            if ending is not None and is_over:
                return self._concluded(*ending)
            for finished in attempts.finished(TICK_S):
                self._conclude(finished)
            self._tell_of_stop()
            held.keep()
            attempts.refresh_view()
            held.listener.ticked(held.view)

    def _tell_of_stop(self) -> None:
        """Once for each state in which the campaign is to be left, with the probes that may finish before."""
        leaves = CampaignState.PAUSED if self._wants_pause else CampaignState.STOPPED
        if self._wants_stop and self._told_of is not leaves:
            self._told_of = leaves
            probes = 0 if self._wants_kill else len(self._attempts.in_flight)
            self._held.notice(STOPPING, leaves=leaves.value, probes_to_finish=probes)

    def _start_what_fits(self) -> tuple[CampaignState, str] | None:
        """Start probes while there is room; the state and the reason for which nothing more is to be started."""
        flights, most = self._attempts.in_flight, self._spec.search.parallel_probes
        proposals, stop_rule = self._lessons.proposals, self._lessons.stop_rule
        while (ending := self._why_end(flights.values())) is None and len(flights) < most:
            if (full := why_disk_full(self._spec.run_folder)) is not None:
                return CampaignState.PAUSED, full
            if (again := proposals.again()) is not None:
                self._attempts.start(again)
                continue
            if (enough := stop_rule.why_stop(self._held.account.limits)) is not None:
                return CampaignState.FINISHED, enough
            if (new := proposals.new()) is None:
                return CampaignState.FINISHED, "every legal recipe has been tried"
            if (late := self._why_end(flights.values())) is not None:  # strategies may take long to answer
                return late
            if not self._answered(new):
                self._attempts.start(new)
            self._held.keep()  # answers may follow one another for longer than a lease lasts
        return ending

    def _why_end(self, flights: Collection[Flight]) -> tuple[CampaignState, str] | None:
        """The state and the reason for which nothing at all is to be started beside these flights, or None."""
        if self._wants_pause:
            return CampaignState.PAUSED, PAUSED_BY_REQUEST
        if self._wants_stop:
            return CampaignState.STOPPED, "stopped by request"
        if (alike := self._patience.why_pause()) is not None:
            return CampaignState.PAUSED, alike
        used_up = self._held.account.used_up(flights)
        if used_up is None:
            return None
        why = "the budget is used up" if used_up.share == 1 else "the hard budget leaves too little for a probe"
        return CampaignState.FINISHED, f"{why}: {used_up}"

    def _withdraw_queued(self) -> None:
        """Take back the probes that wait for nodes, where even those that have theirs leave room for no other.

        A budget of probes leaves room for all that were ordered.
        """
        with_nodes = [flight for flight in self._attempts.in_flight.values() if flight.held_since_s is not None]
        if self._why_end(with_nodes) is not None:
            for finished in self._attempts.withdraw_waiting():
                self._conclude(finished)

    def _answered(self, recipe: Recipe) -> bool:
        """Whether an earlier campaign's measurement of a new recipe is its outcome, so that it takes no probe."""
        answer = self._gathered.answers.get(recipe_id(self._spec.problem, recipe))
        if answer is None:
            return False
        trial = self._attempts.answer(recipe, answer)
        self._held.view.count(ended(trial, answer.outcome, will_retry=False))
        self._lessons.learn(recipe, answer.outcome)
        return True

    def _conclude(self, finished: Finished) -> None:
        """Store an outcome, then tell the strategy; or queue the trial for another attempt."""
        held, view, outcome = self._held, self._held.view, finished.outcome
        trial, will_retry = self._attempts.conclude(finished)
        done = ended(trial, outcome, will_retry=will_retry)
        view.count(done)
        if will_retry:
            self._lessons.proposals.put_back(replace(trial, state=TrialState.QUEUED))
        else:
            held.account.ledger.probes += 1
            self._lessons.learn_from_probe(trial.recipe, outcome)
        view.running = tuple(probe for probe in view.running if probe.number != trial.number)
        held.account.refresh_limits(self._attempts.in_flight.values())
        held.listener.probe_ended(view, done)

    def _concluded(self, state: CampaignState, reason: str) -> Conclusion:
        view = self._held.view
        return Conclusion(
            state=state,
            reason=reason,
            measured=view.measured,
            last_failure=self._patience.last_alike if state is CampaignState.PAUSED else None,
            outlook=view.outlook,
            limits=self._held.account.limits,
            objectives=self._spec.search.objectives,
            trainer=self._spec.trainer,
        )
