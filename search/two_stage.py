"""Two-stage campaigns (`search.probe_nodes`): probe on few nodes, predict the whole cluster,
confirm the best there.

The small campaign has proportionally fewer replicas and a smaller batch, so that a recipe keeps its
degrees; where too few recipes fit, its model has fewer layers. The predicted ranking is stored
before anything runs on all nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, cast

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
from frontrunner.search.listener import Listener, View
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.search.strategy import Forecaster, make_strategy
from frontrunner.search.warm_start import prior_results
from frontrunner.spaces.errors import MOST_NAME_CHARACTERS, bad_value
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Survey

if TYPE_CHECKING:
    from frontrunner.search.driver import Conclusion, OnDriver

SUFFIX = "-small"
SHARE = 0.5
"""Assumed: of the budget's minutes, node-hours and price, what the small campaign may use if
confirmations follow.
"""
FEW = 5
"""Assumed: recipes that must be expected to fit the small problem, if the large one has as many, to
learn from.
"""
MOST_PREDICTED = 10


def small_spec(spec: CampaignSpec, *, confirmable: bool = True) -> CampaignSpec:
    """Return the campaign on `search.probe_nodes` nodes, with `SHARE` of the budget where
    confirmations follow.
    """
    nodes, kept, budget = spec.search.probe_nodes, spec.search.confirm_probes, spec.budget
    if nodes is None:
        raise bad_value("search.probe_nodes", None, "a number of nodes")
    if confirmable and kept:
        shared = {
            name: SHARE * value
            for name in ("minutes", "node_hours", "cost")
            if (value := getattr(budget, name))
        }
        budget = replace(budget, probes=budget.probes and max(1, budget.probes - kept), **shared)
    devices = dict.fromkeys(
        max(1, count * nodes // spec.problem.cluster.nodes) for count in spec.space.devices
    )
    small = replace(
        spec,
        name=f"{spec.name[: MOST_NAME_CHARACTERS - len(SUFFIX)]}{SUFFIX}",
        space=spec.space.with_choices(devices=tuple(devices)),
        search=replace(
            spec.search, probe_nodes=None, baseline=None
        ),  # a baseline is of the whole cluster
        budget=budget,
        table=replace(spec.table, problem=None),
        file=None,  # which describes the whole cluster
    )
    return replace(small, problem=_small_problem(spec, small, nodes))


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


def scale_in_words(small: Problem, large: Problem) -> str:
    """Describe how the small problem differs: `4 of 64 nodes, 24 of 96 layers, batch 32 of 512`."""
    layers = (
        f", {small.model.layers} of {large.model.layers} layers"
        if small.model != large.model
        else ""
    )
    batch = f", batch {small.global_batch} of {large.global_batch}"
    return f"{small.cluster.nodes} of {large.cluster.nodes} nodes{layers}{batch}"


def _small_problem(spec: CampaignSpec, small: CampaignSpec, nodes: int) -> Problem:
    """Return the problem of the most layers that leaves enough recipes expected to fit; a table's
    is whole.
    """
    layers = spec.problem.model.layers
    if spec.evaluator == "table":
        from frontrunner.evaluators.tables.lookup import nearest_batch

        problem = _scaled(spec.problem, nodes, layers)
        return replace(problem, global_batch=nearest_batch(small.table, problem))
    wanted = min(FEW, _fitting(spec.survey()))
    for divisor in (number for number in range(1, layers + 1) if layers % number == 0):
        problem = _scaled(spec.problem, nodes, layers // divisor)
        survey = small.space.survey(problem)
        if survey.recipes and _fitting(survey) >= wanted:
            return problem
    hint = "not even a model of one layer leaves as many: probe on more nodes, or widen the space"
    expected = f"nodes that hold at least {max(wanted, 1)} recipes of this space"
    raise bad_value("search.probe_nodes", nodes, expected, hint=hint)


def _scaled(problem: Problem, nodes: int, layers: int) -> Problem:
    """Scale the problem; a replica of fewer layers takes proportionally fewer devices, which leaves
    more replicas.
    """
    model, batch = problem.model, problem.global_batch
    share = min(1.0, nodes / problem.cluster.nodes * model.layers / layers)
    ends = {key: max(1, round(value * share)) for key, value in asdict(batch).items()}
    if layers != model.layers:
        model = replace(model.of_layers(layers), name=f"{model.name} of {layers} layers")
    cluster = replace(problem.cluster, nodes=nodes)
    return replace(problem, model=model, cluster=cluster, global_batch=GlobalBatch(**ends))


def _fitting(survey: Survey) -> int:
    if not survey.recipes:
        return 0
    from frontrunner.evaluators.analytic.estimates import (
        plan,
    )  # numpy, which a campaign file's checks do without

    found = plan(survey.recipes, survey.problem)
    return found.table.fitting + sum(found.not_modelled.values())


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
    from frontrunner.search.driver import Conclusion, run_campaign

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
