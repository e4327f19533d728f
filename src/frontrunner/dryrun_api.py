"""Dry runs from Python: of a stored recipe, or of one of a campaign file's space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from frontrunner.config.campaign import read_campaign_file
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.store import LocalStore

if TYPE_CHECKING:
    from frontrunner.evaluators.diagnostics.dryrun import DryRun, DryRunPlan
    from frontrunner.results.explain import Explanation


class Explains(Protocol):
    """A store, local or remote, that knows recipes."""

    url: str

    def show(self, recipe_id: str) -> Explanation:
        """Return everything that the store knows of a recipe."""


def named_recipe(
    store: Explains, recipe: str | Mapping[str, object], campaign: str | Path | None
) -> tuple[CampaignSpec, Recipe]:
    """A recipe with the campaign that it is of.

    It is a stored one by its id, or, of the space of a `campaign` file, the one of this id or that choices leave.
    """
    from frontrunner.config.recipe_lookup import one_recipe, recipe_by_id

    if campaign is not None:
        spec = read_campaign_file(Path(campaign)).spec
        return spec, recipe_by_id(spec, recipe) if isinstance(recipe, str) else one_recipe(spec, recipe)
    if not isinstance(recipe, str):
        raise InvalidInput("a recipe by its choices needs the campaign file that they are of")
    explanation = store.show(recipe)
    return stored_spec(explanation.appearances[0].campaign), explanation.recipe


def plan_dryrun(
    recipe: str | Mapping[str, object],
    *,
    campaign: str | Path | None = None,
    rank: int | None = None,
    store: str | None = None,
) -> DryRunPlan:
    """What a dry run would trace; see `dryrun`."""
    from frontrunner.evaluators.diagnostics.dryrun import plan
    from frontrunner.spaces.document import recipe_id

    spec, found = named_recipe(LocalStore(store), recipe, campaign)
    return plan(
        recipe_id=recipe_id(spec.problem, found), recipe=found, problem=spec.problem, probe=spec.probe, rank=rank
    )


def dryrun(
    recipe: str | Mapping[str, object],
    *,
    campaign: str | Path | None = None,
    rank: int | None = None,
    store: str | None = None,
) -> DryRun:
    """Trace a recipe's real training step without a device: peak memory by category, and FLOPs.

    The recipe is a stored one by its id, or one of the space of a `campaign` file: by its id, or by choices such as
    `{"tensor_parallel": 8}` that leave one legal recipe. `rank` None traces the ranks that may need most memory. Raises
    `InvalidInput` for a recipe that cannot be traced.
    """
    from frontrunner.evaluators.diagnostics.dryrun import run

    return run(plan_dryrun(recipe, campaign=campaign, rank=rank, store=store))
