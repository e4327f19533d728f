"""Set-up of a campaign: whether it can run here, its name, and its record in the store."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.nodes.backends import backend_of
from frontrunner.evaluators.nodes.settings import BACKENDS
from frontrunner.evaluators.programs.preflight import prepare_here
from frontrunner.results.records import (
    IMPORTED,
    NODE_TYPES,
    OBJECTIVE,
    SEVERAL_NODE_TYPES,
    Campaign,
)
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.search.budget import Limit, Spent
from frontrunner.search.spec import Budget, CampaignSpec
from frontrunner.spaces.batches import useful_batch
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NothingLegal,
    free_among,
)
from frontrunner.spaces.pareto import RATES
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey
from frontrunner.spaces.validation import dump_json, load_json, validate
from frontrunner.text import counted, seconds

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.estimates import EstimateTable
    from frontrunner.results.store import Store

logger = logging.getLogger(__name__)
PRICED = ("devices_per_node", "price_per_node_hour")
BUDGET, BEFORE = "budget", "_before"
"""Event of a changed budget, and the end of the keys of what its limits were before."""
DRIVER_EVENTS = LAUNCHED, RESUMED = "launched", "resumed"
"""Events of the begin of a campaign's first driver, and of each later one."""
FIGURES = {"simulated": "simulated", "imported": "imported", "table": "imported"}


def runnable(spec: CampaignSpec) -> Survey:
    """Return the survey of a campaign that can run here; raises `InvalidInput` or `NothingLegal`
    otherwise.
    """
    surveyed = spec.survey()
    if not surveyed.recipes:
        raise nothing_legal(surveyed)
    prepare(spec, surveyed)
    if (batch := useful_batch(surveyed)) is not None:
        logger.warning(
            "warning: %s of %s points are legal; with problem.global_batch = %s more would be",
            f"{len(surveyed.recipes):,}",
            f"{surveyed.points:,}",
            f"{batch:,}",
        )
    warn_of_slow_steps(spec, surveyed)
    return surveyed


def prepare(
    spec: CampaignSpec, surveyed: Survey | None = None, *, needs_nodes: bool = True
) -> None:
    """Raise `InvalidInput` if the campaign's probes cannot run on this machine, or if what provides
    its nodes cannot be found. Without `needs_nodes` that is not looked for.
    """
    recipes = (surveyed or spec.survey()).recipes
    if spec.evaluator_kind.trains:
        _prepare_probes(spec, recipes)
    elif recipes:
        spec.check_commands(recipes[0])
    backend = spec.dispatch.backend
    if needs_nodes and spec.evaluator_kind.uses_nodes and backend in BACKENDS:
        backend_of(backend).check(spec.dispatch)


def _prepare_probes(spec: CampaignSpec, recipes: Sequence[Recipe]) -> None:
    from frontrunner.evaluators.programs.corpus import check_data

    check_data(spec.data, spec.problem)
    offloads, fp8 = ({getattr(recipe, name) for recipe in recipes} for name in ("offload", "fp8"))
    prepare_here(
        spec.problem,
        spec.dispatch,
        engines=spec.space.engine,
        offloads=tuple(offloads),
        fp8=tuple(fp8),
    )


def warn_of_slow_steps(spec: CampaignSpec, surveyed: Survey) -> None:
    """Log a warning where every probe would meet a deadline, by the estimates."""
    from frontrunner.evaluators.analytic.estimates import estimate_many

    if spec.evaluator_kind.trains and (
        remark := slow_steps(spec, estimate_many(surveyed.recipes, surveyed.problem))
    ):
        logger.warning("warning: %s", remark)


def slow_steps(spec: CampaignSpec, table: EstimateTable) -> str | None:
    """Return which deadline the probe of the fastest recipe that is estimated to fit meets, or
    None.
    """
    from frontrunner.evaluators.analytic.accuracy_bounds import has_times

    if not spec.evaluator_kind.trains or not table.fitting or not has_times(spec.problem):
        return None
    step_s, probe = float(table.step_time_s[table.order[0]]), spec.probe
    steps = {"step_deadline_s": 1, "deadline_s": probe.least_steps}
    met = next((key for key, count in steps.items() if count * step_s > getattr(probe, key)), None)
    return met and (
        f"a step of the fastest recipe is estimated to take {seconds(step_s)}: probe.{met} ="
        f" {getattr(probe, met):g} s allows fewer than {counted(steps[met], 'step')}; lower"
        f" problem.global_batch, or raise probe.{met}"
    )


def create(store: Store, spec: CampaignSpec, legal_recipes: int) -> Campaign:
    """Create the campaign in the store."""
    return store.create_campaign(
        name=spec.name,
        spec_json=dump_json(spec),
        legal_recipes=legal_recipes,
        problem_summary=problem_summary(spec),
    )


def change_budget(
    store: Store, record: Campaign, limits: Mapping[str, Any], *, add: bool = False
) -> None:
    """Replace or raise (`add`) limits of a stored campaign's budget: an event."""
    spec = stored_spec(record)
    now = spec.budget
    if add:
        for key in limits:
            if getattr(now, key) is None:
                hint = "a limit that is set, not added, becomes one"
                raise InvalidInput(
                    f"campaign {record.name} has no limit of {key} to add to", hint=hint
                )
        limits = {key: getattr(now, key) + value for key, value in limits.items()}
    changed = replace(now, **limits)
    before = {
        f"{key}{BEFORE}": was for key, was in vars(now).items() if getattr(changed, key) != was
    }
    store.respecify(
        record.name, dump_json(replace(spec, budget=changed)), BUDGET, {**limits, **before}
    )


def launched_budget(store: Store, record: Campaign) -> Budget:
    """Return the budget that a stored campaign was launched with, before `change_budget`."""
    budget = stored_spec(record).budget
    for event in reversed(store.events(record.id, kind=BUDGET)):
        was = {
            key.removesuffix(BEFORE): value
            for key, value in event.data.items()
            if key.endswith(BEFORE)
        }
        budget = replace(budget, **was)  # type: ignore[arg-type]
    return budget


def is_over(store: Store, record: Campaign, spec: CampaignSpec) -> bool:
    """Return whether a stored campaign has finished and has nothing left to run.

    A change of its budget or a trial that waits for another attempt may give it something.
    """
    if record.state is not CampaignState.FINISHED:
        return False
    if spent_of(store, record, spec).exhausted(spec.budget) is not None:
        return True
    drivers = [event.id for kind in DRIVER_EVENTS for event in store.events(record.id, kind=kind)]
    last_driver = max(drivers, default=0)
    if store.events(record.id, after=last_driver, kind=BUDGET):
        return False
    return all(trial.state is not TrialState.QUEUED for trial in store.trials(record.id))


def budget_used(store: Store, record: Campaign) -> tuple[Limit, ...]:
    """Return the limits of a stored campaign's budget, with what was used of each; running probes
    are not counted.
    """
    spec = stored_spec(record)
    return spent_of(store, record, spec).limits(spec.budget)


def spent_of(store: Store, record: Campaign, spec: CampaignSpec) -> Spent:
    """Return what a stored campaign has spent; running probes are not counted."""
    from frontrunner.results.prior_results import (
        probes_made,
    )  # a database's code, which plans do without

    return Spent(
        probes=probes_made(store, record),
        driver_seconds=record.driver_seconds,
        node_seconds=record.node_seconds_spent,
        cost=record.node_seconds_spent / 3600 * (spec.problem.cluster.price_per_node_hour or 0.0),
    )


def problem_summary(spec: CampaignSpec) -> dict[str, object]:
    """Summarize a campaign's problem for lists of campaigns."""
    problem, model, cluster = spec.problem, spec.problem.model, spec.problem.cluster
    nodes: dict[str, object] = {}
    sought: dict[str, object] = {}
    if (rate := spec.search.objectives[0]) in RATES[1:]:
        sought = {OBJECTIVE: rate}
        nodes = {"devices_per_node": cluster.devices_per_node}
    if problem.billion_tokens is not None:
        sought = {"billion_tokens": problem.billion_tokens} | sought
        nodes = {key: getattr(cluster, key) for key in PRICED}
    return {
        "model": model.name,
        "parameters": model.parameters,
        "cluster": cluster.name,
        "device": cluster.device,
        "devices": cluster.devices,
        "sequence_length": problem.sequence_length,
        "global_batch": str(problem.global_batch),
        "precision": problem.precision,
        "figures": FIGURES.get(spec.evaluator, "measured"),
        **nodes,
        **sought,
    }


def stored_spec(record: Campaign) -> CampaignSpec:
    """Return the specification that a campaign was launched with; raises `StoreUnusable` where it
    cannot be read, and `InvalidInput` where it is on several node types.
    """
    if NODE_TYPES in record.problem_summary:
        raise InvalidInput(
            f"campaign {record.name} is on {SEVERAL_NODE_TYPES}: only its status, its history and"
            " its ranking can be shown",
            hint="launch a campaign for each node type, then: frontrunner compare A B",
        )
    try:
        return _as_stated(load_json(CampaignSpec, record.spec_json, what=f"campaign {record.name}"))
    except InvalidInput as error:
        from frontrunner.results.rows import DamagedCell
        from frontrunner.results.schema import CampaignRow

        why = f"this version cannot read it: {error.message}"
        raise DamagedCell(CampaignRow, record.id, "spec_json", why) from error


def _as_stated(spec: CampaignSpec) -> CampaignSpec:
    """Return the specification without the limit of node-hours that earlier versions made of one of
    money.
    """
    budget, price = spec.budget, spec.problem.cluster.price_per_node_hour
    if budget.cost is None or not price or budget.node_hours != budget.cost / price:
        return spec
    return replace(spec, budget=replace(budget, node_hours=None))


def stored_budget(record: Campaign) -> Budget:
    """Return the budget of a stored campaign, whatever else of its specification this version
    knows.
    """
    stated = json.loads(record.spec_json).get("budget", {})
    try:
        return validate(Budget, stated, prefix="budget")
    except InvalidInput as error:
        from frontrunner.results.rows import DamagedCell
        from frontrunner.results.schema import CampaignRow

        raise DamagedCell(CampaignRow, record.id, "spec_json", error.message) from error


def stored_survey(spec: CampaignSpec) -> Survey:
    """Return the survey of a stored campaign; where its table or plug-in is gone, that of its space
    alone.
    """
    try:
        return spec.survey()
    except FrontrunnerError:
        return spec.space_survey()


def nothing_legal(surveyed: Survey) -> NothingLegal:
    """Return the error for a space without a legal recipe, with the reasons counted."""
    reasons = "; ".join(
        f"{count} x {code} ({example})" for code, count, example in surveyed.refused_by_count()
    )
    what = f"none of the space's {surveyed.points:,} points is legal: {reasons}"
    hint = "`frontrunner space FILE` counts the reasons"
    if (batch := useful_batch(surveyed)) is not None:
        hint = f"problem.global_batch = {batch:,} is the nearest that recipes can share; {hint}"
    return NothingLegal(what, hint=hint)


def free_name(store: Store, wanted: str) -> str:
    """Return `wanted`, or the first of wanted-2, wanted-3, ... that no campaign of the store
    has.
    """
    return free_among({summary.name for summary in store.campaigns()}, wanted)


def refuse_imported_campaign(campaign: Campaign) -> None:
    """Raise `InvalidInput` for a campaign that holds an imported table, which nothing can drive."""
    if campaign.strategy == IMPORTED:
        what = f"campaign {campaign.name} holds an imported table: there is nothing to resume"
        raise InvalidInput(what, hint="name another: frontrunner campaigns")
