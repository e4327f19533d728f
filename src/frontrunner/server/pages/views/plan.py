"""What the planning page shows: the fastest recipes by formulas for a model on a cluster, and on other node counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.toml_file import Table
from frontrunner.evaluators.analytic import estimates
from frontrunner.evaluators.analytic.estimates import Plan
from frontrunner.evaluators.analytic.scaling import Scaling, scaling
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.cluster import MOST_DEVICES
from frontrunner.spaces.presets import cluster_preset, device_preset, model_preset
from frontrunner.starting import nothing_legal

TOP = 12
FACTORS = (0.25, 0.5, 1, 2, 4)
"""The node counts of the what-if table, against the one that was asked for."""
MOST_FACTOR = 64
"""Up to which more counts are tried where nothing fits on those."""
SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary", "activation", "positions")
LINKS = ("pair_gb_per_s", "node_gb_per_s", "nic_gb_per_s", "nics_per_node")
MOST_STAGES, MOST_STAGE_COUNTS = 64, 8
"""Of pipelines: the most stages, and how many numbers of stages a plan tries."""


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """What is planned: presets by name, the figures that count in place of theirs, and the problem.

    None stands for the preset's own figure. Sizes are sequences, tokens and GiB; links are GB/s (1e9 bytes), one
    direction, as in `spaces.cluster.Links`.
    """

    model: str = "frontier-22b"
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn_hidden: int | None = None
    vocabulary: int | None = None
    activation: str | None = None
    positions: str | None = None
    tied_embeddings: str | None = None
    cluster: str = "frontier"
    nodes: int = 16
    devices_per_node: int | None = None
    device: str | None = None
    memory_gib_per_device: float | None = None
    pair_gb_per_s: float | None = None
    node_gb_per_s: float | None = None
    nic_gb_per_s: float | None = None
    nics_per_node: int | None = None
    sequence_length: int = 2048
    global_batch: int = 1024
    precision: str = "bf16"

    def typed(self, *names: str) -> dict[str, Any]:
        """The figures of these names that count in place of a preset's."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """A plan, with the fastest recipes that fit, and what the same space gives on fewer and on more nodes."""

    question: PlanQuestion
    spec: CampaignSpec
    plan: Plan
    scaling: Scaling

    @property
    def fits_on(self) -> int | None:
        """The fewest nodes of the what-if table on which a recipe fits, None where none does."""
        return next((row.nodes for row in self.scaling.strong if row.best is not None), None)


def plan_view(question: PlanQuestion) -> PlanView:
    """The answer; raises `InvalidInput` for a question that cannot be asked, and `NothingLegal` without a recipe."""
    spec = campaign_of(question)
    surveyed = spec.survey()
    if not surveyed.recipes:
        raise nothing_legal(surveyed)
    return PlanView(
        question=question,
        spec=spec,
        plan=estimates.plan(surveyed.recipes, surveyed.problem),
        scaling=_on_other_counts(spec, question.nodes),
    )


def _on_other_counts(spec: CampaignSpec, nodes: int) -> Scaling:
    """The what-if table; where nothing fits on any of its counts, they are doubled until something does."""
    most = min(MOST_DEVICES // spec.problem.cluster.devices_per_node, MOST_FACTOR * nodes)
    counts = sorted({max(1, int(nodes * factor)) for factor in FACTORS})
    found = scaling(spec.space, spec.problem, [count for count in counts if count <= most])
    more = 2 * counts[-1]
    while more <= most and not any(row.best for row in found.strong):
        found = replace(found, strong=found.strong + scaling(spec.space, spec.problem, [more]).strong)
        more *= 2
    return found


def campaign_of(question: PlanQuestion) -> CampaignSpec:
    """The campaign whose space the page plans: the usual choices, as far as model and cluster allow them."""
    return parse_campaign(campaign_table(question), default_name="plan", base=Path.cwd()).spec


def campaign_table(question: PlanQuestion) -> Table:
    """The same as a campaign file holds it."""
    return {
        "model": _model(question),
        "cluster": _cluster(question),
        "problem": {
            "sequence_length": question.sequence_length,
            "global_batch": question.global_batch,
            "precision": question.precision,
        },
        "space": {
            "tensor_parallel": [1, 2, 4, 8],
            "pipeline_parallel": _pipeline_parallel(question),
            "micro_batch_seqs": [1, 2, 4],
            "schedule": ["1f1b"],
            "sharding": ["none", "zero-1", "zero-3"],
            "recompute": ["none", "full"],
            "sequence_parallel": [False, True],
        },
    }


def _model(question: PlanQuestion) -> Table:
    """The preset, under the figures that were typed."""
    given = question.typed(*SHAPE)
    if question.tied_embeddings is not None:
        given["tied_embeddings"] = question.tied_embeddings == "yes"
    table = {**model_preset(question.model), **given}
    if given:
        table["name"] = "custom"
    if table.get("positions", "rotary") == "rotary":
        table.pop("max_positions", None)  # of a preset with learned ones
    return table


def _cluster(question: PlanQuestion) -> Table:
    """The preset, or its nodes and links around another device; under the figures that were typed."""
    table = cluster_preset(question.cluster)
    given = question.typed("devices_per_node", "memory_gib_per_device")
    links = question.typed(*LINKS)
    if question.device not in (None, table["device"]):
        kept = {key: table[key] for key in ("devices_per_node", "links")}
        table = {**device_preset(str(question.device)), **kept}
    changed = given or links or "name" not in table
    named = {"name": "custom"} if changed else {}
    return {**table, **given, **named, "links": {**table["links"], **links}, "nodes": question.nodes}


def _pipeline_parallel(question: PlanQuestion) -> list[int]:
    """Numbers of stages that share the layers evenly: powers of two first, at most `MOST_STAGE_COUNTS` of them."""
    layers = int(_model(question)["layers"])
    even = [stages for stages in range(1, min(layers, MOST_STAGES) + 1) if layers % stages == 0]
    even.sort(key=lambda stages: (stages & (stages - 1) != 0, stages))
    return sorted(even[:MOST_STAGE_COUNTS])
