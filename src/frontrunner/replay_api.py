"""Replays from Python: of a stored recipe, or of a recipe file where there is no store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner import api
from frontrunner.config.settings import run_root, store_url
from frontrunner.foreign_recipes import refuse_file_of_others, refuse_recipe_of_others
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from frontrunner.evaluators.probe.replay import ReplayPlan, ReplayResult, ReplaySettings


def names_a_file(recipe: str) -> bool:
    """Whether the words of a person name a recipe file, not an id: they end with .json, or hold a slash."""
    return recipe.endswith(".json") or "/" in recipe


def plan_replay(
    recipe_id: str, settings: ReplaySettings, *, store: str | None = None, anyway: bool = False
) -> ReplayPlan:
    """What a replay would run, checked against this machine; see `replay`.

    The recipe's newest measurement gives the figure to compare with; a simulated one never does. With
    `settings.launched` a recipe of several nodes is planned too.
    """
    from frontrunner.evaluators.probe.replay import plan

    if names_a_file(recipe_id):
        return _plan_file(Path(recipe_id), settings, anyway=anyway)
    explanation = api.show(recipe_id, store=store)
    refuse_recipe_of_others(explanation)
    own = [appearance for appearance in explanation.appearances if appearance.campaign.figures != "imported"]
    own = [appearance for appearance in own if not stored_spec(appearance.campaign).trainer]
    ranked = [appearance for appearance in own if appearance.standing is not None]
    ranked.sort(key=lambda appearance: appearance.campaign.figures == "simulated")  # stable: the newest stay first
    if not ranked:
        raise InvalidInput(
            f"recipe {explanation.recipe_id} was never measured, so there is nothing to replay",
            hint="`frontrunner best` lists the measured ones",
        )
    campaign, standing = ranked[0].campaign, ranked[0].standing
    spec = stored_spec(campaign)
    return plan(
        recipe_id=explanation.recipe_id,
        recipe=explanation.recipe,
        setup=spec.probe_setup(),
        measured_tokens_per_s=standing.tokens_per_s if standing and campaign.figures == "measured" else None,
        settings=settings,
        anyway=anyway,
    )


def _plan_file(path: Path, settings: ReplaySettings, *, anyway: bool) -> ReplayPlan:
    from frontrunner.config.recipe_file import read
    from frontrunner.evaluators.probe.replay import plan
    from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
    from frontrunner.evaluators.protocol import ProbeSetup

    file = read(path)
    refuse_file_of_others(file)
    was_measured = file.measured is not None and file.measured.figures == "measured"
    return plan(
        recipe_id=file.recipe_id,
        recipe=file.recipe,
        setup=ProbeSetup(
            problem=file.problem,
            probe=ProbeSettings(optimizer=file.training.optimizer),
            data=DataSettings(),
            work_folder=run_root(store_url()) / "recipe-files",
            seed=file.training.seed,
            engines=(file.recipe.engine,),
        ),
        measured_tokens_per_s=file.measured.tokens_per_s if file.measured and was_measured else None,
        settings=settings,
        anyway=anyway,
    )


def replay(
    recipe_id: str,
    *,
    steps: int,
    store: str | None = None,
    anyway: bool = False,
    settings: ReplaySettings | None = None,
) -> ReplayResult:
    """Train for `steps` steps with a stored recipe, or a recipe file by its path, from the newest checkpoint on.

    Raises `InvalidInput` if this machine is not what the recipe was measured on, unless `anyway`.
    """
    from frontrunner.evaluators.probe.replay import ReplaySettings as Settings
    from frontrunner.evaluators.probe.replay import run

    chosen = replace(settings, steps=steps) if settings else Settings(steps=steps)
    return run(plan_replay(recipe_id, chosen, store=store, anyway=anyway))
