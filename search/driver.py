"""The driver: runs one campaign from its first probe, or from wherever it was left, to its end.

Its only writer: each outcome is on disk before it is in the store, and in the store before the
strategy learns of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from frontrunner.evaluators.analytic.estimates import estimate_many, not_modelled, plan
from frontrunner.evaluators.protocol import Finished
from frontrunner.evaluators.runs.files import is_disk_full, why_disk_full
from frontrunner.results.database import StoreReplaced
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome, combined
from frontrunner.results.predictions import NO_OUTLOOK, OUTLOOK, newest_outlooks, outlook_of
from frontrunner.results.prior_results import REUSED, probes_made, trials_noted
from frontrunner.results.records import Campaign, Event, Trial
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.search.attempts import CampaignSession
from frontrunner.search.budget import IN_A_ROW, STOPPING, Limit, StopRule
from frontrunner.search.job_time import JobTime
from frontrunner.search.listener import Ended, Listener
from frontrunner.search.proposals import Asked, Proposals
from frontrunner.search.running_attempt import RunningAttempt
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.search.strategy import TOKENS_ALONE, Outlook
from frontrunner.search.warm_start import PriorResults, prior_results
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import FrontrunnerError, NodesUnavailable, TooLittleTime
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

TICK_S = 0.25
PAUSED_BY_REQUEST = "paused by request"
MOST_RESERVED = 3
"""Assumed: probes of the budget that are kept back to measure leading recipes in full."""

Ending = tuple[CampaignState, str]


@dataclass(frozen=True, kw_only=True)
class Conclusion(Displayed):
    """How a driver left its campaign; `last_failure` is set where failures paused it.

    `job_ends`: it was stopped since the driver's batch job ends, and may go on in another one.
    `unmade`: of the measurements that it was asked for, those that were not made; where a probe
    failed, `last_failure` is why.
    """

    state: CampaignState
    reason: str
    measured: int
    last_failure: Failure | None = None
    outlook: Outlook | None = None
    limits: tuple[Limit, ...] = ()
    objectives: tuple[str, ...] = TOKENS_ALONE
    trainer: tuple[str, ...] = ()
    job_ends: bool = False
    unmade: int = 0


class Driver:
    """Drives one campaign. `run` may be called once; `stop`, `pause` and `kill` may be called from
    a signal handler.
    """

    def __init__(  # noqa: PLR0913 - of a store, how it is driven and watched
        self,
        *,
        store: Store,
        campaign: Campaign,
        spec: CampaignSpec,
        listener: Listener | None = None,
        survey: Survey | None = None,
        prior: PriorResults | None = None,
        asked: Sequence[Recipe] = (),
    ) -> None:
        """`survey` is the space's, where the caller has it already; `prior` is what earlier
        campaigns found.

        With `asked` it measures these recipes, whatever the budget, and leaves the campaign in the
        state that it had, also where something ends it early.
        """
        self._store, self._campaign, self._spec = store, campaign, spec
        self._listener = listener or Listener()
        self._survey = survey or spec.survey()
        self._prior = prior or PriorResults()
        self._asked, self._unmade = tuple(asked), len(asked)
        self._failure_of_asked: Failure | None = None
        if asked:
            self._spec = replace(spec, budget=Budget())
        self._stop_rule = StopRule(spec.search.stop_below_improvement)
        self._wants_stop = self._wants_pause = self._wants_kill = False
        self._announced: tuple[CampaignState, bool] | None = None
        self._job_ends = False

    @property
    def campaign_name(self) -> str:
        """The name of the campaign that it drives."""
        return self._campaign.name

    def stop(self) -> None:
        """Start nothing more; let running probes finish."""
        self._wants_stop, self._wants_pause = True, False

    def pause(self) -> None:
        """As `stop`, but leave the campaign paused, unless it was being stopped already."""
        self._wants_pause = self._wants_pause or not self._wants_stop
        self._wants_stop = True

    def kill(self) -> None:
        """Start nothing more; end running probes, whose trials are tried again on resume."""
        self._wants_stop = self._wants_kill = True
        self._wants_pause = False

    def run(self, *, take_over: bool = False) -> Conclusion:
        """Drive until the campaign ends, is paused or is stopped; raises `AlreadyDriven`, or
        `FrontrunnerError`.
        """
        self._session = session = CampaignSession(
            self._store,
            self._campaign,
            self._spec,
            self._survey,
            self._listener,
            take_over=take_over,
        )
        session.takes_changes = not self._asked
        is_instant = self._campaign.figures != "measured"
        self._job = JobTime(0.0 if is_instant else self._spec.probe.deadline_s)
        state, reason = CampaignState.FAILED, "the driver was interrupted"
        has_store = True
        try:
            session.begin(asked=len(self._asked))
            state, reason = self._drive()
        except StoreReplaced as error:
            has_store = False
            folder = self._spec.run_folder
            raise StoreReplaced(
                f"campaign {self.campaign_name} has stopped: {error.message}",
                hint=(
                    f"{error.hint}. Outcomes that it lacks are in the run folders:"
                    f" frontrunner store recover {folder}"
                ),
            ) from error
        except Exception as error:
            reason = f"the driver ended on {type(error).__name__}: {error}"[:500]
            if isinstance(error, OSError):  # such as a full disk
                again = (
                    "measure again" if self._asked else f"frontrunner resume {self.campaign_name}"
                )
                hint = f"fix the cause, then: {again}"
                raise FrontrunnerError(
                    f"campaign {self.campaign_name} has stopped: {error}", hint=hint
                ) from error
            raise
        finally:
            self._job.close()
            if has_store:
                session.close(*(self._as_left if self._asked else (state, reason)))
        last_failure = (
            next(reversed(session.retries.alike), None) if state is CampaignState.PAUSED else None
        )
        if self._asked:
            made = f"{len(self._asked) - self._unmade} of {len(self._asked)} measured as asked"
            state, reason = self._as_left[0], f"{made}; {reason}" if reason else made
            last_failure = self._failure_of_asked
        self._listener.ended(session.view, state, reason)
        return Conclusion(
            state=state,
            reason=reason,
            measured=session.view.measured,
            last_failure=last_failure,
            outlook=session.view.outlook,
            limits=session.budget.limits(),
            objectives=self._spec.search.objectives,
            trainer=self._spec.trainer,
            job_ends=self._job_ends,
            unmade=self._unmade,
        )

    def _drive(self) -> Ending:
        try:
            self._session.settle_earlier()
            self._restore()
            return self._probe()
        except TooLittleTime as error:
            return self._end_of_job(error.message)
        except NodesUnavailable as error:
            return CampaignState.PAUSED, f"no nodes: {error.message}"
        except OSError as error:
            if not is_disk_full(error):
                raise
            return CampaignState.PAUSED, f"a disk is full: {error}"
        finally:
            for trial, outcome in self._session.close_evaluator():
                self._count(_ended(trial, outcome))

    def _probe(self) -> Ending:
        session = self._session
        session.refresh_view()
        self._listener.began(session.view)
        if self._prior:
            counts = self._prior.counts(self._survey.recipes, used=self._proposals.remembers)
            session.notice("evidence", **counts)
        if self._proposals.pruned:
            session.notice("pruned", recipes=self._proposals.pruned, of=len(self._survey.recipes))
        while True:
            ending = self._start_what_fits()
            if ending is not None:
                self._withdraw_queued()
            running = session.running
            self._announce_end(len(running))
            is_over = not running or self._wants_kill or session.budget.must_cut(running.values())
            if ending is not None and is_over:
                return ending
            if (
                running and self._job.must_cut
            ):  # also where all that is left of the campaign runs already
                return self._end_of_job("its job ends, and cuts off what runs")
            session.settle_nodes()
            for finished in session.finished(TICK_S):
                self._conclude(finished)
            session.keep()
            session.refresh_view()
            self._listener.ticked(session.view)

    def _announce_end(self, running: int) -> None:
        leaves, kills = (
            CampaignState.PAUSED if self._wants_pause else CampaignState.STOPPED,
            self._wants_kill,
        )
        leaves = self._as_left[0] if self._asked else leaves
        if self._wants_stop and self._announced != (leaves, kills):
            self._announced = leaves, kills
            probes = (
                {"probes_to_finish": 0, "probes_ended": running}
                if kills
                else {"probes_to_finish": running}
            )
            self._session.notice(STOPPING, leaves=leaves.value, **probes)

    def _restore(self) -> None:
        """Take in what is stored: outcomes, waiting trials, and outlooks, so that an ended campaign
        stays ended.
        """
        session, store, campaign = self._session, self._store, self._campaign
        trials, told = store.trials(campaign.id), list(session.outcomes.told())
        search = self._spec.search
        if self._spec.evaluator_kind.looks_up:  # its rows say what ran
            search = replace(search, prune_infeasible=False)
        self._proposals: Proposals | Asked
        if self._asked:
            self._proposals = Asked(self._asked)
        else:
            self._proposals = Proposals(
                search=search,
                survey=self._survey,
                told=told,
                known=session.outcomes,
                notice=session.notice,
                evidence=self._prior.evidence,
            )
        self._show_stored(trials, told)
        known = {recipe for recipe, _ in told}
        lost = Failure(kind=FailureKind.LOST, message="lost each time it was tried")
        for trial in trials:
            if trial.state is TrialState.QUEUED:
                if not self._asked:
                    self._proposals.put_back(trial)
                continue
            self._proposals.leave_out(trial.recipe)
            if trial.recipe not in known:
                session.view.count(_ended(trial, lost))

        def read_outlooks() -> list[Event]:
            with store.database.read() as connection:
                return list(newest_outlooks(connection, campaign.id, IN_A_ROW))

        events = store.database.repeated(read_outlooks)
        for event in events:
            session.view.outlook, measured = (
                outlook_of(event) if event.kind == OUTLOOK else (None, 0)
            )
            self._stop_rule.hear(session.view.outlook, measured=measured)
        session.budget.probes = probes_made(store, store.campaign(campaign.name))
        # A reused result does not show that anything runs here.
        reused = trials_noted(store, campaign.id, REUSED)
        self._has_measured = any(
            trial.state is TrialState.MEASURED and trial.number not in reused for trial in trials
        )

    def _show_stored(self, trials: Sequence[Trial], told: Sequence[tuple[Recipe, Outcome]]) -> None:
        """Count the stored outcomes in the view; all measurements among them count."""
        by_recipe = {trial.recipe: trial for trial in trials}
        measurements: dict[Recipe, list[Measurement]] = {}
        for recipe, outcome in told:
            if isinstance(outcome, Measurement):
                measurements.setdefault(recipe, []).append(outcome)
        for recipe, outcome in told:
            pooled = combined(measurements[recipe]) if recipe in measurements else None
            self._session.view.count(_ended(by_recipe[recipe], outcome), pooled)

    def _start_what_fits(self) -> Ending | None:
        running = self._session.running
        most = self._spec.search.parallel_probes
        while (ending := self._why_end(running.values())) is None and len(running) < most:
            if (full := why_disk_full(self._spec.run_folder)) is not None:
                return CampaignState.PAUSED, full
            if (ending := self._start_next()) is not None:
                return ending
        return ending

    def _start_next(self) -> Ending | None:
        """Start the next probe, or take over an earlier campaign's result; return the ending where
        nothing is left to be started.
        """
        session = self._session
        if (again := self._proposals.again()) is not None:
            session.start(again)
            return None
        if self._asked:
            return self._as_left[0], ""
        enough = self._stop_rule.why_stop(session.budget.limits())
        is_search_over = enough is not None or self._must_confirm
        if is_search_over or (new := self._proposals.new()) is None:
            is_over = not self._confirm_leader()
            return (CampaignState.FINISHED, enough or self._all_tried) if is_over else None
        # Strategies may take long to propose.
        if (late := self._why_end(session.running.values())) is not None:
            return late
        if not self._reuse(new):
            session.start(new, self._proposals.expected(new))
        session.keep()  # reused results may follow one another for longer than a lease lasts
        return None

    @property
    def _must_confirm(self) -> bool:
        """Whether the budget leaves no more probes than leading recipes need to be measured in
        full.
        """
        needed = min(len(self._proposals.unconfirmed), MOST_RESERVED)
        budget = self._session.budget
        return needed > 0 and budget.probes_left(self._session.running.values()) <= needed

    def _confirm_leader(self) -> bool:
        """Start a full measurement of a leading recipe that lacks one; return False where none
        does.
        """
        leader = self._proposals.confirm()
        if leader is not None:
            self._session.start(leader)
        return leader is not None

    @property
    def _as_left(self) -> Ending:
        """The state before what was asked for was measured; that of a driver that was killed is
        `stopped`.
        """
        state, reason = self._campaign.state, self._campaign.state_reason
        if state in (CampaignState.CREATED, CampaignState.RUNNING):
            return (
                CampaignState.STOPPED,
                "its driver was killed; since then recipes were measured as asked",
            )
        return state, reason

    def _why_end(self, running: Collection[RunningAttempt]) -> Ending | None:
        """Return the ending for which nothing at all is started in addition to `running`, or
        None.
        """
        if self._wants_pause:
            return CampaignState.PAUSED, PAUSED_BY_REQUEST
        if self._wants_stop:
            return (
                CampaignState.STOPPED,
                f"{'canceled' if self._wants_kill else 'stopped'} by request",
            )
        if (alike := self._session.retries.why_pause()) is not None:
            return CampaignState.PAUSED, alike
        used_up = self._session.budget.used_up(running)
        if used_up is not None:
            why = (
                "the budget is used up"
                if used_up.share == 1
                else "the hard budget leaves too little for a probe"
            )
            return CampaignState.FINISHED, f"{why}: {used_up}"
        late = self._job.why_end()
        return None if late is None else self._end_of_job(late)

    def _end_of_job(self, why: str) -> Ending:
        """Return the ending for which another job's driver goes on; a job too short for any probe
        pauses instead.
        """
        if self._job.has_probed or self._session.running:
            self._job_ends = True
            return CampaignState.STOPPED, why
        return CampaignState.PAUSED, f"{why}; no probe has run in it"

    def _withdraw_queued(self) -> None:
        """Withdraw the probes that wait for nodes if the running ones alone leave no room for
        another.
        """
        with_nodes = [
            attempt
            for attempt in self._session.running.values()
            if attempt.held_since_s is not None
        ]
        if self._why_end(with_nodes) is not None:
            for finished in self._session.withdraw_waiting():
                self._conclude(finished)

    def _reuse(self, recipe: Recipe) -> bool:
        result = self._prior.reusable.get(recipe_id(self._spec.problem, recipe))
        if result is None:
            return False
        trial = self._session.reuse(recipe, result)
        self._session.view.count(_ended(trial, result.outcome))
        self._learn(recipe, result.outcome)
        return True

    def _conclude(self, finished: Finished) -> None:
        session, view, outcome = self._session, self._session.view, finished.outcome
        if (held_since_s := session.running[finished.token].held_since_s) is not None:
            self._job.note(time.monotonic() - held_since_s)
        trial, will_retry = session.conclude(finished)
        ended = _ended(trial, outcome, will_retry=will_retry)
        self._count(ended)
        if will_retry:
            if isinstance(
                outcome, Measurement
            ):  # disturbed: what is known until it is measured again
                self._proposals.tell(trial.recipe, outcome)
            self._proposals.put_back(replace(trial, state=TrialState.QUEUED))
        else:
            is_full = isinstance(outcome, Failure) and outcome.kind is FailureKind.OUT_OF_MEMORY
            if self._has_measured or not (is_full and self._is_too_large(trial.recipe)):
                session.retries.count(outcome, measured_before=self._has_measured)
            self._has_measured = self._has_measured or isinstance(outcome, Measurement)
            self._learn(trial.recipe, outcome)
        view.running = tuple(probe for probe in view.running if probe.number != trial.number)
        session.refresh_limits()
        self._listener.probe_ended(view, ended)

    def _count(self, ended: Ended) -> None:
        self._session.view.count(ended)
        if ended.will_retry:
            return
        self._session.budget.probes += 1
        if isinstance(ended.outcome, Failure):
            self._failure_of_asked = ended.outcome
        elif self._asked:
            self._unmade -= 1

    @property
    def _all_tried(self) -> str:
        pruned = self._proposals.pruned
        but = (
            f", but for {pruned:,} that surely do not fit (search.prune_infeasible)"
            if pruned
            else ""
        )
        return f"every legal recipe has been tried{but}"

    def _is_too_large(self, recipe: Recipe) -> bool:
        """Return whether the formulas predict that a recipe does not fit, and that others do."""
        if (
            not_modelled(recipe) is not None
            or estimate_many([recipe], self._survey.problem).fitting
        ):
            return False
        return self._some_fit

    @cached_property
    def _some_fit(self) -> bool:
        return bool(plan(self._survey.recipes, self._survey.problem).table.fitting)

    def _learn(self, recipe: Recipe, outcome: Outcome) -> None:
        if not self._proposals.tell(recipe, outcome):
            return  # it taught nothing: the last forecast stands, and counts once
        view, before = self._session.view, self._session.view.outlook
        view.outlook = self._proposals.outlook()
        self._stop_rule.hear(view.outlook, measured=view.measured)
        if view.outlook is not None:
            self._session.writer.event(OUTLOOK, **asdict(view.outlook), measured=view.measured)
        elif before is not None and not self._asked:
            self._session.writer.event(
                NO_OUTLOOK
            )  # else the next driver would take those around it as in a row


OnDriver = Callable[[Driver], None]


def run_campaign(  # noqa: PLR0913 - of a store, how it is driven and watched
    store: Store,
    campaign: Campaign,
    spec: CampaignSpec,
    *,
    survey: Survey | None = None,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
    take_over: bool = False,
    asked: Sequence[Recipe] = (),
) -> Conclusion:
    """Drive a stored campaign, with what earlier campaigns of the store found, until it ends or is
    stopped.

    With `asked` these recipes are measured, and nothing else is.
    """
    prior = PriorResults() if asked else prior_results(store, campaign, spec)
    driver = Driver(
        store=store,
        campaign=campaign,
        spec=spec,
        listener=listener,
        survey=survey,
        prior=prior,
        asked=asked,
    )
    if on_driver is not None:
        on_driver(driver)
    return driver.run(take_over=take_over)


def _ended(trial: Trial, outcome: Outcome, *, will_retry: bool = False) -> Ended:
    return Ended(
        number=trial.number,
        recipe=trial.recipe,
        recipe_id=trial.recipe_id,
        outcome=outcome,
        will_retry=will_retry,
    )
