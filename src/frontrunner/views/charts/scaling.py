"""Chart of the best recipe of a space over numbers of nodes."""

from __future__ import annotations

from frontrunner.evaluators.analytic.scaling import Scaling
from frontrunner.text import percent, thousands
from frontrunner.views.charts import marks as vl
from frontrunner.views.charts.marks import Json

LEAST_ROWS = 2


def scaling_curve(found: Scaling) -> Json | None:
    """Specify tokens/s over nodes with their 95 % interval, beside a line of equal tokens/s per
    node; None for a point.

    None, too, without times. That line goes through the fewest nodes on which a recipe fits.
    """
    fitting = [
        (row, row.best, row.best.tokens_per_s)
        for row in found.strong
        if row.best is not None and row.best.tokens_per_s is not None
    ]
    if len(fitting) < LEAST_ROWS:
        return None
    first, _, first_rate = fitting[0]
    per_node = first_rate / first.nodes
    rows: list[Json] = []
    for row, best, tokens_per_s in fitting:
        low, high = best.tokens_per_s_bounds or (None, None)
        rows.append(
            {
                "nodes": row.nodes,
                "rate": tokens_per_s,
                "low": low,
                "high": high,
                "even": per_node * row.nodes,
                "words": f"{thousands(tokens_per_s)} tokens/s",
                "efficiency": "-" if row.efficiency is None else percent(row.efficiency, 0),
                "recipe": best.recipe.describe(),
            }
        )
    log: Json = {"scale": {"type": "log", "base": 2, "nice": False}}
    nodes: Json = (
        vl.number("nodes", "nodes") | log | {"axis": {"values": [row["nodes"] for row in rows]}}
    )
    scale: Json = {"scale": {"type": "log", "nice": True}}
    hints = vl.tooltip(
        "nodes", "recipe", words="estimate", efficiency="tokens/s per device, of the first"
    )
    bounds = {"x": nodes, "y": vl.number("low", "tokens/s") | scale, "y2": {"field": "high"}}
    rate = {"x": nodes, "y": vl.number("rate", "tokens/s") | scale}
    even = {"x": nodes, "y": vl.number("even", "tokens/s") | scale}
    return {
        "data": {"values": rows},
        "height": 260,
        "layer": [
            vl.layer("line", even, color=vl.GRAY, strokeDash=[5, 4], strokeWidth=1.5),
            vl.layer("rule", bounds, where="isValid(datum.low)", color=vl.GRAY, strokeWidth=2),
            vl.layer("line", rate, color=vl.BLUE, strokeWidth=2.5),
            vl.layer(
                "point", rate | {"tooltip": hints}, color=vl.BLUE, filled=True, opacity=1, size=70
            ),
        ],
    }
