"""The step simulator of a recipe's page: a timeline as step.js draws it, with its groups of ranks
and choices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from frontrunner.evaluators.analytic.timeline import KINDS, Action, RankTimeline, StepTimeline
from frontrunner.evaluators.diagnostics.profile import newest_measured_step
from frontrunner.recipe_actions import step_choices, step_in
from frontrunner.results.status import Explanation
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.server.pages.recipes import ExplainedOf
from frontrunner.server.requests import STEP_DIMENSIONS, Body
from frontrunner.server.service import CachedRoute, ServiceOf
from frontrunner.spaces.recipe import Choice, Recipe
from frontrunner.text import to_json
from frontrunner.views.charts.cut import reaches

router = APIRouter(route_class=CachedRoute)
PARTS = 1_000_000
"""Moments are sent as whole numbers of such parts of a step."""
MOST_SENT = 16_000
"""Actions that are sent: of a longer step the first and the last half of them, and between them
each rank's shares.
"""
NAMES = tuple(KINDS)
Gap = tuple[float, float]


class Variant(Body):
    """Values of dimensions that differ from the recipe's own."""

    campaign: Annotated[str | None, Query(max_length=64)] = None
    schedule: Annotated[str | None, Query(max_length=64)] = None
    pipeline_parallel: Annotated[int | None, Query(ge=1, le=1_000_000)] = None
    virtual_stages: Annotated[int | None, Query(ge=1, le=1_000_000)] = None
    micro_batch_seqs: Annotated[int | None, Query(ge=1, le=1_000_000)] = None


@router.get("/recipes/{recipe_id}/step")
async def step(
    service: ServiceOf, found: ExplainedOf, asked: Annotated[Variant, Query()]
) -> Response:
    """One step of a recipe, or of a variant, for step.js."""
    changes = {name: getattr(asked, name) for name in STEP_DIMENSIONS}
    content = await service.slowly(lambda: to_json(drawn(found, changes)))
    return Response(content, media_type="application/json")


def drawn(explanation: Explanation, changes: dict[str, Choice | None]) -> dict[str, Any]:
    """Return what step.js draws of a step."""
    spec = stored_spec(explanation.appearances[0].campaign)
    profiled = newest_measured_step(spec.run_root, explanation.recipe_id) if spec.run_root else None
    return drawn_in(explanation.recipe, spec, changes, profiled)


def drawn_in(
    whole: Recipe, spec: CampaignSpec, changes: Mapping[str, Choice | None], profiled: object = None
) -> dict[str, Any]:
    """Return what step.js draws of a step of a recipe in a campaign; `profiled` is that step as it
    was measured.
    """
    found = step_in(whole, spec, changes)
    recipe = found.recipe
    gap, own, cluster = left_out(found.ranks), recipe == whole, spec.problem.cluster
    return {
        "recipe": found.recipe_id,
        "describe": found.describe,
        "is_own": own,
        "step_s": found.step_time_s,
        "formula_s": found.formula_step_time_s,
        "bubble": found.bubble_share,
        "limit_bytes": found.memory_limit_bytes,
        "differences": found.differences,
        "kinds": list(KINDS.values()),
        "parts": found.pass_parts_s,
        "gap": None if gap is None else [_moment(at, found) for at in gap],
        "gap_actions": sum(len(_inside(rank, gap)) for rank in found.ranks),
        "ranks": [_rank(rank, found, gap) for rank in found.ranks],
        "groups": list(reaches(recipe, cluster)),
        "devices": recipe.devices,
        "per_node": cluster.devices_per_node,
        "stride": recipe.rank_strides["pp"],
        "experts": [recipe.expert_parallel, recipe.expert_tensor_parallel],
        "chosen": {name: getattr(recipe, name) for name in STEP_DIMENSIONS},
        "choices": step_choices(recipe, spec),
        "measured": profiled if own else None,
    }


def left_out(ranks: Sequence[RankTimeline], most: int = MOST_SENT) -> Gap | None:
    """Return the time in the midst of a step of which no action is sent, None where all are."""
    moments = sorted(one.begin_s for rank in ranks for one in rank.actions)
    if len(moments) <= most:
        return None
    return moments[most // 2], moments[-most // 2]


def _inside(rank: RankTimeline, gap: Gap | None) -> list[Action]:
    return [] if gap is None else [one for one in rank.actions if gap[0] < one.begin_s < gap[1]]


def _moment(at_s: float, found: StepTimeline) -> int:
    return round(PARTS * at_s / found.step_time_s)


def _rank(rank: RankTimeline, found: StepTimeline, gap: Gap | None) -> dict[str, Any]:
    """Return a rank with its actions as kind, stage, micro-batch, begin and end, and its levels as
    begin and bytes.

    Of a gap it has `shares`, and the most memory that was held in it.
    """
    inside = set(_inside(rank, gap))
    levels = [(one.begin_s, one.memory_bytes) for one in rank.memory]
    if gap is not None:
        most = max((held for at_s, held in levels if gap[0] < at_s < gap[1]), default=None)
        levels = [(at_s, held) for at_s, held in levels if not gap[0] < at_s < gap[1]]
        levels = sorted([*levels, (gap[0], most)] if most is not None else levels)
    return {
        "rank": rank.rank,
        "devices": rank.devices,
        "stages": rank.stages,
        "layers": rank.layers,
        "bubble": rank.bubble_s / found.step_time_s,
        "peak": rank.peak_memory_bytes,
        "actions": [
            [
                NAMES.index(one.kind),
                one.stage,
                one.micro_batch,
                _moment(one.begin_s, found),
                _moment(one.end_s, found),
            ]
            for one in rank.actions
            if one not in inside
        ],
        "shares": [] if gap is None else shares(rank, gap),
        "memory": [[_moment(at_s, found), held] for at_s, held in levels],
    }


def shares(rank: RankTimeline, gap: Gap) -> list[tuple[int, int | None, float]]:
    """Return what a rank does in a time as kind, stage and share of it."""
    found: defaultdict[tuple[int, int | None], float] = defaultdict(float)
    for one in rank.actions:
        time_s = min(one.end_s, gap[1]) - max(one.begin_s, gap[0])
        if time_s > 0:
            found[NAMES.index(one.kind), one.stage] += time_s / (gap[1] - gap[0])
    return [
        (*what, round(share, 6)) for what, share in sorted(found.items(), key=lambda one: one[0][0])
    ]
