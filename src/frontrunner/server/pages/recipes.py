"""Pages of recipes: one in full with its replay, and two side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict

from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured, breakdown
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.exchange import TARGETS
from frontrunner.results.explain import Appearance, Explanation, explain
from frontrunner.results.outcome import Measurement
from frontrunner.results.pages import compare, newest_names
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.server.auth import Role
from frontrunner.server.pages.rendering import page, render
from frontrunner.server.replays import Replay, Replays, ReplayState
from frontrunner.server.requests import ReplayBody, Steps
from frontrunner.server.responses import message_without_store
from frontrunner.server.routes.questions import RecipeId
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, Service, ServiceOf, StoreOf
from frontrunner.spaces.errors import InvalidInput, NotFound
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Dimension, Recipe
from frontrunner.views.charts.cut import Cut, cut
from frontrunner.views.charts.recipe import memory_bars, step_bars, step_times
from frontrunner.views.columns import ATTEMPTS, FIGURES, ORIGINS, Column

router = APIRouter(route_class=CachedRoute)
MOST_STRIPS = 12
"""Measurements whose steps are drawn, the newest; the table below lists more."""
MOST_NAMES = 200
MORE_STEPS = 200
"""Steps offered for a replay that was never begun, and as more of one that is finished."""
REPLAY_STATES = {
    ReplayState.RUNNING: "Training",
    ReplayState.FINISHED: "The last replay reached its last step",
    ReplayState.STOPPED: "The last replay was stopped",
    ReplayState.FAILED: "The last replay failed",
    ReplayState.CUT_OFF: "The last replay was interrupted: its process ended without reporting why",
}
Two = Annotated[list[Annotated[str, Query(max_length=64)]], Query(max_length=MOST_NAMES)]


@dataclass(frozen=True, kw_only=True)
class RecipeView:
    """One recipe. `leading` is the newest campaign that measured it, else the newest that tried.

    `breakdown`, `step` and `memory` are None if the formulas do not cover the recipe: `why_no_breakdown` states why.
    `exports` are the export targets, each with the reason why it refuses the recipe, None if it does not.
    """

    explanation: Explanation
    leading: Appearance
    problem: Problem
    cut: Cut
    breakdown: Breakdown | None
    why_no_breakdown: str
    step: dict[str, Any] | None
    memory: dict[str, Any] | None
    strip: dict[str, Any] | None
    exports: Mapping[str, str | None]


def recipe_view(store: Store, recipe_id: str) -> RecipeView:
    """Return what the page shows of the recipe with this id, or a unique prefix of it; raises as `explain` does."""
    found = explain(store, recipe_id)
    leading = _leading(found)
    problem = stored_spec(leading.campaign).problem
    parts, why_no_breakdown = None, ""
    try:
        parts = breakdown(found.recipe, problem, _measured(leading))
    except InvalidInput as error:
        why_no_breakdown = error.message
    refusals = {name: TOOLS[name].why_not(problem, found.recipe) if name in TOOLS else None for name in TARGETS}
    return RecipeView(
        explanation=found,
        leading=leading,
        problem=problem,
        cut=cut(found.recipe, problem.cluster, layers=problem.model.layers),
        breakdown=parts,
        why_no_breakdown=why_no_breakdown,
        step=None if parts is None else step_bars(parts),
        memory=None if parts is None else memory_bars(parts),
        strip=step_times(_step_times(found.appearances)[:MOST_STRIPS]),
        exports={name: None if reason is None else str(reason) for name, reason in refusals.items()},
    )


def _leading(found: Explanation) -> Appearance:
    return next((row for row in found.appearances if row.standing is not None), found.appearances[0])


def _measured(row: Appearance) -> Measured | None:
    """Return what the estimate is compared with; simulated figures are no measurement."""
    if row.standing is None or row.campaign.figures != "measured":
        return None
    return Measured(
        store="",
        campaign=row.campaign.name,
        repeats=row.standing.repeats,
        step_time_s=row.standing.step_time_s_median,
        step_time_spread=row.standing.step_time_spread,
        tokens_per_s=row.standing.tokens_per_s,
        mfu=row.standing.mfu,
        peak_memory_bytes=row.standing.peak_memory_bytes_max_rank,
    )


def _step_times(appearances: Sequence[Appearance]) -> list[tuple[str, Sequence[float]]]:
    """Return the steps of each real measurement, the newest campaign and attempt first."""
    return [
        (f"{row.campaign.name} {row.trial.number}.{tried.attempt.number}", tried.outcome.step_times_s)
        for row in appearances
        if row.campaign.figures == "measured"
        for tried in reversed(row.attempts)
        if isinstance(tried.outcome, Measurement)
    ]


@router.get("/recipes/{recipe_id}")
def one_recipe(service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """One recipe in full."""
    view = recipe_view(service.store, recipe_id)
    card = replay_view(service.replays, view.explanation)
    recipe = view.explanation.recipe
    return page(
        "recipe.html",
        here=None,
        view=view,
        recipe=recipe,
        attempts=[(row, tried) for row in view.explanation.appearances for tried in reversed(row.attempts)],
        attempt_columns=ATTEMPTS,
        notice=ORIGINS.get(view.leading.campaign.figures, ""),
        choices=[(one.name.replace("_", " "), choice(recipe, one)) for one in DIMENSIONS.values()],
        can_be_replayed=card.can_be_replayed,
        replay=_replay(card, role),
    )


def choice(recipe: Recipe, dimension: Dimension) -> str:
    """Return one choice of a recipe in words."""
    value = recipe.layers_name if dimension.kind == "layers" else dimension.of(recipe)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


class ReplayForm(BaseModel):
    """What the replay's form sends."""

    model_config = ConfigDict(extra="forbid")

    steps: Steps
    anyway: bool = False


@dataclass(frozen=True, kw_only=True)
class ReplayView:
    """The replay of one recipe; `replay` is None if the service has started none.

    `measured_in` is the newest campaign that measured the recipe by real training, and `measured_tokens_per_s` its
    figure; empty and None without one. A start continues from `checkpoint_step`, which may be a checkpoint of the
    command `frontrunner replay`, and is 0 without one.
    """

    recipe_id: str
    replay: Replay | None
    measured_in: str
    measured_tokens_per_s: float | None
    can_be_replayed: bool
    checkpoint_step: int

    @property
    def is_running(self) -> bool:
        """Whether it trains now."""
        return self.replay is not None and self.replay.state is ReplayState.RUNNING

    @property
    def words(self) -> str:
        """Where it stands."""
        if self.replay is None:
            return ""
        return REPLAY_STATES[self.replay.state] + (f": {self.replay.why}" if self.replay.why else "")

    @property
    def steps(self) -> int:
        """The last step to offer: that of a replay that did not reach its own, else some more."""
        if self.replay is not None and self.replay.steps > self.checkpoint_step:
            return self.replay.steps
        return self.checkpoint_step + MORE_STEPS

    @property
    def share_of_measured(self) -> float | None:
        """The replay's tokens/s over `measured_tokens_per_s`; None if either is unknown."""
        speed = None if self.replay is None else self.replay.tokens_per_s
        return speed / self.measured_tokens_per_s if speed and self.measured_tokens_per_s else None


def replay_view(replays: Replays, found: Explanation) -> ReplayView:
    """Return the replay of an explained recipe."""
    own = [row for row in found.appearances if row.standing is not None and row.campaign.figures != "imported"]
    measured = next((row for row in own if row.campaign.figures == "measured"), None)
    try:
        replay: Replay | None = replays.one(found.recipe_id)
    except NotFound:  # none was ever started
        replay = None
    return ReplayView(
        recipe_id=found.recipe_id,
        replay=replay,
        measured_in="" if measured is None else measured.campaign.name,
        measured_tokens_per_s=None if measured is None or measured.standing is None else measured.standing.tokens_per_s,
        can_be_replayed=bool(own),
        checkpoint_step=replays.checkpoint_steps(found.recipe_id).get(found.recipe_id, 0),
    )


def _replay(card: ReplayView, role: Role) -> Markup:
    """Render the card of a replay with the form that starts one."""
    return render("replay.html", view=card, replay=card.replay, may_change=role is Role.OPERATOR)


def _replay_card(service: Service, role: Role, recipe_id: str) -> Response:
    return HTMLResponse(_replay(replay_view(service.replays, explain(service.store, recipe_id)), role))


@router.get("/recipes/{recipe_id}/replay")
def replay_so_far(service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """How far the recipe's replay is."""
    return _replay_card(service, role, recipe_id)


@router.post("/recipes/{recipe_id}/replay", dependencies=OPERATOR)
async def start_replay(service: ServiceOf, role: RoleOf, recipe_id: RecipeId, form: ReplayForm) -> Response:
    """Start a replay, or continue one."""
    body = ReplayBody(recipe_id=recipe_id, steps=form.steps, anyway=form.anyway)
    await service.slowly(lambda: service.replays.start(body.settings()))
    return _replay_card(service, role, recipe_id)


@router.post("/recipes/{recipe_id}/replay/stop", dependencies=OPERATOR)
def stop_replay(service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """End the recipe's replay; its checkpoints stay."""
    service.replays.stop(recipe_id)
    return _replay_card(service, role, recipe_id)


@dataclass(frozen=True)
class Pair:
    """One line of a comparison: what is compared, and both values in words."""

    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        return self.first != self.second


def compare_recipes(store: Store, first: str, second: str) -> dict[str, Any]:
    """Compare two recipes figure by figure and choice by choice, differences first; raises as `explain` does.

    `speed_ratio` is the second's tokens/s over the first's, None if either was not measured; `same_problem` is whether
    their figures are comparable at all.
    """
    sides = [explain(store, first), explain(store, second)]
    left, right = map(_leading, sides)
    ratio = right.standing.tokens_per_s / left.standing.tokens_per_s if left.standing and right.standing else None
    recipes = [side.recipe for side in sides]
    choices = [
        Pair(one.name.replace("_", " "), *(choice(recipe, one) for recipe in recipes)) for one in DIMENSIONS.values()
    ]
    choices.append(Pair("data parallel", *(str(recipe.data_parallel) for recipe in recipes)))
    columns: list[Column[Appearance]] = [column.of(lambda row: row.standing) for column in FIGURES]
    return {
        "ids": [side.recipe_id for side in sides],
        "campaigns": [left.campaign.name, right.campaign.name],
        "figures": [Pair(column.label or column.title, column.cell(left), column.cell(right)) for column in columns],
        "choices": sorted(choices, key=lambda pair: not pair.differs),
        "speed_ratio": ratio,
        "same_problem": dict(left.campaign.problem_summary) == dict(right.campaign.problem_summary),
    }


@router.get("/compare")
def compared(
    store: StoreOf,
    campaign: Two = [],  # noqa: B006 - FastAPI copies it
    recipe: Two = [],  # noqa: B006
) -> Response:
    """Two campaigns, or two recipes, side by side; without either, the forms to choose them."""
    names = newest_names(store, MOST_NAMES)
    both, pair, problem = None, None, ""
    try:
        both = compare(store, *campaign) if len(campaign) == 2 else None
        pair = compare_recipes(store, *recipe) if len(recipe) == 2 else None
    except (InvalidInput, NotFound) as error:
        problem = message_without_store(error, store.url)
    if len(campaign) not in (0, 2) or len(recipe) not in (0, 2):
        problem = "choose two to compare"
    return page(
        "compare.html",
        here="/compare",
        names=names,
        chosen=campaign if both else (names * 2)[:2],
        recipes=[*recipe, "", ""][:2],
        campaigns=both,
        pair=pair,
        problem=problem,
    )
