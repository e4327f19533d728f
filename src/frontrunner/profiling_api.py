"""Profiles from Python: a probe of a stored recipe whose last steps are traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontrunner.api import show
from frontrunner.foreign_recipes import refuse_recipe_of_others
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.profile import ProfilePlan, ProfileReport, ProfileSettings


def plan_profile(
    recipe_id: str, settings: ProfileSettings | None = None, *, store: str | None = None, anyway: bool = False
) -> ProfilePlan:
    """What a profile would run, checked against this machine; see `profile`."""
    from frontrunner.evaluators.diagnostics.profile import ProfileSettings as Settings
    from frontrunner.evaluators.diagnostics.profile import plan

    explanation = show(recipe_id, store=store)
    refuse_recipe_of_others(explanation)
    probed = [(found, stored_spec(found.campaign)) for found in explanation.appearances]
    probed = [(found, spec) for found, spec in probed if spec.evaluator == "probe"]
    if not probed:
        raise InvalidInput(
            f"recipe {explanation.recipe_id} is of a simulated campaign, so there is no training to profile",
            hint='launch its campaign file with evaluator = "probe"',
        )
    # Of campaigns that measured it the newest, else the newest that tried.
    appearance, spec = next((pair for pair in probed if pair[0].standing is not None), probed[0])
    return plan(
        recipe_id=explanation.recipe_id,
        recipe=explanation.recipe,
        setup=spec.probe_setup(),
        measured_step_time_s=None if appearance.standing is None else appearance.standing.step_time_s_median,
        settings=settings or Settings(),
        anyway=anyway,
    )


def profile(
    recipe_id: str, *, settings: ProfileSettings | None = None, store: str | None = None, anyway: bool = False
) -> ProfileReport:
    """Run a probe of a stored recipe whose last steps are traced, and say where their time went.

    Raises `InvalidInput` for a recipe of a simulated campaign, and if this machine is not what the recipe was
    measured on, unless `anyway`.
    """
    from frontrunner.evaluators.diagnostics.profile import run

    return run(plan_profile(recipe_id, settings, store=store, anyway=anyway))
