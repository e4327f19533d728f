"""Charts: each a function that returns one Vega-Lite specification, drawn in pages and as files
from that alone.
"""

from __future__ import annotations

from collections.abc import Callable

from frontrunner.views.charts.campaign import (
    feasibility,
    history,
    node_hours,
    parallel_coordinates,
    speed_memory,
)
from frontrunner.views.charts.knobs import predicted, scaling, sensitivity, shap
from frontrunner.views.charts.marks import Chart, Collected, Missing

FIGURES: dict[str, tuple[str, Callable[[Collected], Chart | Missing]]] = {
    "history": ("Best so far", history),
    "speed-memory": ("Speed against memory", speed_memory),
    "sensitivity": ("One knob at a time", sensitivity),
    "scaling": ("Scaling over nodes", scaling),
    "parallel-coordinates": ("Parallel coordinates", parallel_coordinates),
    "feasibility": ("What fits and what fails", feasibility),
    "predicted": ("Predicted against measured", predicted),
    "shap": ("What each knob's value adds (SHAP)", shap),
    "node-hours": ("Where the node-hours went", node_hours),
}
