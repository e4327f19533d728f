"""Charts of a campaign's course: the best so far, where the node-hours went, and when each probe ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from frontrunner.results.outcome import FailureKind, Measurement
from frontrunner.text import node_time, node_unit, percent, seconds, thousands
from frontrunner.views.charts.data import NOTHING_ENDED, Chart, Collected, Json, Missing, table
from frontrunner.views.charts.marks import (
    GRAY,
    MEASURED,
    ORANGE,
    OUTCOMES,
    layer,
    name,
    number,
    outcome_marks,
    outcome_name,
    palette,
    tooltip,
    values,
)

LONGEST_PAUSE_S = 20.0
"""A longer stretch without a probe is cut out of the timeline."""


def history(collected: Collected) -> Chart | Missing:
    """Draw the tokens/s of every probe and the best so far, over probes and over the time of nodes."""
    if not collected.attempts:
        return NOTHING_ENDED
    total_s = math.fsum(ended.outcome.node_seconds for ended in collected.attempts)
    unit, size_s = node_unit(total_s)
    rows = _history_rows(collected, size_s)
    hints = tooltip("probe", "recipe", "choices", "outcome", numbers={"tokens_per_s": "tokens/s"})
    probes = {"y": number("drawn", "tokens/s"), "tooltip": hints} | outcome_marks(row["outcome"] for row in rows)
    best = {"y": number("best", "tokens/s")}
    layers = [
        layer("line", best, where="isValid(datum.best)", interpolate="step-after", color=ORANGE, strokeWidth=2.5),
        layer("point", probes, filled=True, size=55),
    ]
    axes = (number("probe", "probe"), number("spent", f"{unit} spent"))
    return Chart(
        reading=_reading(rows, unit) + " The line is the best so far, with repeats of a recipe pooled; failed probes "
        "are drawn at zero.",
        spec={
            "data": values(rows),
            "transform": [{"calculate": "isValid(datum.tokens_per_s) ? datum.tokens_per_s : 0", "as": "drawn"}],
            "hconcat": [{"layer": layers, "encoding": {"x": axis}} for axis in axes],
            "usermeta": {"least": 420, "margin": 85},
        },
        table=table(
            rows,
            *((key, key) for key in ("probe", "recipe", "outcome")),
            ("tokens/s", "tokens_per_s"),
            ("best so far", "best"),
            (f"{unit} spent", lambda row: f"{row['spent']:.4g}"),
        ),
    )


def _history_rows(collected: Collected, size_s: float) -> list[Json]:
    """Return one row per attempt; `best` is the pooled tokens/s of the recipe that led after it."""
    measured: dict[str, list[float]] = {}
    standing: dict[str, float] = {}
    leader: str | None = None
    rows, spent_s = [], 0.0
    for probe, ended in enumerate(collected.attempts, start=1):
        recipe_id, outcome = ended.trial.recipe_id, ended.outcome
        spent_s += outcome.node_seconds
        tokens_per_s = None
        if isinstance(outcome, Measurement):
            tokens_per_s = outcome.tokens_per_s
            measured.setdefault(recipe_id, []).append(tokens_per_s)
            standing[recipe_id] = statistics.median(measured[recipe_id])
        elif outcome.policy.counts_against_recipe:
            standing.pop(recipe_id, None)
        leader = _leader(standing, leader, recipe_id)
        rows.append(
            {
                "probe": probe,
                "spent": spent_s / size_s,
                "outcome": outcome_name(outcome),
                "tokens_per_s": tokens_per_s,
                "best": None if leader is None else standing[leader],
                "recipe": recipe_id,
                "choices": ended.trial.recipe.describe(),
            }
        )
    return rows


def _leader(standing: Mapping[str, float], leader: str | None, changed: str) -> str | None:
    """Return the recipe that leads after `changed` changed; compare all recipes only if the leader itself changed."""
    if leader is None or leader == changed:
        return max(standing, key=standing.__getitem__, default=None)
    return changed if changed in standing and standing[changed] > standing[leader] else leader


def _reading(rows: Sequence[Json], unit: str) -> str:
    """State when the best recipe was found: at the probe since which the best has not changed."""
    final = rows[-1]["best"]
    if final is None:
        return "No probe has measured a recipe yet."
    found = max((row["probe"] for row in rows if row["best"] != final), default=0)
    return (
        f"The best recipe, {thousands(final)} tokens/s, was found by probe {found + 1} of {len(rows)}, after "
        f"{thousands(rows[found]['spent'])} of {thousands(rows[-1]['spent'])} {unit}."
    )


def node_hours(collected: Collected) -> Chart | Missing:
    """Draw the time of nodes by outcome: measurements first, then failures, the costliest first."""
    if not collected.attempts:
        return NOTHING_ENDED
    costs: dict[str, list[float]] = {outcome: [] for outcome in (MEASURED, *(kind.value for kind in FailureKind))}
    for ended in collected.attempts:
        costs[outcome_name(ended.outcome)].append(ended.outcome.node_seconds)
    total_s = math.fsum(cost for spent in costs.values() for cost in spent)
    unit, size_s = node_unit(total_s)
    spent = {outcome: math.fsum(cost) for outcome, cost in costs.items() if cost}
    order = sorted(spent, key=lambda outcome: (outcome != MEASURED, -spent[outcome]))
    rows: list[Json] = [
        {
            "outcome": outcome,
            "attempts": len(costs[outcome]),
            "spent": spent[outcome] / size_s,
            "share": spent[outcome] / total_s if total_s else 0.0,
            "words": f"{node_time(spent[outcome])}, {_count(len(costs[outcome]), 'probe')}",
        }
        for outcome in order
    ]
    colors = palette("outcome", _colors(), order) | {"legend": None}
    hints = tooltip("outcome", "attempts", words="spent")
    wasted = percent((total_s - spent.get(MEASURED, 0.0)) / total_s) if total_s else "none"
    return Chart(
        reading=f"{node_time(total_s)} went to {len(collected.attempts)} attempts; {wasted} of them to attempts that "
        "failed.",
        spec={
            "data": values(rows),
            "height": 42 * len(rows),
            "encoding": {"y": name("outcome", axis={"grid": False, "labelFontSize": 13}), "x": number("spent", unit)},
            "layer": [
                layer("bar", {"color": colors, "tooltip": hints}, height=26),
                layer("text", {"text": {"field": "words"}}, align="left", dx=6),
                layer("rule", {"x": {"datum": 1.25 * max(row["spent"] for row in rows)}}, opacity=0),  # room for text
            ],
        },
        table=table(
            rows,
            ("outcome", "outcome"),
            ("attempts", "attempts"),
            (unit, lambda row: f"{row['spent']:.4g}"),
            ("share", lambda row: percent(row["share"])),
        ),
    )


def _count(number_of: int, what: str) -> str:
    return f"{number_of} {what}{'s' if number_of != 1 else ''}"


def _colors() -> dict[str, str]:
    return {outcome: color for outcome, (color, _) in OUTCOMES.items()}


@dataclass(frozen=True, kw_only=True)
class Span:
    """One attempt: when it ran and how it ended (a failure's kind, `measured` or `running`)."""

    started_at: datetime
    ended_at: datetime
    outcome: str
    words: str
    recipe_id: str


def timeline(spans: Sequence[Span]) -> Json | None:
    """Specify a chart of when each probe ran, with probes that overlap in separate lanes; None without a span.

    Long stretches in which nothing ran are cut out, and marked.
    """
    ordered = sorted(spans, key=lambda span: (span.started_at, span.ended_at))
    if not ordered:
        return None
    rows, cuts = _timeline_rows(ordered)
    total_s = max(row["end_s"] for row in rows)
    unit, size_s = ("s", 1) if total_s < 300 else ("min", 60) if total_s < 18_000 else ("h", 3600)
    for row in rows:
        row |= {"begin": row["begin_s"] / size_s, "end": row["end_s"] / size_s}
    x = number("begin", f"time with probes, {unit}", scale={"zero": True, "nice": False})
    bars = {
        "x": x,
        "x2": {"field": "end"},
        "y": {"field": "lane", "type": "ordinal", "axis": None},
        "color": palette("outcome", _colors(), (row["outcome"] for row in rows)),
        "tooltip": tooltip("recipe", "outcome", words="probe", took="ran"),
    }
    cut = {"x": x, "tooltip": {"field": "words"}}
    pauses = [{"begin": at_s / size_s, "words": "time without probes is cut out here"} for at_s in cuts]
    return {
        "height": 22 * (1 + max(row["lane"] for row in rows)),
        "layer": [
            layer("bar", bars, rows=rows, height=18, cornerRadius=2),
            layer("rule", cut, rows=pauses, strokeDash=[3, 3], color=GRAY, strokeWidth=1.5),
        ],
    }


def _timeline_rows(spans: Sequence[Span]) -> tuple[list[Json], list[float]]:
    """Return one row per span, in seconds since the first one began without long pauses, and where those were."""
    rows: list[Json] = []
    cuts: list[float] = []
    lanes: list[datetime] = []
    paused_s, last = 0.0, spans[0].started_at
    for span in spans:
        pause_s = (span.started_at - last).total_seconds()
        if pause_s > LONGEST_PAUSE_S:
            cuts.append((last - spans[0].started_at).total_seconds() - paused_s)
            paused_s += pause_s
        last = max(last, span.ended_at)
        lane = next((place for place, ends_at in enumerate(lanes) if ends_at <= span.started_at), len(lanes))
        lanes[lane : lane + 1] = [span.ended_at]
        begin_s = (span.started_at - spans[0].started_at).total_seconds() - paused_s
        took_s = (span.ended_at - span.started_at).total_seconds()
        rows.append(
            {
                "recipe": span.recipe_id,
                "outcome": span.outcome,
                "words": span.words,
                "took": seconds(took_s),
                "lane": lane,
                "begin_s": begin_s,
                "end_s": begin_s + took_s,
            }
        )
    return rows, cuts
