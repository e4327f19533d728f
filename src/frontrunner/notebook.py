"""Display of values in notebooks."""

from __future__ import annotations

from importlib import import_module

PRINTERS = {
    "Breakdown": "plan.print_breakdown",
    "Campaign": "campaigns.print_campaign",
    "CampaignList": "campaigns.print_campaigns",
    "Conclusion": "campaigns.print_conclusion",
    "Explanation": "ranking.print_explanation",
    "FailureList": "campaigns.print_failures",
    "Front": "ranking.print_front",
    "RankedRecipe": "ranking.print_ranking",
    "Ranking": "ranking.print_ranking",
    "Recipe": "ranking.print_recipe",
    "Status": "campaigns.print_status",
}
"""The function of `frontrunner.views` that prints a value, by its class."""


class Displayed:
    """A value that a notebook displays as the terminal prints it."""

    def _repr_html_(self) -> str:
        from frontrunner.views.terminal import recorded  # the views import the modules of all values

        module, function = PRINTERS[type(self).__name__].split(".")
        with recorded() as html:
            getattr(import_module(f"frontrunner.views.{module}"), function)(self)
            return html()
