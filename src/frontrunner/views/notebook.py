"""Values in notebooks: what the terminal prints of them, as HTML."""

from __future__ import annotations

from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.results.explain import Explanation
from frontrunner.results.ranking import RankedRecipe, Ranking
from frontrunner.results.records import Campaign, CampaignList
from frontrunner.results.status import FailureList, Status
from frontrunner.search.driver import Conclusion
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.standings import OBJECTIVES, Front
from frontrunner.views.campaigns import print_campaign, print_campaigns, print_conclusion, print_failures, print_status
from frontrunner.views.plan import print_breakdown
from frontrunner.views.ranking import print_explanation, print_front, print_ranking
from frontrunner.views.terminal import console, recorded


def to_html(value: object) -> str:
    """Return what the terminal prints of a value as HTML; text in it is escaped."""
    with recorded() as html:
        _print(value)
        return html()


def _print(value: object) -> None:  # noqa: C901 - one case per type
    match value:
        case RankedRecipe():
            print_ranking([value], title="")
        case Ranking():
            print_ranking(value, title="")
        case Front():
            print_front(value, tuple(OBJECTIVES))
        case Explanation():
            print_explanation(value)
        case Status():
            print_status(value)
        case Campaign():
            print_campaign(value)
        case CampaignList():
            print_campaigns(value)
        case FailureList():
            print_failures(value)
        case Breakdown():
            print_breakdown(value)
        case Conclusion():
            print_conclusion(value)
        case Recipe():
            _print_recipe(value)
        case _:
            console().say(repr(value))


def _print_recipe(recipe: Recipe) -> None:
    """Print the choices that are not neutral, and what follows from them."""
    out = console()
    out.say("recipe ", (recipe.describe(), "bold"))
    for one in DIMENSIONS.values():
        if getattr(recipe, one.field) != one.neutral:
            value = recipe.layers_name if one.kind == "layers" else one.of(recipe)
            out.say(f"  {one.field:<20} {value}")
    out.say(f"  {'data_parallel':<20} {recipe.data_parallel}")
    out.say(f"  {'global_batch_seqs':<20} {recipe.global_batch_seqs}")
