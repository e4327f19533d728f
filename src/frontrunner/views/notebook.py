"""Values in notebooks: most are shown as the terminal prints them. Importing it registers all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from frontrunner.evaluators.analytic.advice import Advice
from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.evaluators.analytic.estimates import Plan, ShownPlan
from frontrunner.evaluators.analytic.scaling import Scaling
from frontrunner.evaluators.analytic.timeline import StepTimeline
from frontrunner.evaluators.analytic.variations import MeasuredScaling, Sweep
from frontrunner.evaluators.programs.log_sample import LogSample
from frontrunner.fronts import Front
from frontrunner.planning import ClusterRanking
from frontrunner.results.check import Check
from frontrunner.results.pages import Page
from frontrunner.results.pruning import Deleted
from frontrunner.results.ranking import RankedRecipe, Ranking
from frontrunner.results.records import Campaign, CampaignList, Labels
from frontrunner.results.status import Explanation, FailureList, Status
from frontrunner.running_trials import Running
from frontrunner.search.driver import Conclusion
from frontrunner.spaces.display import Displayed, register_html
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey
from frontrunner.views import around, plan, results
from frontrunner.views.log_sample import print_log_sample
from frontrunner.views.terminal import print_fields, recorded
from frontrunner.views.timeline import print_timeline

PRINTERS: dict[type, Callable[[Any], None]] = {
    Advice: plan.print_advice,
    Breakdown: plan.print_breakdown,
    Campaign: results.print_campaign,
    CampaignList: results.print_campaigns,
    Check: results.print_check,
    ClusterRanking: plan.print_clusters,
    Conclusion: results.print_conclusion,
    Deleted: results.print_deleted,
    Displayed: print_fields,
    Explanation: results.print_explanation,
    FailureList: results.print_failures,
    Front: results.print_front,
    Labels: results.print_labels,
    LogSample: print_log_sample,
    MeasuredScaling: around.print_measured_scaling,
    Plan: plan.print_plan,
    RankedRecipe: results.print_ranking,
    Ranking: results.print_ranking,
    Recipe: results.print_recipe,
    Running: results.print_running,
    Scaling: plan.print_scaling,
    ShownPlan: plan.print_plan,
    Status: results.print_status,
    StepTimeline: print_timeline,
    Survey: results.print_survey,
    Sweep: around.print_sweep,
}
"""The function that prints a value, by its class. `Displayed` stands for every other class."""

MOST_SHOWN = 20
"""Rows and columns of a page's table."""


def printed_html(print_value: Callable[[Any], None], value: Any) -> str:
    """Return what `print_value` prints of a value, as HTML."""
    with recorded() as html:
        print_value(value)
        return html()


def page_html(page: Page[Any]) -> str:
    """Return a page of items as a table, with the number of all items below it."""
    table = page.to_frame().to_html(max_rows=MOST_SHOWN, max_cols=MOST_SHOWN)
    return f"{table}<p>{len(page.items):,} of {page.total:,}</p>"


for kind, print_kind in PRINTERS.items():
    register_html(kind, partial(printed_html, print_kind))
register_html(Page, page_html)
