"""What the planning page shows: the fastest recipes by formulas for a model on a cluster, and on other node counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.campaign_file import parse_campaign
from frontrunner.evaluators.analytic import estimate
from frontrunner.evaluators.analytic.estimate import Plan
from frontrunner.evaluators.analytic.scaling import Scaling, scaling
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.cluster import MOST_DEVICES, PRECISIONS
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.presets import cluster_names, model_names
from frontrunner.starting import nothing_legal

TOP = 12
FACTORS = (0.25, 0.5, 1, 2, 4)
"""The node counts of the what-if table, against the one that was asked for."""


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """What is planned: presets by name, and the problem. Sizes are sequences and tokens."""

    model: str = "frontier-22b"
    cluster: str = "frontier"
    nodes: int = 16
    sequence_length: int = 2048
    global_batch: int = 1024
    precision: str = "bf16"

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_DEVICES:
            raise bad_value("nodes", self.nodes, f"a number of nodes from 1 to {MOST_DEVICES:,}")


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """A plan, with the fastest recipes that fit, and what the same space gives on fewer and on more nodes."""

    question: PlanQuestion
    spec: CampaignSpec
    plan: Plan
    scaling: Scaling


def models() -> tuple[str, ...]:
    """The models to choose from."""
    return model_names()


def clusters() -> tuple[str, ...]:
    """The clusters to choose from."""
    return cluster_names()


def precisions() -> tuple[str, ...]:
    """The precisions to choose from."""
    return PRECISIONS


def plan_view(question: PlanQuestion) -> PlanView:
    """The answer; raises `InvalidInput` for a question that cannot be asked, and `NothingLegal` without a recipe."""
    spec = campaign_of(question)
    surveyed = spec.survey()
    if not surveyed.recipes:
        raise nothing_legal(surveyed)
    counts = sorted({max(1, int(question.nodes * factor)) for factor in FACTORS})
    fitting = [count for count in counts if count * spec.problem.cluster.devices_per_node <= MOST_DEVICES]
    return PlanView(
        question=question,
        spec=spec,
        plan=estimate.plan(surveyed.recipes, surveyed.problem),
        scaling=scaling(spec.space, spec.problem, fitting),
    )


def campaign_of(question: PlanQuestion) -> CampaignSpec:
    """The campaign whose space the page plans: the usual choices, as far as model and cluster allow them."""
    return parse_campaign(campaign_table(question), default_name="plan", base=Path.cwd()).spec


def campaign_table(question: PlanQuestion) -> dict[str, Any]:
    """The same as a campaign file holds it."""
    return {
        "model": {"preset": question.model},
        "cluster": {"preset": question.cluster, "nodes": question.nodes},
        "problem": {
            "sequence_length": question.sequence_length,
            "global_batch": question.global_batch,
            "precision": question.precision,
        },
        "space": {
            "tensor_parallel": [1, 2, 4, 8],
            "pipeline_parallel": [1, 2, 4, 8, 16, 32],
            "micro_batch_seqs": [1, 2, 4],
            "schedule": ["1f1b"],
            "sharding": ["none", "zero-1", "zero-3"],
            "recompute": ["none", "full"],
            "sequence_parallel": [False, True],
        },
    }
