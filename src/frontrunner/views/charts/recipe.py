"""Charts of one recipe: the parts of its step and of its memory, and the step times of its
measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.text import counted, gib, percent, plain, seconds, size
from frontrunner.views.charts import marks as vl
from frontrunner.views.charts.marks import GIB, Json
from frontrunner.views.columns import FIGURES, PARTS, STEP_BOUNDS

COLORS = {
    "compute": "#4c78a8",
    "TP traffic": "#f0a35e",
    "optimizer": "#72b7b2",
    "recompute": "#b79ac8",
    "CP traffic": "#e2c35a",
    "EP traffic": "#d7a1c4",
    "PP transfer": "#8cc08a",
    "DP traffic": "#d98880",
    "bubble": "#a3acb5",
    "host transfer": "#c3a48b",
    "parameters": "#4c78a8",
    "gradients": "#f0a35e",
    "activations": "#b79ac8",
    "logits": "#e2c35a",
    "working": "#8cc08a",
    "runtime": "#a3acb5",
}
OTHER = "#9c755f"
ESTIMATED, MEASURED = "estimated", "measured"
LEAST_SHARE = 0.1
"""A part shorter than this share of the longest bar has its name in the legend alone."""
UNLIKE = 4
"""Steps of which the longest takes more than this multiple of the shortest are drawn as shares of
each.
"""
FAR = 4
"""A memory limit beyond this multiple of the fullest rank is not drawn: the bars would be
slivers.
"""


def step_bars(found: Breakdown) -> Json | None:
    """Specify the parts of a step as a stacked bar, above the measured step time if known; None
    without times.
    """
    if found.estimate.step_time_s is None:
        return None
    parts = {PARTS[part]: time_s for part, time_s in found.estimate.step_parts_s.items()}
    bars: dict[str, Mapping[str, float]] = {ESTIMATED: parts}
    if found.measured is not None:
        bars[MEASURED] = {"": found.measured.step_time_s}
    total = sum(parts.values())
    legend = {
        part: f"{part} {seconds(amount)}, {percent(amount / total)}"
        for part, amount in parts.items()
        if amount
    }
    return _bars(bars, legend, seconds, title="seconds per step")


def steps_beside(found: Mapping[str, Breakdown]) -> Json | None:
    """Specify the parts of recipes' steps as stacked bars, each above its measured step time if it
    has one.

    Steps of unlike length are drawn as shares of each one's estimate, or the short ones would not
    be seen. None where no step time is estimated.
    """
    timed = {named: one for named, one in found.items() if one.estimate.step_time_s is not None}
    if not timed:
        return None
    totals = {named: sum(one.estimate.step_parts_s.values()) for named, one in timed.items()}
    is_unlike = max(totals.values()) > UNLIKE * min(totals.values())
    bars: dict[str, Mapping[str, float]] = {}
    wholes: dict[str, float] = {}
    for named, one in timed.items():
        parts = {PARTS[part]: time_s for part, time_s in one.estimate.step_parts_s.items()}
        its = {f"{named}, {seconds(totals[named])}": parts}
        if one.measured is not None:
            time_s = one.measured.step_time_s
            its[f"{named}, {MEASURED} {seconds(time_s)}"] = {"": time_s}
        bars |= its
        wholes |= dict.fromkeys(its, totals[named] if is_unlike else 1.0)
    legend = {
        part: part for parts in bars.values() for part, time_s in parts.items() if part and time_s
    }
    title = "share of each one's estimated step" if is_unlike else "seconds per step"
    return _bars(bars, legend, seconds, title=title, wholes=wholes)


def memory_bars(found: Breakdown) -> Json:
    """Specify the memory of each rank of the pipeline as stacked bars in GiB, with the device's
    limit.
    """
    bars: dict[str, Mapping[str, float]] = {
        f"{rank.holds}, {counted(rank.layers, 'layer')}": {
            part.replace("_", " "): amount / GIB for part, amount in rank.memory_parts_bytes.items()
        }
        for rank in found.ranks
    }
    fullest = max(bars, key=lambda bar: sum(bars[bar].values()))
    legend = {}
    for part, amount in bars[fullest].items():
        other = max(bars, key=lambda bar: bars[bar][part])
        if amount:
            legend[part] = f"{part} {_gib(amount)}"
        elif bars[other][part]:
            legend[part] = f"{part} {_gib(bars[other][part])} ({other.partition(',')[0]})"
    if found.measured is not None and found.measured.peak_memory_bytes:
        bars[MEASURED] = {"": found.measured.peak_memory_bytes / GIB}
    limit = found.memory_limit_bytes / GIB
    if limit > FAR * max(sum(parts.values()) for parts in bars.values()):
        return _bars(bars, legend, _gib, title="GiB per device")
    spec = _bars(bars, legend, _gib, title="GiB per device", limit=limit)
    spec["layer"] += vl.rule("x", limit, f"device: {gib(found.memory_limit_bytes)} GiB")
    return spec


def _gib(amount: float) -> str:
    return size(amount * GIB)


def _bars(
    bars: Mapping[str, Mapping[str, float]],
    legend: Mapping[str, str],
    words: Callable[[float], str],
    *,
    title: str,
    limit: float = 0.0,
    wholes: Mapping[str, float] = MappingProxyType({}),
) -> Json:
    """Specify stacked bars; those of `wholes` are drawn over these, their lengths as shares of
    them.
    """
    rows: list[Json] = []
    longest = max(
        limit, *(sum(parts.values()) / wholes.get(bar, 1.0) for bar, parts in bars.items())
    )
    for bar, parts in bars.items():
        begin, whole = 0.0, wholes.get(bar, 1.0)
        for part, amount in parts.items():
            if amount > 0:
                rows.append(
                    {
                        "bar": bar,
                        "part": legend.get(part, ""),
                        "amount": begin,
                        "end": begin + amount / whole,
                        "middle": begin + amount / whole / 2,
                        "name": part or bar,
                        "took": words(amount),
                        "share": percent(amount / sum(parts.values())),
                        "text": (
                            "" if amount / whole < LEAST_SHARE * longest else part or words(amount)
                        ),
                    }
                )
                begin += amount / whole
    color = {
        "condition": {"test": "datum.part == ''", "value": vl.GRAY},
        **vl.palette(
            "part",
            {text: COLORS.get(part, OTHER) for part, text in legend.items()},
            legend.values(),
        ),
    }
    place: Json = {
        "y": vl.name("bar", axis={"grid": False, "labelFontSize": 12.5, "labelLimit": 230}),
        "tooltip": vl.tooltip(name="part", took="amount", share="share of the bar"),
    }
    stacked = place | {
        "x": vl.number("amount", title, stack=None),
        "x2": {"field": "end"},
        "color": color,
    }
    text = place | {"x": vl.number("middle", title), "text": {"field": "text"}}
    return {
        "height": 46 * len(bars),
        "layer": [
            vl.layer("bar", stacked, rows=rows, height=30),
            vl.layer("text", text, rows=rows, fontSize=11.5, color="#12181f"),
        ],
    }


def breakdown(found: Breakdown) -> Json:
    """Specify both bars in one chart, with the recipe and its numbers as the title; without times
    the memory alone.
    """
    estimate, problem, step = found.estimate, found.problem, step_bars(found)
    about = (
        f"{problem.model.name} on {estimate.recipe.devices:,} devices of {problem.cluster.name},"
        f" {problem.precision}, global batch {estimate.recipe.global_batch_seqs:,} x"
        f" {problem.sequence_length:,} tokens; recipe {estimate.recipe_id}"
    )
    rates = f"{gib(estimate.peak_memory_bytes)} GiB at the peak"
    if estimate.step_time_s is not None:
        cells = {column.key: column.cell(estimate) for column in (*FIGURES, STEP_BOUNDS)}
        rates = (
            f"{cells['step_time_s_median']} per step (95 %: {cells['step_time_bounds_s']}),"
            f" {cells['tokens_per_s']} tokens/s, {cells['model_tflops_per_device']} TFLOPS/device,"
            f" MFU {cells['mfu']}, {rates}"
        )
    trust = f"{found.trust.in_words().capitalize()}."
    if found.measured is not None:
        trust += f" Measured by campaign {found.measured.campaign}."
    return {
        "title": {
            "text": estimate.recipe.describe(),
            "subtitle": [plain(about), rates, trust],
            "frame": "bounds",
            "offset": 16,
        },
        "vconcat": [
            *([step | {"title": "Step"}] if step else []),
            memory_bars(found) | {"title": "Memory"},
        ],
        "resolve": {"scale": {"color": "independent"}},
        "usermeta": {"margin": 200},
    }


def step_times(measured: Sequence[tuple[str, Sequence[float]]]) -> Json | None:
    """Specify the steps of each measurement as points on a line, with their median; None without a
    measurement.
    """
    rows = [{"name": named, "time": time_s} for named, times in measured for time_s in times]
    if not rows:
        return None
    medians = [{"name": named, "time": statistics.median(times)} for named, times in measured]
    place = {
        "x": vl.number("time", "seconds per step", from_zero=False),
        "y": vl.name("name", axis={"labelLimit": 260}),
    }
    steps = place | {"tooltip": vl.tooltip(name="measurement", numbers={"time": "step, s"})}
    middle = place | {"tooltip": vl.tooltip(name="measurement", numbers={"time": "median, s"})}
    return {
        "height": 30 * len(measured),
        "layer": [
            vl.layer("point", steps, rows=rows, filled=True, size=40, opacity=0.5),
            vl.layer("tick", middle, rows=medians, thickness=2.5, size=20, color=vl.GRAY),
        ],
    }
