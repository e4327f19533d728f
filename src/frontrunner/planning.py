"""Estimates for a campaign file: plan, scaling and advice. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import campaign_of
from frontrunner.evaluators.analytic import advice, estimates
from frontrunner.evaluators.analytic import scaling as answers
from frontrunner.evaluators.analytic.advice import Advice
from frontrunner.evaluators.analytic.estimates import Plan
from frontrunner.evaluators.analytic.scaling import Scaling
from frontrunner.search.campaign_setup import nothing_legal, slow_steps
from frontrunner.search.spec import CampaignSpec


def plan(campaign_file: str | Path | Mapping[str, Any]) -> Plan:
    """Estimate every legal recipe of a campaign file; nothing is run."""
    return plan_of(campaign_of(campaign_file).spec)


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
