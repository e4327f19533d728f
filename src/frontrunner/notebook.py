"""Display of values in notebooks."""

from __future__ import annotations

from importlib import import_module

PRINTERS = {
    "Advice": "plan.print_advice",
    "Breakdown": "plan.print_breakdown",
    "Campaign": "results.print_campaign",
    "CampaignList": "results.print_campaigns",
    "Conclusion": "results.print_conclusion",
    "Explanation": "results.print_explanation",
    "FailureList": "results.print_failures",
    "Front": "results.print_front",
    "MeasuredScaling": "around.print_measured_scaling",
    "Plan": "plan.print_plan",
    "RankedRecipe": "results.print_ranking",
    "Ranking": "results.print_ranking",
    "Recipe": "results.print_recipe",
    "Status": "results.print_status",
    "Sweep": "around.print_sweep",
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
