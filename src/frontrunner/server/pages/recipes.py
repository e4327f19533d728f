"""Pages of recipes: one in full, with its replay."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from frontrunner.evaluators.analytic.breakdown import breakdown
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.exchange import TARGETS
from frontrunner.recipe_actions import first_measurement
from frontrunner.results.outcome import Measurement
from frontrunner.results.status import Appearance, Explanation, explain
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.server.auth import Role
from frontrunner.server.drivers import Replay, ReplayState
from frontrunner.server.pages.rendering import page, render
from frontrunner.server.requests import InCampaign, ReplayBody
from frontrunner.server.routes import RecipeId
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, Service, ServiceOf
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.views.charts.cut import cut
from frontrunner.views.charts.recipe import memory_bars, step_bars, step_times
from frontrunner.views.columns import ATTEMPTS, ORIGINS
from frontrunner.views.comparison import choice
from frontrunner.views.report import commands

router = APIRouter(route_class=CachedRoute)
MOST_STRIPS = 12
MORE_STEPS = 200
REPLAY_STATES = {
    ReplayState.RUNNING: "Training",
    ReplayState.FINISHED: "The last replay reached its last step",
    ReplayState.STOPPED: "The last replay was stopped",
    ReplayState.FAILED: "The last replay failed",
    ReplayState.CUT_OFF: "The last replay was interrupted: its process ended without reporting why",
}
JUMPS = {
    "cut": "Cut",
    "step": "One step",
    "time": "Time",
    "memory": "Memory",
    "measurements": "Measurements",
    "choices": "Choices",
    "take-along": "Commands",
    "export": "Export",
}
"""Sections of a recipe's page by their ids, in its order."""


def _explained(
    service: ServiceOf, recipe_id: RecipeId, campaign: Annotated[InCampaign, Query()] = None
) -> Explanation:
    return explain(service.store, recipe_id, campaign)


ExplainedOf = Annotated[Explanation, Depends(_explained)]


@router.get("/recipes/{recipe_id}")
def one_recipe(request: Request, service: ServiceOf, role: RoleOf, found: ExplainedOf) -> Response:
    """One recipe in full."""
    recipe, lead = found.recipe, found.appearances[0]
    problem, server = (
        stored_spec(lead.campaign).problem,
        service.settings.seen_by(request),
    )
    try:
        parts, why_no_breakdown = breakdown(recipe, problem, first_measurement(found, "")), ""
    except InvalidInput as error:
        parts, why_no_breakdown = None, error.message
    step = parts and step_bars(parts)
    refusals = {
        name: TOOLS[name].why_not(problem, recipe) if name in TOOLS else None for name in TARGETS
    }
    attempts = [(row, tried) for row in found.appearances for tried in reversed(row.attempts)]
    measured = [
        (
            f"{row.campaign.name} {row.trial.number}.{tried.attempt.number}",
            tried.outcome.step_times_s,
        )
        for row, tried in attempts
        if row.campaign.figures == "measured" and isinstance(tried.outcome, Measurement)
    ]
    return page(
        "recipe.html",
        here=None,
        recipe_id=found.recipe_id,
        recipe=recipe,
        lead=lead,
        others=found.appearances[1:],
        problem=problem,
        cut=cut(recipe, problem.cluster, layers=len(problem.model.layers)),
        breakdown=parts,
        why_no_breakdown=why_no_breakdown,
        step=step,
        memory=parts and memory_bars(parts),
        strip=step_times(measured[:MOST_STRIPS]),
        exports={
            name: None if reason is None else str(reason) for name, reason in refusals.items()
        },
        attempts=attempts,
        jumps=[(section, title) for section, title in JUMPS.items() if section != "step" or step],
        attempt_columns=ATTEMPTS,
        notice=ORIGINS.get(lead.campaign.figures, ""),
        choices=[
            *((one.name.replace("_", " "), choice(recipe, one)) for one in DIMENSIONS.values()),
            *((own.name, own.shown()) for own in recipe.custom),
        ],
        commands=commands(
            found.recipe_id, lead.campaign.name, replays=bool(_replayable(found)), server=server
        ),
        replay=_replay(service, role, found),
    )


def _replayable(found: Explanation) -> list[Appearance]:
    return [
        row
        for row in found.appearances
        if row.standing is not None and row.campaign.figures != "imported"
    ]


def _replay(service: Service, role: Role, found: Explanation) -> Markup:
    own = _replayable(found)
    measured = next((row for row in own if row.campaign.figures == "measured"), None)
    checkpoint_step = service.replays.checkpoint_step(found.recipe_id)
    replay: Replay | None = None
    steps, words = checkpoint_step + MORE_STEPS, ""
    try:
        replay = service.replays.one(found.recipe_id)
        steps = replay.steps if replay.steps > checkpoint_step else steps
        words = REPLAY_STATES[replay.state] + (f": {replay.why}" if replay.why else "")
    except NotFound:  # none was ever started
        pass
    return render(
        "replay.html",
        recipe_id=found.recipe_id,
        campaign=found.appearances[0].campaign.name,
        replay=replay,
        words=words,
        is_running=replay is not None and replay.state is ReplayState.RUNNING,
        measured=measured,
        can_be_replayed=bool(own),
        checkpoint_step=checkpoint_step,
        steps=steps,
        may_change=role is Role.OPERATOR,
    )


@router.get("/recipes/{recipe_id}/replay")
def replay_so_far(service: ServiceOf, role: RoleOf, found: ExplainedOf) -> Response:
    """How far the recipe's replay is."""
    return HTMLResponse(_replay(service, role, found))


@router.post("/recipes/{recipe_id}/replay", dependencies=OPERATOR)
async def start_replay(
    service: ServiceOf, role: RoleOf, found: ExplainedOf, body: ReplayBody
) -> Response:
    """Start a replay, or continue one."""
    await service.slowly(lambda: service.replays.start(body.settings()), starts=True)
    return HTMLResponse(_replay(service, role, found))


@router.post("/recipes/{recipe_id}/replay/stop", dependencies=OPERATOR)
def stop_replay(service: ServiceOf, role: RoleOf, found: ExplainedOf) -> Response:
    """End the recipe's replay; its checkpoints stay."""
    service.replays.stop(found.recipe_id)
    return HTMLResponse(_replay(service, role, found))
