"""The two campaigns of `search.probe_nodes`: created together, and driven one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from frontrunner.results import predictions, status
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import SMALL_CAMPAIGN, Campaign
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.budget import Spent
from frontrunner.search.campaign_setup import (
    create,
    free_name,
    prepare,
    spent_of,
    stored_spec,
    why_not_here,
)
from frontrunner.search.driver import Conclusion, OnDriver, run_campaign
from frontrunner.search.listener import Listener, View
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.search.strategy import Forecaster, make_strategy
from frontrunner.search.two_stage import scale_in_words, small_spec
from frontrunner.search.warm_start import prior_results
from frontrunner.spaces.space import Survey

MOST_PREDICTED = 10


def what_is_left(budget: Budget, small: Spent, confirm_probes: int) -> Budget | None:
    """Return what confirmation may spend after what the small campaign has. None: nothing."""

    def left(allowed: float | None, spent: float) -> float | None:
        return None if allowed is None else allowed - spent

    probes = left(budget.probes, small.probes)
    probes = confirm_probes if probes is None else min(confirm_probes, int(probes))
    minutes = left(budget.minutes, small.driver_seconds / 60)
    node_hours = left(budget.node_hours, small.node_seconds / 3600)
    cost = left(budget.cost, small.cost)
    if any(value is not None and value <= 0 for value in (probes, minutes, node_hours, cost)):
        return None
    return Budget(
        probes=probes, minutes=minutes, node_hours=node_hours, cost=cost, hard=budget.hard
    )


def create_pair(store: Store, spec: CampaignSpec, survey: Survey) -> Campaign:
    """Create both campaigns, the small one first, and return the large one, which names the
    other.
    """
    legal = len(survey.recipes)
    if any(known.name == spec.name for known in store.campaigns()):
        return create(
            store, spec, legal
        )  # raises: the name is taken; the small one must not be created then
    small = small_spec(spec, confirmable=why_not_here(spec) is None)
    small = replace(small, name=free_name(store, small.name))
    create(store, small, len(small.survey().recipes))
    scale = scale_in_words(small.problem, spec.problem)
    more = {SMALL_CAMPAIGN: small.name, predictions.SMALL_SCALE: scale}
    return create(
        store,
        replace(spec, confirms=small.name),
        legal,
        more | {"nodes": spec.problem.cluster.nodes},
    )


def run_pair(
    store: Store,
    record: Campaign,
    *,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
    take_over: bool = False,
) -> Conclusion:
    """Run a pair from wherever it was left: measure small, predict large, confirm. `record` is the
    large campaign.
    """

    def drive(campaign: Campaign, its_spec: CampaignSpec) -> Conclusion:
        prepare(its_spec)
        return run_campaign(
            store, campaign, its_spec, listener=listener, on_driver=on_driver, take_over=take_over
        )

    spec = stored_spec(record)
    small = store.campaign(spec.confirms)
    if small.state is not CampaignState.FINISHED:
        conclusion = drive(small, stored_spec(small))
        if conclusion.state is not CampaignState.FINISHED or not conclusion.measured:
            return conclusion
    elif not _measured(store, small):
        return Conclusion(
            state=CampaignState.FINISHED, reason=f"{small.name} measured nothing", measured=0
        )
    survey = spec.survey()
    _predict(store, record, spec, survey, take_over=take_over)
    small = store.campaign(small.name)
    left = what_is_left(
        spec.budget, spent_of(store, small, stored_spec(small)), spec.search.confirm_probes
    )
    why_not = why_not_here(spec)
    if left is not None and why_not is None:
        return drive(store.campaign(record.name), replace(spec, budget=left))
    why_not = why_not or (
        "the budget is used up" if spec.search.confirm_probes else "search.confirm_probes is 0"
    )
    # The large campaign ends without a probe, reported like any other end.
    view = View(
        name=record.name,
        strategy=record.strategy,
        legal_recipes=len(survey.recipes),
        figures=record.figures,
    )
    view.measured = _measured(store, record)
    reason = f"predicted, not confirmed: {why_not}"
    end = Conclusion(state=CampaignState.FINISHED, reason=reason, measured=view.measured)
    listener = listener or Listener()
    listener.began(view)
    with _writing(store, record, take_over=take_over) as writer:
        writer.release(end.state, reason=end.reason)
    listener.ended(view, end.state, end.reason)
    return end


def _predict(
    store: Store, record: Campaign, spec: CampaignSpec, survey: Survey, *, take_over: bool
) -> None:
    """Store the predicted ranking, once: what is predicted after a confirmation would not be a
    prediction of it.
    """
    known = predictions.small_scale(store, record)
    if known is not None and known.predicted:
        return
    strategy = cast("Forecaster", make_strategy(spec.search.strategy, survey, spec.search.seed))
    strategy.remember(prior_results(store, record, spec).evidence)
    ranking = strategy.forecasts(MOST_PREDICTED)
    with _writing(store, record, take_over=take_over) as writer:
        for one in ranking:
            writer.event(predictions.PREDICTION, **predictions.prediction_data(one))
        writer.release(CampaignState.STOPPED, reason="predicted, and not confirmed yet")


@contextmanager
def _writing(store: Store, campaign: Campaign, *, take_over: bool) -> Iterator[CampaignWriter]:
    """Drive a campaign for one transaction, which has to release it."""
    writer = store.drive(
        store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid(), take_over=take_over)
    )
    with writer.together():
        writer.set_state(CampaignState.RUNNING, reason="")
        yield writer


def _measured(store: Store, record: Campaign) -> int:
    return status.status(store, record).trials.get(TrialState.MEASURED, 0)
