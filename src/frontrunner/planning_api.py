"""The Python API of what is estimated by formulas: plan, explain, scaling and advise. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.config.campaign import read_campaign_file
from frontrunner.dryrun_api import Explains, named_recipe
from frontrunner.search.campaign_setup import nothing_legal
from frontrunner.spaces.errors import NotFound

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.advice import Advice
    from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured
    from frontrunner.evaluators.analytic.estimates import Plan, ShownPlan
    from frontrunner.evaluators.analytic.scaling import Scaling
    from frontrunner.results.explain import Explanation
    from frontrunner.search.spec import CampaignSpec


def plan(campaign_file: str | Path) -> Plan:
    """Every legal recipe of a campaign file, estimated by formulas; nothing is run.

    Raises `InvalidInput` for a file that cannot be used and `NothingLegal` for a space without a legal recipe.
    """
    return plan_of(read_campaign_file(Path(campaign_file)).spec)


def plan_of(spec: CampaignSpec) -> Plan:
    """`plan` of a campaign that was read already."""
    from frontrunner.evaluators.analytic import estimates

    surveyed = spec.survey()
    if not surveyed.recipes:
        raise nothing_legal(surveyed)
    return estimates.plan(surveyed.recipes, surveyed.problem)


def shown_plan(found: Plan, top: int) -> ShownPlan:
    """A plan for programs, with its `top` fastest estimates."""
    from frontrunner.evaluators.analytic.estimates import ShownPlan as Shown

    return Shown(
        legal=found.legal,
        fitting=found.table.fitting,
        not_modelled=found.not_modelled,
        memory_limit_bytes=found.memory_limit_bytes,
        assumed=found.trust.assumed,
        expected_error=found.trust.expected_error,
        remarks=found.trust.remarks,
        estimates=found.fastest(top),
        front=found.front,
    )


def scaling(campaign_file: str | Path, nodes: Sequence[int]) -> Scaling:
    """The best recipe of a campaign file's space on each of these node counts, by strong and by weak scaling.

    Raises `InvalidInput` for a file, or counts, that cannot be used.
    """
    from frontrunner.evaluators.analytic import scaling as answers

    spec = read_campaign_file(Path(campaign_file)).spec
    return answers.scaling(spec.space, spec.problem, nodes)


def advise(campaign_file: str | Path) -> Advice:
    """How to begin with a campaign file's problem, on one device, on one node, and on all of the cluster.

    Raises `InvalidInput` for a file that cannot be used.
    """
    from frontrunner.evaluators.analytic import advice

    spec = read_campaign_file(Path(campaign_file)).spec
    return advice.advise(spec.space, spec.problem)


def breakdown_of(store: Explains, recipe: str | Mapping[str, object], campaign: str | Path | None) -> Breakdown:
    """Break a recipe's estimate down, with its newest measurement in a store; see `LocalStore.explain`."""
    from frontrunner.evaluators.analytic.breakdown import breakdown
    from frontrunner.spaces.document import recipe_id

    spec, found = named_recipe(store, recipe, campaign)
    try:
        measured = _newest(store.show(recipe_id(spec.problem, found)), store.url)
    except NotFound:  # no such recipe, or no store
        if campaign is None:
            raise
        measured = None
    return breakdown(found, spec.problem, measured)


def _newest(explanation: Explanation, store: str) -> Measured | None:
    """Of the campaigns that measured the recipe the newest; what was only simulated is no measurement."""
    from frontrunner.evaluators.analytic.breakdown import Measured

    for appearance in explanation.appearances:
        standing = appearance.standing
        if standing is not None and appearance.campaign.figures == "measured":
            return Measured(
                store=store,
                campaign=appearance.campaign.name,
                repeats=standing.repeats,
                step_time_s=standing.step_time_s_median,
                step_time_spread=standing.step_time_spread,
                tokens_per_s=standing.tokens_per_s,
                mfu=standing.mfu,
                peak_memory_bytes=standing.peak_memory_bytes_max_rank,
            )
    return None
