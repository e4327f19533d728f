"""Small scale to large: the campaign on few nodes that a campaign of the whole cluster is predicted from.

The small campaign has a problem of its own: fewer nodes, and with them fewer replicas and as much less of a global
batch, so that a recipe keeps its degrees, its micro-batch and its accumulation. Where that leaves too few recipes that
fit, the model has fewer layers of the same shape: a pipeline of fewer stages then does the same work a stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from frontrunner.results.records import Campaign
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.model import Model
from frontrunner.spaces.names import MOST_CHARACTERS
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space, Survey

SUFFIX = "-small"
SHARE = 0.5
"""Assumed: of the budget's minutes and node-hours, what the small campaign may use where confirmations follow."""
FEW = 5
"""Assumed: recipes that must be expected to fit the small problem, where the large one has as many, to learn from."""


def small_spec(spec: CampaignSpec, *, confirmable: bool = True) -> CampaignSpec:
    """The campaign on `search.probe_nodes` nodes of a campaign that has this key.

    Where confirmations are wanted and possible its budget is the whole one's less their probes, and `SHARE` of the time
    and the node-hours; what it does not use of them is left for the confirmations. Raises `InvalidInput` where no model
    of fewer layers leaves recipes that fit so few nodes.
    """
    nodes = spec.search.probe_nodes
    if nodes is None:
        raise bad_value("search.probe_nodes", None, "a number of nodes")
    space = spec.space.with_choices(devices=_scaled_devices(spec.space, nodes, spec.problem.cluster.nodes))
    small = replace(
        spec,
        name=f"{spec.name[: MOST_CHARACTERS - len(SUFFIX)]}{SUFFIX}",
        space=space,
        search=replace(spec.search, probe_nodes=None, baseline=None),  # a baseline is of the whole cluster
        budget=_small_budget(spec) if confirmable else spec.budget,
        table=replace(spec.table, problem=None),
    )
    return replace(small, problem=_small_problem(spec, small, nodes))


def _small_budget(spec: CampaignSpec) -> Budget:
    kept, whole = spec.search.confirm_probes, spec.budget
    if not kept:
        return whole
    return Budget(
        probes=None if whole.probes is None else max(1, whole.probes - kept),
        minutes=None if whole.minutes is None else SHARE * whole.minutes,
        node_hours=None if whole.node_hours is None else SHARE * whole.node_hours,
        hard=whole.hard,
    )


def what_is_left(budget: Budget, small: Campaign, confirm_probes: int, *, reused: int = 0) -> Budget | None:
    """What the confirmation may spend after the small campaign, of the pair's budget; None where that is nothing.

    `reused` of the small campaign's outcomes were answers of the store, which take no probe.
    """
    used = {
        "probes": small.outcomes - reused,
        "minutes": small.driver_seconds / 60,
        "node_hours": small.node_seconds_spent / 3600,
    }
    left: dict[str, float | None] = {}
    for key, spent in used.items():
        allowed = getattr(budget, key)
        left[key] = None if allowed is None else allowed - spent
    probes = confirm_probes if left["probes"] is None else min(confirm_probes, int(left["probes"]))
    if any(value is not None and value <= 0 for value in (probes, left["minutes"], left["node_hours"])):
        return None
    return Budget(probes=probes, minutes=left["minutes"], node_hours=left["node_hours"], hard=budget.hard)


def scale_in_words(small: Problem, large: Problem) -> str:
    """How the small problem differs: `4 of 64 nodes, 24 of 96 layers, batch 32 of 512`."""
    layers = f", {small.model.layers} of {large.model.layers} layers" if small.model != large.model else ""
    batch = f", batch {small.global_batch} of {large.global_batch}"
    return f"{small.cluster.nodes} of {large.cluster.nodes} nodes{layers}{batch}"


def _small_problem(spec: CampaignSpec, small: CampaignSpec, nodes: int) -> Problem:
    """The problem of the most layers that leaves enough recipes that are expected to fit.

    A table has the whole model alone, at the batches that somebody measured.
    """
    if spec.evaluator == "table":
        from frontrunner.evaluators.tables.table import nearest_batch  # pandas, which no other evaluator needs

        problem = _scaled(spec.problem, nodes, spec.problem.model.layers)
        return replace(problem, global_batch=nearest_batch(small.table, problem))
    wanted = min(FEW, _fitting(spec.survey()))
    for layers in _fewer_layers(spec.problem.model):
        problem = _scaled(spec.problem, nodes, layers)
        survey = replace(small, problem=problem).space.survey(problem)
        if survey.recipes and _fitting(survey) >= wanted:
            return problem
    raise bad_value(
        "search.probe_nodes",
        nodes,
        f"nodes that hold at least {max(wanted, 1)} recipes of this space",
        hint="not even a model of one layer leaves as many: probe on more nodes, or widen the space",
    )


def _fewer_layers(model: Model) -> Iterator[int]:
    """All layers first, then layers / 2, layers / 3 and so on, where that is whole."""
    yield from (model.layers // divisor for divisor in range(1, model.layers + 1) if model.layers % divisor == 0)


def _scaled(problem: Problem, nodes: int, layers: int) -> Problem:
    """The problem on so many nodes, with so many layers.

    A replica of fewer layers takes as many times fewer devices, which leaves as many times more replicas: the batch is
    the whole one's times nodes / all nodes * all layers / layers, at least one sequence and at most the whole one's.
    """
    share = min(1.0, nodes / problem.cluster.nodes * problem.model.layers / layers)
    batch = problem.global_batch
    name = problem.model.name if layers == problem.model.layers else f"{problem.model.name} of {layers} layers"
    return replace(
        problem,
        model=replace(problem.model, name=name, layers=layers),
        cluster=replace(problem.cluster, nodes=nodes),
        global_batch=GlobalBatch(
            minimum=max(1, round(batch.minimum * share)), maximum=max(1, round(batch.maximum * share))
        ),
    )


def _scaled_devices(space: Space, nodes: int, all_nodes: int) -> tuple[int, ...]:
    """The counts of devices that the space names, as the same shares of fewer nodes; none where it names none."""
    scaled = (devices * nodes / all_nodes for devices in space.devices)
    found = tuple(dict.fromkeys(max(1, math.floor(devices)) for devices in scaled))
    if space.devices and not found:
        raise InvalidInput("space.devices names no count that fewer nodes have a share of")
    return found


def _fitting(survey: Survey) -> int:
    """How many recipes the formulas expect to fit."""
    if not survey.recipes:
        return 0
    from frontrunner.search.guided.prior import prior_of  # numpy, which a campaign file's checks do without

    return int((prior_of(survey.recipes, survey.problem).log_fill <= 0).sum())
