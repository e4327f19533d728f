"""Recipes that frontrunner's own trainer cannot repeat: those of imported tables and of other trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from frontrunner.config.recipe_file import RecipeFile
    from frontrunner.results.explain import Explanation


def refuse_recipe_of_others(explanation: Explanation) -> None:
    """Raise `InvalidInput` for a recipe that only imported tables know, or that only other trainers have run.

    Tables do not say how to train it here, and frontrunner's own trainer cannot repeat what another has done.
    """
    if all(appearance.campaign.figures == "imported" for appearance in explanation.appearances):
        raise _of_a_table(explanation.recipe_id, ", which learns from the table")
    for appearance in explanation.appearances:
        spec = stored_spec(appearance.campaign)
        if not spec.trainer:
            return
    raise _of_another_trainer(explanation.recipe_id, spec.evaluator, named=explanation.recipe_id)


def refuse_file_of_others(file: RecipeFile) -> None:
    """Raise `InvalidInput`, as `refuse_recipe_of_others` does, for a recipe file with figures of others."""
    measured = file.measured
    if measured is None or measured.is_ours:
        return
    if measured.trainer is None:
        raise _of_a_table(file.recipe_id)
    raise _of_another_trainer(file.recipe_id, measured.trainer, named="FILE")


def _of_a_table(recipe_id: str, learning: str = "") -> InvalidInput:
    return InvalidInput(
        f"recipe {recipe_id} is of an imported table, which does not say how to train it here",
        hint=f"search its problem by a campaign file{learning}: frontrunner launch FILE",
    )


def _of_another_trainer(recipe_id: str, evaluator: str, *, named: str) -> InvalidInput:
    return InvalidInput(
        f"recipe {recipe_id} was run by another trainer, with evaluator = {evaluator!r}",
        hint=f"frontrunner export {named} --to FORMAT says it in that trainer's words",
    )
