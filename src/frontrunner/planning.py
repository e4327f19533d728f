"""Estimates for a campaign file: plan, scaling and advice. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import campaign_of, on_cluster
from frontrunner.evaluators.analytic import advice, estimates
from frontrunner.evaluators.analytic import scaling as answers
from frontrunner.evaluators.analytic.accuracy_bounds import Trust
from frontrunner.evaluators.analytic.advice import Advice
from frontrunner.evaluators.analytic.estimates import Estimate, Plan
from frontrunner.evaluators.analytic.scaling import Scaling
from frontrunner.search.campaign_setup import nothing_legal, slow_steps
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem


def plan(campaign_file: str | Path | Mapping[str, Any]) -> Plan:
    """Estimate every legal recipe of a campaign file; nothing is run."""
    return plan_of(campaign_of(campaign_file).spec)


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The plan of a problem on one cluster: the best recipe that fits, or the reason why there is
    none.
    """

    cluster: str
    nodes: int
    devices: int
    legal: int
    fitting: int
    best: Estimate | None
    reason: str | None
    price_per_billion_tokens: float | None
    trust: Trust

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """tokens_per_s / the devices of the best recipe."""
        best = self.best
        if best is None or best.tokens_per_s is None:
            return None
        return best.tokens_per_s / best.recipe.devices


@dataclass(frozen=True, kw_only=True)
class ClusterRanking(Displayed):
    """Plans of one problem on several clusters, the cluster with the highest `rate` first.

    Clusters without an estimated step time come last.
    """

    clusters: tuple[ClusterPlan, ...]
    rate: str

    @property
    def has_recipe(self) -> bool:
        """Whether a recipe fits on any of the clusters."""
        return any(row.best is not None for row in self.clusters)


def plan_clusters(
    campaign_file: str | Path | Mapping[str, Any], clusters: Sequence[str]
) -> ClusterRanking:
    """Plan a campaign file's problem on each of these clusters, presets or paths of cluster files,
    and rank the clusters by the campaign's objective.
    """
    twice = next((name for name in clusters if clusters.count(name) > 1), None)
    if not clusters or twice is not None:
        raise bad_value("cluster", twice, "one or more clusters, each once")
    rate, found = "tokens", []
    for name in clusters:
        spec = on_cluster(campaign_file, name).spec
        rate, planned = _rate(spec), _cluster_plan(name, spec)
        found.append((_worth(planned, spec.problem, rate), planned))
    found.sort(key=lambda pair: -pair[0])
    return ClusterRanking(clusters=tuple(planned for _, planned in found), rate=rate)


def _cluster_plan(name: str, spec: CampaignSpec) -> ClusterPlan:
    survey, cluster = spec.survey(), spec.problem.cluster
    found = estimates.plan(survey.recipes, survey.problem, _rate(spec))
    best = next(iter(found.fastest(1)), None)
    of_a_billion = replace(spec.problem, billion_tokens=1.0)
    training = None if best is None else of_a_billion.training(best.recipe, best.tokens_per_s)
    return ClusterPlan(
        cluster=name,
        nodes=cluster.nodes,
        devices=cluster.devices,
        legal=found.legal,
        fitting=found.table.fitting,
        best=best,
        reason=estimates.why_none(survey, found) or found.trust.why_no_times,
        price_per_billion_tokens=None if training is None else training.price,
        trust=found.trust,
    )


def _worth(planned: ClusterPlan, problem: Problem, rate: str) -> float:
    """Return the rate of the best recipe; 0 where it is not known."""
    best = planned.best
    if best is None or best.tokens_per_s is None:
        return 0.0
    return best.tokens_per_s / problem.divisor(rate, best.recipe)


def plan_of(spec: CampaignSpec) -> Plan:
    """Estimate every legal recipe of a campaign."""
    surveyed = spec.survey()
    if not surveyed.recipes:
        raise nothing_legal(surveyed)
    found = estimates.plan(surveyed.recipes, surveyed.problem, _rate(spec))
    if remark := slow_steps(spec, found.table):
        return replace(found, trust=replace(found.trust, remarks=(*found.trust.remarks, remark)))
    return found


def _rate(spec: CampaignSpec) -> str:
    return spec.search.objectives[0] if len(spec.search.objectives) == 1 else "tokens"


def scaling(campaign_file: str | Path | Mapping[str, Any], nodes: Sequence[int]) -> Scaling:
    """Return the best recipe of a campaign file's space on each of these node counts, by strong and
    weak scaling.
    """
    spec = campaign_of(campaign_file).spec
    return answers.scaling(spec.space, spec.problem, nodes, _rate(spec))


def advise(campaign_file: str | Path | Mapping[str, Any]) -> Advice:
    """Recommend a starting configuration for a campaign file's problem, on one device, one node,
    and the cluster.
    """
    spec = campaign_of(campaign_file).spec
    return advice.advise(spec.space, spec.problem)
