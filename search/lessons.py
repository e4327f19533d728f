"""What a campaign's outcomes teach its driver: what to try next, and when enough is known."""

from __future__ import annotations

from dataclasses import asdict

from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.results.predictions import OUTLOOK
from frontrunner.results.prior_results import probes_made, reused_trials
from frontrunner.results.states import TrialState
from frontrunner.search.evidence import Gathered
from frontrunner.search.held import Held
from frontrunner.search.patience import Patience
from frontrunner.search.proposals import Proposals
from frontrunner.search.recovery import take_in_outlooks, take_in_trials
from frontrunner.search.stopping import StopRule
from frontrunner.spaces.recipe import Recipe


class Lessons:
    """Keeps proposals, stop rule and patience together: each hears of every outcome that concerns it."""

    def __init__(self, held: Held, patience: Patience, gathered: Gathered) -> None:
        """Take in all that is stored, and what was known before the campaign."""
        store, campaign = held.store, held.campaign
        told = store.final_outcomes(campaign.id)
        self.stop_rule = StopRule(held.spec.search.stop_below_improvement)
        self.proposals = Proposals(
            search=held.spec.search,
            survey=held.survey,
            told=told,
            notice=held.notice,
            evidence=gathered.evidence,
        )
        self._held = held
        self._patience = patience
        trials = store.trials(campaign.id)
        take_in_trials(trials, told, proposals=self.proposals, view=held.view)
        take_in_outlooks(store, campaign.id, rule=self.stop_rule, view=held.view)
        held.account.ledger.probes = probes_made(store, store.campaign(campaign.name))
        # An answer of an earlier campaign does not say that anything runs here.
        reused = reused_trials(store, campaign.id)
        self._has_measured = any(trial.state is TrialState.MEASURED and trial.number not in reused for trial in trials)

    def learn_from_probe(self, recipe: Recipe, outcome: Outcome) -> None:
        """Take in the final outcome of a probe that was made here."""
        self._patience.count(outcome, measured_before=self._has_measured)
        self._has_measured = self._has_measured or isinstance(outcome, Measurement)
        self.learn(recipe, outcome)

    def learn(self, recipe: Recipe, outcome: Outcome) -> None:
        """Tell the strategy of an outcome; ask it, where it can tell, what going on promises, and keep that."""
        self.proposals.tell(recipe, outcome)
        outlook = self.proposals.outlook()
        view = self._held.view
        self.stop_rule.hear(outlook, measured=view.measured)
        view.outlook = outlook
        if outlook is not None:
            self._held.writer.event(OUTLOOK, **asdict(outlook), measured=view.measured)
