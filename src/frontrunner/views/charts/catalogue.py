"""The figures by name, in the order of the report: each a chart, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from frontrunner.evaluators.insight.collected import Missing
from frontrunner.evaluators.insight.figures import Figures
from frontrunner.views.charts.chart import Chart
from frontrunner.views.charts.course import history_chart, spending_chart
from frontrunner.views.charts.feasible import feasibility_chart
from frontrunner.views.charts.landscape import parallel_chart, speed_memory_chart
from frontrunner.views.charts.model import predicted_chart, sensitivity_chart
from frontrunner.views.charts.weights import importance_chart, shap_chart


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One figure of the report."""

    name: str
    title: str
    chart: Chart | Missing


FIGURES: dict[str, tuple[str, str, Callable[[Any], Chart]]] = {
    "history": ("Best so far", "history", history_chart),
    "speed-memory": ("Speed against memory", "speed_memory", speed_memory_chart),
    "sensitivity": ("One knob at a time around the best", "sensitivity", sensitivity_chart),
    "parallel-coordinates": ("Parallel coordinates", "parallel", parallel_chart),
    "feasibility": ("What fits and what fails", "feasibility", feasibility_chart),
    "predicted": ("Predicted against measured", "predicted", predicted_chart),
    "importance": ("Which knobs matter", "importance", importance_chart),
    "shap": ("What each knob's value adds (SHAP)", "shap_values", shap_chart),
    "node-hours": ("Where the node-hours went", "spending", spending_chart),
}
"""Figure name -> title, the field of `Figures` that it is drawn from, and what makes a chart of it."""


def drawn(figures: Figures, only: str | None = None) -> list[Drawn]:
    """Every figure of a campaign, or the named one alone."""
    found = []
    for name, (title, field, make) in FIGURES.items():
        if only not in (None, name):
            continue
        values = getattr(figures, field)
        found.append(Drawn(name=name, title=title, chart=values if isinstance(values, Missing) else make(values)))
    return found
