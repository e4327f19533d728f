"""A driver's session with its campaign: lease, charged time, history, and the attempts at its
trials.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.agent import OrphanedSteps, was_interrupted
from frontrunner.evaluators.nodes.attempt_nodes import attempt_nodes
from frontrunner.evaluators.nodes.child_processes import Fenced, Orphans
from frontrunner.evaluators.programs.corpus import training_data
from frontrunner.evaluators.protocol import Evaluator, Finished, ProbeOrder
from frontrunner.evaluators.registry import make_evaluator
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.nodes import AWAITED, CHECKED, SET_ASIDE, node_ledger
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.predictions import PROPOSED, Expected
from frontrunner.results.prior_results import CUT, REUSED, trials_noted
from frontrunner.results.process_identity import acting_user, this_host
from frontrunner.results.provenance import collect
from frontrunner.results.records import USER, Attempt, Campaign, Trial, timestamp
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.search.budget import BudgetTracker
from frontrunner.search.campaign_setup import LAUNCHED, RESUMED, stored_spec
from frontrunner.search.listener import Listener, View
from frontrunner.search.recovery import describe_attempt, describe_campaign
from frontrunner.search.running_attempt import RunningAttempt
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.stored_outcomes import StoredOutcomes
from frontrunner.search.warm_start import ReusableResult
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

MAX_ATTEMPTS = 8
"""Per trial, over all drivers, attempts not counted that were cut or that a bad node lost: some
recipes crash their driver.
"""
MOST_CUTS = 50
"""Attempts per trial, those included that preemption, walltimes or bad nodes cut: with more it will
never be measured there.
"""
MOST_DISTURBED = 3
"""Measurements in a row of a trial that other processes disturb; after the last it is not measured
again.
"""
FUTILE_REPEATS = 3
"""Repeats in a row that were disturbed as well, after which a campaign repeats none until one is
not disturbed.
"""
LOOK_S = 0.25
LONG_LOOK_S = 0.001
"""Processor time of a look at everything that runs from which on the next one waits."""
LEASE_S = 30.0
RENEW_S = 2.0
AHEAD_S = 3.0
"""A driver of hard minutes has charged so much more than it has driven: two renewals are at most
this far apart, unless it is held up.
"""
OVERTIME = "overtime"
"""Event of a driver that was held up beyond a hard budget of minutes; its data has the
`seconds`.
"""


class RetryPolicy:
    """Decides whether a failed or disturbed attempt is repeated, and when equal failures pause the
    campaign.
    """

    def __init__(self, identical_failures: int) -> None:
        self.cuts_of_trial: Counter[int] = Counter()  # by its id
        self._identical_failures = identical_failures
        self._failures_of_trial: Counter[tuple[int, FailureKind]] = Counter()
        self.alike: list[Failure] = []
        self._disturbed: Counter[int] = Counter()  # measurements in a row, by the trial's id
        self._futile_repeats = 0

    def deserves_retry(self, attempt: Attempt, outcome: Outcome, *, is_cut: bool = False) -> bool:
        """Return whether another attempt follows; one that `is_cut`, by the loss of its nodes or by
        a bad node, does not count.
        """
        trial = attempt.trial_id
        if isinstance(outcome, Measurement):
            for kind in FailureKind:
                del self._failures_of_trial[trial, kind]
            return self._is_worth_repeating(attempt, outcome)
        if is_cut:
            self.cuts_of_trial[trial] += 1
            return attempt.number < MOST_CUTS
        if outcome.policy.max_attempts == 1:
            return False
        self._failures_of_trial[trial, outcome.kind] += 1
        is_worth_it = self._failures_of_trial[trial, outcome.kind] < outcome.policy.max_attempts
        return is_worth_it and self._may_try_again(attempt)

    def _may_try_again(self, attempt: Attempt) -> bool:
        return attempt.number < min(MOST_CUTS, MAX_ATTEMPTS + self.cuts_of_trial[attempt.trial_id])

    def _is_worth_repeating(self, attempt: Attempt, measured: Measurement) -> bool:
        before = self._disturbed.pop(attempt.trial_id, 0)
        if not measured.is_disturbed:
            self._futile_repeats = 0
            return False
        self._futile_repeats += before > 0
        if (
            before + 1 == MOST_DISTURBED
            or self._futile_repeats >= FUTILE_REPEATS
            or not self._may_try_again(attempt)
        ):
            return False
        self._disturbed[attempt.trial_id] = before + 1
        return True

    def count(self, outcome: Outcome, *, measured_before: bool) -> None:
        """Count failures of one kind in a row, from this driver's start and until anything was
        measured.
        """
        if isinstance(outcome, Measurement) or measured_before:
            self.alike = []
        else:
            self.alike = [*(one for one in self.alike if one.kind is outcome.kind), outcome]

    def why_pause(self) -> str | None:
        """Return the reason to pause the campaign, or None."""
        if len(self.alike) < self._identical_failures:
            return None
        return (
            f"{len(self.alike)} probes failed alike before any was measured: {self.alike[-1].kind}"
        )


class CampaignSession:
    """A campaign that this process drives; `running` are its attempts under way, by token."""

    evaluator: Evaluator
    takes_changes = True
    """Whether a budget that is changed meanwhile limits it."""

    def __init__(
        self,
        store: Store,
        campaign: Campaign,
        spec: CampaignSpec,
        survey: Survey,
        listener: Listener,
        *,
        take_over: bool,
    ) -> None:
        """Acquire the lease; raises `AlreadyDriven` where another live driver holds it, unless it
        is taken over.
        """
        former = store.campaign(campaign.name).driver
        host, pid = this_host(), os.getpid()
        self._lease = store.acquire_lease(
            campaign.id, host=host, pid=pid, duration_s=LEASE_S, take_over=take_over
        )
        self.writer = store.drive(self._lease)
        as_left = store.campaign(
            campaign.name
        )  # under the lease: earlier drivers charge it until theirs ends
        self.budget = BudgetTracker(
            spec.budget,
            driver_seconds=as_left.driver_seconds,
            node_seconds=as_left.node_seconds_spent,
            nodes=spec.problem.cluster.nodes,
            price_per_node_hour=spec.problem.cluster.price_per_node_hour,
        )
        self._charge(ahead_s=AHEAD_S)
        self.outcomes = StoredOutcomes(store, campaign.id, spec.problem)
        self.view = View(
            name=campaign.name,
            strategy=spec.search.strategy,
            legal_recipes=len(survey.recipes),
            figures=campaign.figures,
            divisor=lambda recipe: spec.problem.divisor(spec.search.objectives[0], recipe),
            pooled=self.outcomes.pooled,
        )
        self.listener = listener
        self.retries = RetryPolicy(spec.search.identical_failures)
        self.running: dict[str, RunningAttempt] = {}
        self._store, self._campaign, self._spec = store, campaign, spec
        with store.read(campaign) as (connection, found):
            self._nodes = node_ledger(connection, found)
        self._avoided: dict[str, str] = {}
        self._awaited = ""
        self._spec_as_read = as_left.spec_json
        self._fenced = fenced_here(former, spec.run_folder)
        self._look_again_s = 0.0

    def begin(self, *, asked: int = 0) -> None:
        """Record that the campaign runs, by which driver, for whom and with what software, and make
        its evaluator.

        `asked` counts the recipes that are to be measured, where nothing else is done.
        """
        self.writer.set_state(CampaignState.RUNNING, reason="")
        describe_campaign(self._spec.run_folder, self._store.campaign(self._campaign.name))
        lease = self._lease
        kind = "measuring" if asked else LAUNCHED if lease.epoch == 1 else RESUMED
        by: Any = {"driver": f"{lease.host}:{lease.pid}", USER: acting_user()}
        self.writer.event(kind, **by, **({"recipes": asked} if asked else {}))
        data = training_data(self._spec.data) if self._spec.evaluator_kind.trains else ()
        self.writer.record_provenance(collect(self._spec.problem.cluster.device, data))
        self.evaluator = make_evaluator(self._spec.evaluator, self._spec.probe_setup())

    def keep(self) -> None:
        """Renew the lease, charge the time and take in a changed budget, if the last time is over
        `RENEW_S` ago.
        """
        if self.budget.uncharged_s > RENEW_S:
            self.writer.renew()
            self._charge(ahead_s=AHEAD_S)
            stored = self._store.campaign(self._campaign.name)
            if stored.spec_json != self._spec_as_read and self.takes_changes:
                self._spec_as_read = stored.spec_json
                self.budget.change(stored_spec(stored).budget)

    def _charge(self, *, ahead_s: float = 0.0) -> None:
        seconds = self.budget.charge(ahead_s=ahead_s)
        if seconds:
            self.writer.add_driver_seconds(seconds)

    def finished(self, timeout_s: float) -> list[Finished]:
        """Return the probes that have ended, waiting up to `timeout_s` for the first.

        While all that was started waits for requested nodes, this is not charged as driving.
        """
        attempts = self.running.values()
        is_charged = (
            not attempts
            or self.evaluator.measures_here
            or any(attempt.held_since_s is not None for attempt in attempts)
        )
        with nullcontext() if is_charged else self.budget.free_of_charge():
            return self.evaluator.finished(timeout_s)

    def close(self, state: CampaignState, reason: str) -> None:
        """Charge the rest of the time, record overtime, and release the lease."""
        overtime_s = self.budget.overtime_s
        self._charge()
        if overtime_s > 0:
            self.writer.event(OVERTIME, seconds=round(overtime_s, 3))
        self.writer.release(state, reason=reason)

    def notice(self, kind: str, **data: str | int | float | None) -> None:
        """Write an event to the campaign's history and pass it to the listener."""
        self.writer.event(kind, **data)
        self.listener.noticed(self.view, kind, data)

    def refresh_view(self) -> None:
        """Bring what listeners see up to date, but spend at most a tenth of the time on it:
        thousands may run.
        """
        if time.monotonic() < self._look_again_s:
            return
        began_s = time.thread_time()
        # First the progress: it notes which attempts hold their nodes and are charged.
        self.view.running = tuple(
            attempt.update(self.evaluator) for attempt in self.running.values()
        )
        self.refresh_limits()
        if (took_s := time.thread_time() - began_s) > LONG_LOOK_S:
            self._look_again_s = time.monotonic() + 9 * took_s

    def refresh_limits(self) -> None:
        """Bring the view's limits up to date."""
        self.view.limits = self.budget.limits(self.running.values())
        self.view.seconds_left = self.budget.seconds_left(self.running.values())

    def settle_earlier(self) -> None:
        """Store the outcomes, or the loss, of attempts that earlier drivers left under way."""
        trials = {trial.id: trial for trial in self._store.trials(self._campaign.id)}
        cuts = trials_noted(self._store, self._campaign.id, CUT)
        self.retries.cuts_of_trial.update(
            {trial.id: cuts[trial.number] for trial in trials.values()}
        )
        left_open = self._store.open_attempts(self._campaign.id)
        # What earlier drivers' attempts still run has to end first: the devices are needed, and the
        # outcomes.
        orphans = Orphans(self._fenced) if self.evaluator.measures_here else None
        steps = OrphanedSteps([Path(attempt.run_folder) for attempt in left_open])
        while not ((orphans is None or orphans.have_ended()) and steps.have_ended()):
            time.sleep(LOOK_S)
            self.keep()
        for attempt in left_open:
            trial, folder = trials[attempt.trial_id], Path(attempt.run_folder)
            found = self.evaluator.harvest(
                ProbeOrder(token=folder.name, recipe=trial.recipe, run_folder=folder)
            )
            spent_s = RunFolder(folder).busy_seconds() * nodes_used(
                trial.recipe, self._spec.problem
            )
            outcome = found or _lost("its driver ended before the probe did", spent_s)
            is_lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.LOST
            is_cut = is_lost and was_interrupted(folder)
            blames_nodes = found is not None and not is_cut
            self._store_outcome(attempt, trial, outcome, is_cut=is_cut, blames_nodes=blames_nodes)
            self.notice("harvested" if found else "lost", **_about(trial))

    def start(self, chosen: Trial | Recipe, expected: Expected | None = None) -> None:
        """Start one probe: of a waiting trial, a new recipe of which this is `expected`, or a
        measured recipe again.
        """
        trial, folder, attempt = self.writer.atomically(
            lambda: self._begin_attempt(chosen, expected)
        )
        describe_attempt(folder, self._campaign, trial, attempt)
        order = ProbeOrder(
            token=folder.name,
            recipe=trial.recipe,
            run_folder=folder,
            best_tokens_per_s=self._tokens_per_s_to_beat(trial),
            avoids=self._nodes.lost_on(trial.number),
        )
        self.running[order.token] = RunningAttempt(
            trial=trial,
            attempt=attempt,
            order=order,
            started_s=time.monotonic(),
            nodes=nodes_used(trial.recipe, self._spec.problem),
        )
        self.evaluator.start(order)
        self.listener.probe_began(self.view, trial.number, trial.recipe)

    def _tokens_per_s_to_beat(self, trial: Trial) -> float | None:
        """Return the rate below which a probe of the trial may end early; None where it may not.

        A recipe that was measured before is measured in full. With several objectives a slower
        recipe may be the best in others.
        """
        best = self.view.best
        has_several = len(self._spec.search.objectives) > 1
        if best is None or has_several or self.view.has_measured(trial.number):
            return None
        divisor = self.view.divisor
        return best.tokens_per_s * divisor(trial.recipe) / divisor(best.recipe)

    def _begin_attempt(
        self, chosen: Trial | Recipe, expected: Expected | None
    ) -> tuple[Trial, Path, Attempt]:
        if isinstance(chosen, Trial):
            trial = chosen
        else:
            trial = self.writer.propose(recipe_id(self._spec.problem, chosen), chosen)
            if trial.state in (TrialState.MEASURED, TrialState.FAILED):
                self.notice("repeat", **_about(trial))
                trial = self.writer.repeat(trial)
            elif expected is not None:
                self.writer.event(PROPOSED, trial=trial.number, **asdict(expected))
        folder = _new_folder(self._spec.run_folder, trial)
        return trial, folder, self.writer.start_attempt(trial, run_folder=str(folder))

    def reuse(self, recipe: Recipe, result: ReusableResult) -> Trial:
        """Store an earlier campaign's result as the outcome of a new recipe; it takes nothing of
        the budget.
        """

        def reused() -> Trial:
            trial = self.writer.propose(recipe_id(self._spec.problem, recipe), recipe)
            attempt = self.writer.start_attempt(trial, run_folder=result.run_folder)
            self.writer.finish_attempt(attempt, result.outcome, retry=False)
            self.writer.event(REUSED, **_about(trial), **result.origin)
            return trial

        trial = self.writer.atomically(reused)
        self.listener.noticed(self.view, REUSED, {**_about(trial), **result.origin})
        return trial

    def conclude(self, finished: Finished) -> tuple[Trial, bool]:
        """Store the outcome of a running probe; return its trial, and whether that is tried
        again.
        """
        ended = self.running.pop(finished.token)
        will_retry = self._store_outcome(
            ended.attempt,
            ended.trial,
            finished.outcome,
            is_cut=finished.is_cut,
            blames_nodes=finished.blames_nodes,
            has_stepped=finished.has_stepped,
        )
        return ended.trial, will_retry

    def _store_outcome(
        self,
        attempt: Attempt,
        trial: Trial,
        outcome: Outcome,
        *,
        is_cut: bool,
        blames_nodes: bool = True,
        has_stepped: bool = True,
    ) -> bool:
        nodes = attempt_nodes(Path(attempt.run_folder), outcome if blames_nodes else None)
        is_lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.LOST
        if is_lost and not has_stepped and nodes is not None:
            is_cut = is_cut or self._nodes.excuses(nodes, trial=trial.number)
        will_retry = self.retries.deserves_retry(attempt, outcome, is_cut=is_cut)
        ended_at = self.writer.finish_attempt(attempt, outcome, retry=will_retry, nodes=nodes)
        if nodes is not None:
            kind = outcome.kind if isinstance(outcome, Failure) else None
            for one in self._nodes.note(nodes, trial=trial.number, at=ended_at, kind=kind):
                self.notice(SET_ASIDE, node=one.node, until=one.until, why=one.evidence)
        if is_cut:
            self.writer.event(CUT, **_about(trial))
        self.budget.spend(outcome.node_seconds)
        return will_retry

    def settle_nodes(self) -> None:
        """Store why probes wait and which checks of nodes have ended; have the evaluator avoid
        those set aside now.
        """
        if (why := self.evaluator.waits_for) != self._awaited:
            self._awaited = why
            if why:
                self.notice(AWAITED, why=why)
        for check in self.evaluator.checked_nodes():
            self.notice(CHECKED, node=check.node, found=check.found)
            self._nodes.note_check(check.node, at=timestamp(self._store.now()), found=check.found)
        if self._nodes.aside or self._avoided:
            now = timestamp(self._store.now())
            self._avoided = {node: str(one) for node, one in self._nodes.aside.items()}
            due = [node for node, one in self._nodes.aside.items() if one.until <= now]
            self.evaluator.avoid_nodes(self._avoided, due=due)

    def withdraw_waiting(self) -> list[Finished]:
        """Take back the probes that wait for nodes; that says nothing of their recipes."""
        lost = _lost("withdrawn while it waited for nodes", 0.0)
        waiting = [token for token, attempt in self.running.items() if attempt.held_since_s is None]
        return [
            Finished(token=one, outcome=lost, is_cut=True)
            for one in waiting
            if self.evaluator.withdraw(one)
        ]

    def close_evaluator(self) -> list[tuple[Trial, Outcome]]:
        """End what runs; store and return what ended just in time, and queue the trials whose
        probes that cut off.
        """
        self.evaluator.close()
        in_time = []
        for running in self.running.values():
            found = self.evaluator.harvest(running.order)
            outcome = found or _lost("cut off when its driver ended", running.node_seconds)
            self.writer.finish_attempt(running.attempt, outcome, retry=found is None)
            self.budget.spend(outcome.node_seconds)
            if found is not None:
                in_time.append((running.trial, found))
            elif running.held_since_s is None:
                self.writer.event(CUT, **_about(running.trial))
        self.running.clear()
        return in_time


def fenced_here(holder: str | None, folder: Path) -> Fenced | None:
    """Return the former driver (host:pid) of a campaign where it is another process of this host,
    else None.
    """
    host, _, pid = (holder or "").rpartition(":")
    if host != this_host() or int(pid) == os.getpid():
        return None
    return Fenced(pid=int(pid), folder=folder)


def _lost(message: str, node_seconds: float) -> Failure:
    return Failure(kind=FailureKind.LOST, message=message, node_seconds=node_seconds)


def _about(trial: Trial) -> dict[str, str | int]:
    return {"trial": trial.number, "recipe": trial.recipe.describe()}


def _new_folder(root: Path, trial: Trial) -> Path:
    """Make a folder that no other attempt has used, also none that the store does not know or of
    another store.
    """
    names = (root / f"{trial.number:05d}.{number}" for number in itertools.count(1))
    folder = next(folder for folder in names if not folder.exists())
    folder.mkdir(parents=True)
    return folder
