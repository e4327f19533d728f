"""All figures of one campaign, from one reading of the store."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.evaluators.insight.collected import Collected, Missing, collect
from frontrunner.evaluators.insight.history import History, Spent, history, spending
from frontrunner.evaluators.insight.importance import Importance, ShapValues, importance, shap_values
from frontrunner.evaluators.insight.landscape import (
    Feasibility,
    Parallel,
    SpeedMemory,
    feasibility,
    parallel,
    speed_memory,
)
from frontrunner.evaluators.insight.predicted import Predicted, predicted
from frontrunner.evaluators.insight.sensitivity import Sensitivity, sensitivity
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.spaces.space import Survey


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is drawn of one campaign, or why a figure is not."""

    collected: Collected
    history: History | Missing
    speed_memory: SpeedMemory | Missing
    parallel: Parallel | Missing
    feasibility: Feasibility | Missing
    predicted: Predicted | Missing
    importance: Importance | Missing
    shap_values: ShapValues | Missing
    sensitivity: Sensitivity | Missing
    spending: tuple[Spent, ...] | Missing


def figures(store: Store, campaign: Campaign, survey: Survey) -> Figures:
    """Compute every figure; `survey` is that of the campaign's own space and problem."""
    found = collect(store, campaign, survey)
    return Figures(
        collected=found,
        history=history(found),
        speed_memory=speed_memory(found),
        parallel=parallel(found),
        feasibility=feasibility(found),
        predicted=predicted(found),
        importance=importance(found),
        shap_values=shap_values(found),
        sensitivity=sensitivity(found),
        spending=spending(found),
    )
