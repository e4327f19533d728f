"""Two-stage campaigns (`search.probe_nodes`): probe on few nodes, predict the whole cluster,
confirm the best there.

The small campaign has proportionally fewer replicas and a smaller batch, so that a recipe keeps its
degrees; where too few recipes fit, its model has fewer layers. The predicted ranking is stored
before anything runs on all nodes.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import MOST_NAME_CHARACTERS, bad_value
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Survey

SUFFIX = "-small"
SHARE = 0.5
"""Assumed: of the budget's minutes, node-hours and price, what the small campaign may use if
confirmations follow.
"""
FEW = 5
"""Assumed: recipes that must be expected to fit the small problem, if the large one has as many, to
learn from.
"""


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
