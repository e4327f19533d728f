"""Charts of a campaign's course: the best so far, where the node-hours went, and when each probe ran."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from frontrunner.results.outcome import Measurement
from frontrunner.text import counted, node_time, node_unit, percent, seconds, thousands
from frontrunner.views.charts import marks as vl
from frontrunner.views.charts.marks import Chart, Collected, Json, Missing, table

LONGEST_PAUSE_S = 20.0
"""A longer stretch without a probe is cut out of the timeline."""


def history(collected: Collected) -> Chart | Missing:
    """Draw the tokens/s of every probe and the best so far, over probes and over the time of nodes."""
    if not collected.attempts:
        return vl.NOTHING_ENDED
    unit, size_s = node_unit(math.fsum(ended.outcome.node_seconds for ended in collected.attempts))
    rows = _history_rows(collected, size_s)
    final, reading = rows[-1]["best"], "No probe has measured a recipe yet."
    if final is not None:
        found = max((row["probe"] for row in rows if row["best"] != final), default=0)
        reading = (
            f"The best recipe, {thousands(final)} tokens/s, was found by probe {found + 1} of {len(rows)}, after "
            f"{thousands(rows[found]['spent'])} of {thousands(rows[-1]['spent'])} {unit}."
        )
    hints = vl.tooltip("probe", "recipe", "choices", "outcome", numbers={"tokens_per_s": "tokens/s"})
    marks = vl.looks("outcome", vl.OUTCOMES, (row["outcome"] for row in rows), "color", "shape")
    best = {"y": vl.number("best", "tokens/s")}
    layers = [
        vl.layer("line", best, where="isValid(datum.best)", interpolate="step-after", color=vl.ORANGE, strokeWidth=2.5),
        vl.layer("point", {"y": vl.number("drawn", "tokens/s"), "tooltip": hints} | marks, filled=True, size=55),
    ]
    axes = (vl.number("probe", "probe"), vl.number("spent", f"{unit} spent"))
    return Chart(
        reading=f"{reading} The line is the best so far, with repeats of a recipe pooled; failed probes are drawn at "
        "zero.",
        spec={
            "data": {"values": rows},
            "transform": [{"calculate": "isValid(datum.tokens_per_s) ? datum.tokens_per_s : 0", "as": "drawn"}],
            "hconcat": [{"layer": layers, "encoding": {"x": axis}} for axis in axes],
            "usermeta": {"least": 420, "margin": 85},
        },
        table=table(
            rows,
            *((key, key) for key in ("probe", "recipe", "outcome")),
            *(("tokens/s", "tokens_per_s"), ("best so far", "best")),
            (f"{unit} spent", lambda row: f"{row['spent']:.4g}"),
        ),
    )


def _history_rows(collected: Collected, size_s: float) -> list[Json]:
    """Return one row per attempt; `best` is the pooled tokens/s of the recipe that led after it."""
    measured: dict[str, list[float]] = defaultdict(list)
    standing: dict[str, float] = {}
    rows, spent_s = [], 0.0
    for probe, ended in enumerate(collected.attempts, start=1):
        recipe_id, outcome, tokens_per_s = ended.trial.recipe_id, ended.outcome, None
        spent_s += outcome.node_seconds
        if isinstance(outcome, Measurement):
            tokens_per_s = outcome.tokens_per_s
            measured[recipe_id].append(tokens_per_s)
            standing[recipe_id] = statistics.median(measured[recipe_id])
        elif outcome.policy.counts_against_recipe:
            standing.pop(recipe_id, None)
        row = {"probe": probe, "spent": spent_s / size_s, "outcome": vl.outcome_name(outcome)}
        row |= {"tokens_per_s": tokens_per_s, "best": max(standing.values(), default=None)}
        rows.append(row | {"recipe": recipe_id, "choices": ended.trial.recipe.describe()})
    return rows


def node_hours(collected: Collected) -> Chart | Missing:
    """Draw the time of nodes by outcome: measurements first, then failures, the costliest first."""
    if not collected.attempts:
        return vl.NOTHING_ENDED
    spent: dict[str, list[float]] = defaultdict(list)
    for ended in collected.attempts:
        spent[vl.outcome_name(ended.outcome)].append(ended.outcome.node_seconds)
    total_s = math.fsum(map(math.fsum, spent.values()))
    unit, size_s = node_unit(total_s)
    rows: list[Json] = [
        {
            "outcome": outcome,
            "attempts": len(times),
            "spent": sum(times) / size_s,
            "share": sum(times) / total_s if total_s else 0.0,
            "words": f"{node_time(sum(times))}, {counted(len(times), 'probe')}",
        }
        for outcome, times in sorted(spent.items(), key=lambda item: (item[0] != vl.MEASURED, -sum(item[1])))
    ]
    hints = vl.tooltip("outcome", "attempts", words="spent")
    wasted = percent((total_s - sum(spent[vl.MEASURED])) / total_s) if total_s else "none"
    colors = vl.outcome_colors(row["outcome"] for row in rows) | {"legend": None}
    room = {"x": {"datum": 1.25 * max(row["spent"] for row in rows)}}  # for the text
    place = {"y": vl.name("outcome", axis={"grid": False, "labelFontSize": 13}), "x": vl.number("spent", unit)}
    return Chart(
        reading=f"{node_time(total_s)} went to {len(collected.attempts)} attempts; {wasted} of them to attempts that "
        "failed.",
        spec={
            "data": {"values": rows},
            "height": 42 * len(rows),
            "encoding": place,
            "layer": [
                vl.layer("bar", {"color": colors, "tooltip": hints}, height=26),
                vl.layer("text", {"text": {"field": "words"}}, align="left", dx=6),
                vl.layer("rule", room, opacity=0),
            ],
        },
        table=table(
            rows,
            *(("outcome", "outcome"), ("attempts", "attempts"), (unit, lambda row: f"{row['spent']:.4g}")),
            ("share", lambda row: percent(row["share"])),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Span:
    """One attempt: when it ran and how it ended (a failure's kind, `measured` or `running`)."""

    started_at: datetime
    ended_at: datetime
    outcome: str
    words: str
    recipe_id: str


def timeline(spans: Sequence[Span]) -> Json | None:
    """Specify when each probe ran, in lanes, with pauses cut out; None without a span."""
    rows: list[Json] = []
    cuts: list[float] = []
    lanes: list[datetime] = []
    paused_s = 0.0
    ordered = sorted(spans, key=lambda span: (span.started_at, span.ended_at))
    for span in ordered:
        begin_s = (span.started_at - ordered[0].started_at).total_seconds() - paused_s
        pause_s = (span.started_at - max(lanes, default=span.started_at)).total_seconds()
        if pause_s > LONGEST_PAUSE_S:
            begin_s, paused_s = begin_s - pause_s, paused_s + pause_s
            cuts.append(begin_s)
        lane = next((place for place, ends_at in enumerate(lanes) if ends_at <= span.started_at), len(lanes))
        lanes[lane : lane + 1] = [span.ended_at]
        took_s = (span.ended_at - span.started_at).total_seconds()
        words = {"recipe": span.recipe_id, "outcome": span.outcome, "words": span.words, "took": seconds(took_s)}
        rows.append(words | {"lane": lane, "begin": begin_s, "end": begin_s + took_s})
    if not rows:
        return None
    total_s = max(row["end"] for row in rows)
    unit, size_s = ("s", 1) if total_s < 300 else ("min", 60) if total_s < 18_000 else ("h", 3600)
    for row in rows:
        row |= {"begin": row["begin"] / size_s, "end": row["end"] / size_s}
    x = vl.number("begin", f"time with probes, {unit}", scale={"zero": True, "nice": False})
    bars = {
        "x": x,
        "x2": {"field": "end"},
        "y": {"field": "lane", "type": "ordinal", "axis": None},
        "color": vl.outcome_colors(row["outcome"] for row in rows),
        "tooltip": vl.tooltip("recipe", "outcome", words="probe", took="ran"),
    }
    pauses = [{"begin": at_s / size_s, "words": "time without probes is cut out here"} for at_s in cuts]
    cut = {"x": x, "tooltip": {"field": "words"}}
    return {
        "height": 22 * (1 + max(row["lane"] for row in rows)),
        "layer": [
            vl.layer("bar", bars, rows=rows, height=18, cornerRadius=2),
            vl.layer("rule", cut, rows=pauses, strokeDash=[3, 3], color=vl.GRAY, strokeWidth=1.5),
        ],
    }
