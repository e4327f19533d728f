"""Estimates for a campaign file: plan, scaling and advice. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.analytic import advice, estimates
from frontrunner.evaluators.analytic import scaling as answers
from frontrunner.evaluators.analytic.advice import Advice
from frontrunner.evaluators.analytic.estimates import Plan
from frontrunner.evaluators.analytic.scaling import Scaling
from frontrunner.search.campaign_setup import nothing_legal
from frontrunner.search.spec import CampaignSpec


def plan(campaign_file: str | Path) -> Plan:
    """Estimate every legal recipe of a campaign file; nothing is run."""
    return plan_of(read_campaign_file(Path(campaign_file)).spec)


def plan_of(spec: CampaignSpec) -> Plan:
    """Estimate every legal recipe of a campaign."""
    surveyed = spec.survey()
    if not surveyed.recipes:
        raise nothing_legal(surveyed)
    return estimates.plan(surveyed.recipes, surveyed.problem)


def scaling(campaign_file: str | Path, nodes: Sequence[int]) -> Scaling:
    """Return the best recipe of a campaign file's space on each of these node counts, by strong and weak scaling."""
    spec = read_campaign_file(Path(campaign_file)).spec
    return answers.scaling(spec.space, spec.problem, nodes)


def advise(campaign_file: str | Path) -> Advice:
    """Recommend a starting configuration for a campaign file's problem, on one device, one node, and the cluster."""
    spec = read_campaign_file(Path(campaign_file)).spec
    return advice.advise(spec.space, spec.problem)
