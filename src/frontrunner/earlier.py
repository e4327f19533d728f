"""What was known before: earlier campaigns as a new one may learn from them, and what imported ones cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontrunner.results.records import IMPORTED
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import InvalidInput
from frontrunner.validation import load_json

if TYPE_CHECKING:
    from frontrunner.recipe_file import RecipeFile
    from frontrunner.results.explain import Explanation
    from frontrunner.results.records import Campaign
    from frontrunner.results.store import Store
    from frontrunner.search.evidence import Gathered


def refuse_imported_campaign(campaign: Campaign) -> None:
    """Raise `InvalidInput` for a campaign that is a table's rows, which nobody drives."""
    if campaign.strategy == IMPORTED:
        raise InvalidInput(
            f"campaign {campaign.name} holds an imported table: there is nothing to go on with",
            hint="name another: frontrunner campaigns",
        )


def refuse_recipe_of_others(explanation: Explanation) -> None:
    """Raise `InvalidInput` for a recipe that only imported tables know, or that only other trainers have run.

    Tables do not say how to train it here, and frontrunner's own trainer cannot repeat what another has done.
    """
    if all(appearance.campaign.figures == "imported" for appearance in explanation.appearances):
        raise InvalidInput(
            f"recipe {explanation.recipe_id} is of an imported table, which does not say how to train it here",
            hint="search its problem by a campaign file, which learns from the table: frontrunner launch FILE",
        )
    for appearance in explanation.appearances:
        spec = load_json(CampaignSpec, appearance.campaign.spec_json, what=f"campaign {appearance.campaign.name}")
        if not spec.trainer:
            return
    raise InvalidInput(
        f"recipe {explanation.recipe_id} was run by another trainer, with evaluator = {spec.evaluator!r}",
        hint=f"frontrunner export {explanation.recipe_id} --to FORMAT says it in that trainer's words",
    )


def refuse_file_of_others(file: RecipeFile) -> None:
    """Raise `InvalidInput`, as `refuse_recipe_of_others` does, for a recipe file with figures of others."""
    measured = file.measured
    if measured is None or measured.is_ours:
        return
    if measured.trainer is None:
        raise InvalidInput(
            f"recipe {file.recipe_id} is of an imported table, which does not say how to train it here",
            hint="search its problem by a campaign file: frontrunner launch FILE",
        )
    raise InvalidInput(
        f"recipe {file.recipe_id} was run by another trainer, with evaluator = {measured.trainer!r}",
        hint="frontrunner export FILE --to FORMAT says it in that trainer's words",
    )


def remembered(store: Store, record: Campaign, spec: CampaignSpec) -> Gathered:
    """What the campaigns that were created before this one know that it can use.

    A campaign whose specification this version cannot read is not among them.
    """
    from frontrunner.results.provenance import collect
    from frontrunner.search.evidence import Earlier, Gathered, gather

    if not (spec.search.warm_start or spec.search.reuse or spec.confirms):
        return Gathered()
    earlier = []
    for summary in reversed(store.campaigns()):  # the oldest first
        if summary.id >= record.id:
            continue
        campaign = store.campaign(summary.name)
        try:
            its_spec = load_json(CampaignSpec, campaign.spec_json, what=f"campaign {campaign.name}")
        except InvalidInput:
            continue
        earlier.append(Earlier(campaign=campaign, spec=its_spec))
    return gather(store, spec, earlier, collect(spec.problem.cluster.device)) if earlier else Gathered()
