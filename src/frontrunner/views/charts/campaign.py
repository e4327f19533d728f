"""Charts of a campaign: its course, its measured recipes, and which corners of the space fail."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

import numpy as np

from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.results.arrays import KINDS, Attempts, Mask, Numbers, Rows
from frontrunner.results.courses import Course
from frontrunner.results.outcome import POLICIES, Failure
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import AttemptOutcome
from frontrunner.spaces.columns import Codes
from frontrunner.text import counted, gib, node_time, node_unit, percent, seconds, thousands
from frontrunner.views.charts import marks as vl
from frontrunner.views.charts.marks import (
    MOST_LINES,
    Chart,
    Collected,
    Json,
    Knob,
    Missing,
    Table,
    knobs,
    shown,
    table,
)
from frontrunner.views.columns import COLUMNS, used

LONGEST_PAUSE_S = 20.0
SIDES = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#a3a500")
"""Colors of as many campaigns as are compared at most."""


def history(collected: Collected) -> Chart | Missing:
    """Draw the tokens/s of every probe, or what the campaign seeks, and the best so far, over
    probes and node-hours.
    """
    if nothing := collected.nothing_ran:
        return nothing
    unit, size_s = node_unit(math.fsum(collected.attempts.node_seconds))
    rate, attempts, found = collected.unit, collected.attempts, collected.attempt_rates
    best, spent = _pooled_bests(attempts, found), np.cumsum(attempts.node_seconds) / size_s
    final, reading = best[-1], "No probe has measured a recipe yet."
    if not math.isnan(final):
        last = int(
            np.flatnonzero(np.append(math.nan, best) != final)[-1]
        )  # how many came before it led for good
        reading = (
            f"The best recipe, {thousands(final)} {rate}, was found by probe {last + 1} of"
            f" {len(best)}, after {thousands(float(spent[last]))} of {thousands(float(spent[-1]))}"
            f" {unit}."
        )
    if collected.reused:
        reading += (
            f" Reused from earlier campaigns, not run here: {counted(collected.reused, 'outcome')}."
        )
    before = np.append(math.nan, best[:-1])
    turns = np.flatnonzero((best != before) & ~(np.isnan(best) & np.isnan(before)))
    places = sorted({*vl.evenly(range(len(best))), *turns.tolist(), len(best) - 1})
    rows: list[Json] = [
        {
            "probe": place + 1,
            "spent": float(spent[place]),
            "outcome": attempts[place].outcome,
            "recipe": attempts[place].recipe_id,
            "tokens_per_s": None if math.isnan(found[place]) else float(found[place]),
            "best": None if math.isnan(best[place]) else float(best[place]),
            "choices": attempts[place].recipe.describe(),
        }
        for place in places
    ]
    hints = vl.tooltip("probe", "recipe", "choices", "outcome", numbers={"tokens_per_s": rate})
    marks = vl.looks("outcome", vl.OUTCOMES, (row["outcome"] for row in rows), "color", "shape")
    line = {"y": vl.number("best", rate)}
    layers = [
        vl.layer(
            "line",
            line,
            where="isValid(datum.best)",
            interpolate="step-after",
            color=vl.ORANGE,
            strokeWidth=2.5,
        ),
        vl.layer(
            "point", {"y": vl.number("drawn", rate), "tooltip": hints} | marks, filled=True, size=55
        ),
    ]
    axes = (vl.number("probe", "probe"), vl.number("spent", f"{unit} spent"))
    return Chart(
        reading=(
            f"{reading} The line is the best so far, with repeats of a recipe pooled; failed probes"
            " are drawn at zero."
        ),
        remarks=vl.selected(
            len(rows),
            len(best),
            "probes are drawn: an even selection, and each step of the best so far",
        ),
        spec={
            "data": {"values": rows},
            "transform": [
                {"calculate": "isValid(datum.tokens_per_s) ? datum.tokens_per_s : 0", "as": "drawn"}
            ],
            "hconcat": [
                vl.zoomed(axis["field"], {"layer": layers, "encoding": {"x": axis}})
                for axis in axes
            ],
            "usermeta": {"least": 420, "margin": 85},
        },
        table=table(
            rows,
            *((key, key) for key in ("probe", "recipe", "outcome")),
            *((rate, "tokens_per_s"), ("best so far", "best")),
            (f"{unit} spent", lambda row: f"{row['spent']:.4g}"),
        ),
    )


def _pooled_bests(attempts: Attempts, rates: Numbers) -> Numbers:
    """Return, after each attempt, the pooled rate of the recipe that led, nan where none did."""
    measured: dict[int, list[float]] = defaultdict(list)
    standing: dict[int, float] = {}
    led: list[tuple[float, int]] = []  # a heap of what stood once, the fastest on top
    bests = np.empty(len(attempts))
    against = [POLICIES[kind].counts_against_recipe for kind in KINDS]
    columns = zip(attempts.rows.tolist(), attempts.kinds.tolist(), rates.tolist(), strict=True)
    for place, (row, kind, rate) in enumerate(columns):
        if kind < 0:
            times = measured[row]
            insort(times, rate)
            standing[row] = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
            heappush(led, (-standing[row], row))
        elif against[kind]:
            standing.pop(row, None)
        while led and standing.get(led[0][1]) != -led[0][0]:
            heappop(led)
        bests[place] = -led[0][0] if led else math.nan
    return bests


def courses(found: Mapping[str, tuple[Course, int]]) -> Json | None:
    """Specify the best so far of campaigns over their outcomes, of which each has so many; None
    without any.
    """
    rows: list[Json] = [
        {"campaign": named, "outcome": place, "best": rate}
        for named, (course, outcomes) in found.items()
        if course.best
        for place, rate in (*course.best, (outcomes, course.best[-1][1]))
    ]
    if not rows:
        return None
    hints = vl.tooltip("campaign", "outcome", numbers={"best": "tokens/s"})
    place = {"x": vl.number("outcome", "outcomes"), "y": vl.number("best", "best so far, tokens/s")}
    colors = dict(zip(found, SIDES, strict=False))
    encoding = place | {"color": vl.palette("campaign", colors, (row["campaign"] for row in rows))}
    layers = [
        vl.layer("line", encoding, interpolate="step-after", strokeWidth=2.5),
        vl.layer("point", encoding | {"tooltip": hints}, filled=True, size=45),
    ]
    return vl.zoomed("courses", {"data": {"values": rows}, "height": 300, "layer": layers})


def node_hours(collected: Collected) -> Chart | Missing:
    """Draw the time of nodes by outcome: measurements first, then failures, the costliest first."""
    if nothing := collected.nothing_ran:
        return nothing
    attempts = collected.attempts
    outcomes = [vl.MEASURED, *(kind.value for kind in KINDS)]
    spent: dict[str, list[float]] = {
        outcomes[kind + 1]: attempts.node_seconds[attempts.kinds == kind].tolist()
        for kind in dict.fromkeys(attempts.kinds.tolist())
    }
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
        for outcome, times in sorted(
            spent.items(), key=lambda item: (item[0] != vl.MEASURED, -sum(item[1]))
        )
    ]
    hints = vl.tooltip("outcome", "attempts", words="spent")
    wasted = percent((total_s - sum(spent.get(vl.MEASURED, ()))) / total_s) if total_s else "none"
    colors = vl.outcome_colors(row["outcome"] for row in rows) | {"legend": None}
    room = {"x": {"datum": 1.25 * max(row["spent"] for row in rows)}}  # for the text
    place = {
        "y": vl.name("outcome", axis={"grid": False, "labelFontSize": 13}),
        "x": vl.number("spent", unit),
    }
    return Chart(
        reading=(
            f"{node_time(total_s)} went to {len(collected.attempts)} attempts; {wasted} of them to"
            " attempts that failed."
        ),
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
            *(
                ("outcome", "outcome"),
                ("attempts", "attempts"),
                (unit, lambda row: f"{row['spent']:.4g}"),
            ),
            ("share", lambda row: percent(row["share"])),
        ),
    )


def timeline(attempts: Sequence[AttemptOutcome], now: datetime | None) -> Json | None:
    """Specify when each probe ran, in lanes, with pauses cut out; running ones reach up to `now`.
    None for no probe.
    """
    rows: list[Json] = []
    cuts: list[float] = []
    lanes: list[datetime] = []
    paused_s, spans = 0.0, []
    for one in attempts:
        begun, finished_at = datetime.fromisoformat(one.attempt.started_at), one.attempt.finished_at
        spans.append(
            (
                begun,
                datetime.fromisoformat(finished_at) if finished_at else max(begun, now or begun),
                one,
            )
        )
    spans.sort(key=itemgetter(0, 1))
    for begun, ended, one in spans:
        begin_s = (begun - spans[0][0]).total_seconds() - paused_s
        pause_s = (begun - max(lanes, default=begun)).total_seconds()
        if pause_s > LONGEST_PAUSE_S:
            begin_s, paused_s = begin_s - pause_s, paused_s + pause_s
            cuts.append(begin_s)
        lane = next((place for place, ends_at in enumerate(lanes) if ends_at <= begun), len(lanes))
        lanes[lane : lane + 1] = [ended]
        took_s, trial = (ended - begun).total_seconds(), one.trial
        outcome = one.outcome.kind if isinstance(one.outcome, Failure) else one.attempt.state
        words = {"recipe": trial.recipe_id, "outcome": outcome.value, "took": seconds(took_s)}
        words["words"] = f"{trial.number}.{one.attempt.number} {trial.recipe.describe()}"
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
    pauses = [
        {"begin": at_s / size_s, "words": "time without probes is cut out here"} for at_s in cuts
    ]
    cut = {"x": x, "tooltip": {"field": "words"}}
    return {
        "height": 22 * (1 + max(row["lane"] for row in rows)),
        "layer": [
            vl.layer("bar", bars, rows=rows, height=18, cornerRadius=2),
            vl.layer("rule", cut, rows=pauses, strokeDash=[3, 3], color=vl.GRAY, strokeWidth=1.5),
        ],
    }


FAR = 2.0
"""A memory limit beyond this multiple of the fullest recipe's peak is a remark: drawn, it would
squeeze the points.
"""
APART = 0.06
MOST_CELLS = 1000
NODE_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down")
ON_FRONT = "on the front"


def known_peaks(ranking: Sequence[RankedRecipe]) -> dict[str, int]:
    """Return the peak memory of the recipes whose peak is known, in the order of the ranking, by
    recipe id.
    """
    peaks = {row.recipe_id: row.standing.peak_memory_bytes_max_rank for row in ranking}
    return {name: peak for name, peak in peaks.items() if peak is not None}


def speed_memory(collected: Collected) -> Chart | Missing:
    """Draw every measured recipe by peak memory and tokens/s, the front joined, the device's limit
    marked.
    """
    if not collected.ranking:
        return vl.NOTHING_MEASURED
    peaks, front = known_peaks(collected.ranking), collected.front
    ranking = [row for row in collected.ranking if row.recipe_id in peaks]
    if not ranking:
        return Missing(reason="The peak memory of no measured recipe is known.")
    limit = collected.problem.cluster.memory_bytes_per_device
    sizes = list(peaks.values())
    is_near = limit <= FAR * max(sizes)
    room = 1 - peaks[front[0].recipe_id] / limit
    leanest = front[-1].standing
    front_ids = {row.recipe_id for row in front}
    nodes = [nodes_used(row.recipe, collected.problem) for row in ranking]
    apart, last = APART * (max(sizes) - min(sizes)), float("inf")
    rows = []
    for row, count, size in zip(ranking, nodes, sizes, strict=True):
        group, label = counted(count, "node") if len(set(nodes)) > 1 else "measured", ""
        if row.recipe_id in front_ids:
            group = ON_FRONT
            if last - size >= apart:  # else it would cover the label before
                label, last = f"#{row.rank}", size
        figures = {"peak": size / vl.GIB, "tokens_per_s": row.standing.tokens_per_s}
        rows.append(
            vl.recipe_fields(row) | figures | {"group": group, "nodes": count, "label": label}
        )
    counts = sorted({row["nodes"] for row in rows})
    remarks = []
    if len(counts) > 1:
        remarks.append(
            f"Recipes take {counts[0]} to {counts[-1]} nodes, which this front does not weigh:"
            " frontrunner pareto --objectives tokens,memory,nodes does."
        )
    remarks += vl.selected(
        len(ranking),
        collected.with_peak,
        "recipes are drawn: an even selection, the fastest and the front",
    )
    if unknown := collected.ranked - collected.with_peak:
        remarks.append(f"Left out: {counted(unknown, 'recipe')} whose peak memory is unknown.")
    if not is_near:
        remarks.append(f"The device's {gib(limit)} GiB lie beyond the chart.")
    groups = ["measured"] if len(counts) < 2 else [counted(count, "node") for count in counts]
    known = {
        group: (NODE_SYMBOLS[at % len(NODE_SYMBOLS)], vl.BLUE) for at, group in enumerate(groups)
    }
    known[ON_FRONT] = ("circle", vl.ORANGE)
    place = {
        "x": vl.number("peak", "peak memory of the fullest rank, GiB", from_zero=False),
        "y": vl.number("tokens_per_s", "tokens/s"),
    }
    look: Json = place | vl.looks("group", known, (row["group"] for row in rows), "shape", "color")
    look["tooltip"] = vl.tooltip(
        "recipe", "choices", "nodes", numbers={"tokens_per_s": "tokens/s", "peak": "peak GiB"}
    )
    where = f"datum.group == '{ON_FRONT}'"
    return Chart(
        reading=(
            f"{len(front)} of {collected.with_peak:,} recipes are on the front: no other is both"
            f" faster and smaller. The fastest leaves {percent(room, 0)} of a device's {gib(limit)}"
            f" GiB free; the leanest of the front needs {gib(peaks[front[-1].recipe_id])} GiB and"
            f" reaches {thousands(leanest.tokens_per_s)} tokens/s."
        ),
        remarks=tuple(remarks),
        spec=vl.zoomed(
            "memory",
            {
                "data": {"values": rows},
                "height": 380,
                "layer": [
                    vl.layer("line", place, where=where, color=vl.ORANGE, strokeWidth=2),
                    vl.layer("point", look, filled=True, size=70, opacity=0.9),
                    vl.layer("text", place | {"text": {"field": "label"}}, where=where, dy=-11),
                    *(vl.rule("x", limit / vl.GIB, f"device: {gib(limit)} GiB") if is_near else ()),
                ],
            },
        ),
        table=ranking_table(front),
    )


def ranking_table(rows: Sequence[RankedRecipe]) -> Table:
    """Return recipes with the numbers that they are chosen by."""
    return table(rows, *((column.title, column.cell) for column in used(COLUMNS, rows)))


def parallel_coordinates(collected: Collected) -> Chart | Missing:
    """Draw a line per recipe over the knobs, the peak memory and the speed."""
    ranking = collected.ranking
    if len(ranking) < 2:
        return Missing(
            reason=f"Lines can be compared from two measured recipes on; there are {len(ranking)}."
        )
    varied = knobs(collected.survey, [row.recipe for row in ranking])
    left_out = collected.ranked - MOST_LINES
    return Chart(
        reading=(
            "Each line is a measured recipe, orange the fastest. In a browser, drag a box over an"
            " axis to keep the lines that pass through it; click elsewhere to show all again."
        ),
        remarks=(f"The {left_out} slowest recipes are not drawn.",) if left_out > 0 else (),
        spec=_parallel_spec(varied, ranking[:MOST_LINES]),
        table=table(
            ranking[:MOST_LINES],
            ("recipe", lambda row: row.recipe_id),
            *((knob.label, lambda row, knob=knob: knob.word(row.recipe)) for knob in varied),
            ("peak GiB", lambda row: gib(row.standing.peak_memory_bytes_max_rank)),
            ("tokens/s", lambda row: thousands(row.standing.tokens_per_s)),
        ),
    )


def _parallel_spec(varied: Sequence[Knob], ranking: Sequence[RankedRecipe]) -> Json:
    lines: list[Json] = []
    ticks: list[Json] = []

    def add(axis: str, heights: Sequence[float], words: Mapping[str, float]) -> None:
        """Add an axis; the fastest recipe comes last, and is drawn above the others."""
        for row, height in zip(reversed(ranking), reversed(heights), strict=True):
            speed = {"tokens_per_s": row.standing.tokens_per_s}
            lines.append(vl.recipe_fields(row) | speed | {"axis": axis, "height": height})
        ticks.extend(
            {"axis": axis, "words": text, "height": height} for text, height in words.items()
        )

    for knob in varied:
        last = len(knob.values) - 1
        words = {shown(value): place / last for place, value in enumerate(knob.values)}
        add(knob.label, [knob.place(row.recipe) / last for row in ranking], words)
    numbers = {"tokens/s": [row.standing.tokens_per_s for row in ranking]}
    if len(peaks := known_peaks(ranking)) == len(ranking):  # a line passes through every axis
        numbers = {"peak GiB": [peak / vl.GIB for peak in peaks.values()], **numbers}
    for label, found in numbers.items():
        low, room = min(found), max(found) - min(found)
        words = {thousands(low + share * room): share for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
        add(label, [(value - low) / room if room else 0.5 for value in found], words)
    on_axis = "isArray(brush.axis) && indexof(brush.axis, datum.axis) >= 0"
    outside = "datum.height < brush.height[0] || datum.height > brush.height[1]"
    fastest = {"range": [vl.SLOW, vl.BLUE, vl.ORANGE], "interpolate": "rgb"}
    crossed = {
        "detail": {"field": "recipe"},
        "color": vl.number("tokens_per_s", None, scale=fastest, legend=None),
        "strokeOpacity": {"condition": {"test": "datum.is_out > 0", "value": 0.06}, "value": 0.8},
        "tooltip": vl.tooltip("recipe", "choices", numbers={"tokens_per_s": "tokens/s"}),
    }
    axis = {
        "orient": "top",
        "labelAngle": 0,
        "labelPadding": 12,
        "grid": True,
        "domain": False,
        "ticks": False,
    }
    text = {"text": {"field": "words"}}
    return {
        "height": 340,
        "encoding": {
            "x": vl.name("axis", scale={"type": "point", "padding": 0.3}, axis=axis),
            "y": vl.unscaled("height", domain=[0, 1]),
        },
        "layer": [
            vl.layer("line", crossed, rows=lines, strokeWidth=1.8, opacity=1)
            | {
                "params": [
                    {"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}
                ],
                "transform": [
                    {"calculate": f"{on_axis} && ({outside}) ? 1 : 0", "as": "outside"},
                    {
                        "joinaggregate": [{"op": "max", "field": "outside", "as": "is_out"}],
                        "groupby": ["recipe"],
                    },
                ],
            },
            *(
                vl.layer("text", text, rows=ticks, style=style, align="left", dx=5)
                for style in ("halo", "text")
            ),
        ],
    }


ALL_RAN, SOME_RAN, ALL_FAILED, NOT_TRIED = (
    "all ran",
    "some ran, some failed",
    "all failed: ",
    "not tried",
)
CELLS = (
    {ALL_RAN: vl.BLUE, SOME_RAN: "#b3620a"}
    | {f"{ALL_FAILED}{kind}": color for kind, (color, _) in vl.OUTCOMES.items()}
    | {NOT_TRIED: vl.GRAY}
)


def _grouped(
    columns: Sequence[tuple[Sequence[Any], Codes]], wanted: Mask | None = None
) -> dict[tuple[int, ...], Rows]:
    """Return the rows that are wanted by their values of these columns."""
    packed = np.zeros(len(columns[0][1]), dtype=np.int64)
    for values, codes in columns:
        packed = packed * len(values) + codes
    rows = np.arange(len(packed)) if wanted is None else np.flatnonzero(wanted)
    rows = rows[np.argsort(packed[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(packed[rows], prepend=-1))
    parts = np.split(rows, starts[1:]) if len(rows) else []
    return {tuple(values[codes[part[0]]] for values, codes in columns): part for part in parts}


def feasibility(collected: Collected) -> Chart | Missing:
    """Draw a panel per micro-batch: what ran and what failed by tensor and pipeline parallelism."""
    if not collected.ranking and not collected.final_failures:
        return vl.NOTHING_ENDED
    names = ("tensor_parallel", "pipeline_parallel", "micro_batch_seqs")
    trials, recipes = collected.trials, collected.survey.recipes
    legal = {
        place: len(rows)
        for place, rows in _grouped([recipes.columns[name] for name in names]).items()
    }
    corner = [(axis.values, axis.places) for axis in map(trials.axis, names)]
    speed = trials.figures["tokens_per_s"]
    has_ended = collected.attempts.last >= 0
    speeds = {
        place: speed[rows]
        for place, rows in _grouped(corner, np.isfinite(speed) & has_ended).items()
    }
    failures = {
        place: Counter(trials.outcome(int(row)) for row in rows)
        for place, rows in _grouped(corner, trials.has_failed & has_ended).items()
    }
    rows: list[Json] = []
    for place in sorted({*legal, *speeds, *failures}):
        tensor, pipeline, micro_batch = place
        ran, failed = len(speeds.get(place, ())), failures.get(place, Counter())
        most = min(failed, key=lambda kind: (-failed[kind], kind), default="")
        state = (
            (SOME_RAN if ran else ALL_FAILED + most) if failed else ALL_RAN if ran else NOT_TRIED
        )
        rows.append(
            {
                "tp": tensor,
                "pp": pipeline,
                "micro_batch": micro_batch,
                "panel": f"micro-batch {micro_batch}",
                "legal": legal.get(place, 0),
                "measured": ran,
                "failed": ", ".join(f"{count} {kind}" for kind, count in sorted(failed.items())),
                "best": thousands(float(speeds[place].max())) if ran else "-",
                "state": state,
                "words": f"{ran}/{ran + failed.total()}",
            }
        )
    tried = [row for row in rows if row["state"] != NOT_TRIED]
    lost = sum(row["state"].startswith(ALL_FAILED) for row in tried)
    colors = vl.palette("state", CELLS, (row["state"] for row in rows))
    is_tried, corners = f"datum.state != '{NOT_TRIED}'", len(rows)
    rows = rows if corners <= MOST_CELLS else tried[:MOST_CELLS]
    panels = list(
        dict.fromkeys(row["panel"] for row in sorted(rows, key=lambda row: row["micro_batch"]))
    )
    return Chart(
        reading=(
            f"Of {corners} corners with a legal recipe {len(tried)} were tried; {lost or 'none'} of"
            " these failed altogether. A cell shows how many of the recipes tried there ran; an"
            " empty place has no legal one."
        ),
        remarks=vl.selected(len(rows), corners, "corners are drawn"),
        spec={
            "data": {"values": rows},
            "facet": {
                "field": "panel",
                "type": "nominal",
                "sort": panels,
                "header": {"title": None},
            },
            "columns": 4,
            "usermeta": {
                "panels": len(panels),
                "least": 37 * len({row["tp"] for row in rows}) + 46,
            },
            "spec": {
                "width": {"step": 37},
                "height": {"step": 37},
                "encoding": {
                    "x": {
                        "field": "tp",
                        "type": "ordinal",
                        "title": "TP",
                        "axis": {"labelAngle": 0},
                    },
                    "y": {"field": "pp", "type": "ordinal", "title": "PP", "sort": "descending"},
                    "tooltip": vl.tooltip(
                        "legal", "measured", "failed", best="best tokens/s", tp="TP", pp="PP"
                    ),
                },
                "layer": [
                    vl.layer(
                        "rect",
                        {"color": colors},
                        where=is_tried,
                        width=33,
                        height=33,
                        cornerRadius=3,
                    ),
                    vl.layer(
                        "point", {"color": colors}, where=f"!({is_tried})", filled=True, size=30
                    ),
                    vl.layer(
                        "text",
                        {"text": {"field": "words"}},
                        where=is_tried,
                        color="white",
                        fontSize=11,
                    ),
                ],
            },
        },
        table=table(
            rows,
            *(
                ("TP", "tp"),
                ("PP", "pp"),
                ("micro-batch", "micro_batch"),
                ("legal recipes", "legal"),
            ),
            *(
                ("measured", "measured"),
                ("failed", lambda row: row["failed"] or "0"),
                ("best tokens/s", "best"),
            ),
        ),
    )
