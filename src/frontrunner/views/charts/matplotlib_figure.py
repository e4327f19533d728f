"""A chart as a PNG or SVG file, by matplotlib: it draws without a browser or a screen, as on a login node."""

from __future__ import annotations

import math
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any

from frontrunner.text import plain, thousands
from frontrunner.views.charts.chart import (
    FAIR,
    FAST,
    HIGH,
    LOW,
    MIDDLE,
    ROOM_FOR_WORDS,
    SLOW,
    Axis,
    Chart,
    Coordinate,
    Panel,
    Series,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SYMBOLS = {
    "circle": "o",
    "x": "x",
    "triangle-up": "^",
    "triangle-down": "v",
    "square": "s",
    "diamond": "D",
    "cross": "_",
    "star": "*",
    "pentagon": "p",
}
WIDTH_IN, SINGLE_HEIGHT_IN, ROW_HEIGHT_IN, CATEGORY_HEIGHT_IN = 10.0, 4.8, 3.1, 0.42
PIXELS_PER_POINT = 0.75
"""Sizes of charts are pixels of a page at 96 an inch; a point is a 72nd."""
PNG_DPI = 150
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a939c",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e8ec",
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "frontrunner",  # the same figure is the same file
}


_STYLED = Lock()
"""Matplotlib's style is the whole process's: figures of a service's threads take turns."""


def chart_bytes(chart: Chart, kind: str, *, title: str) -> bytes:
    """The chart as the content of a file; `kind` is png or svg."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _STYLED, mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        if chart.coordinates:
            _draw_coordinates(figure, chart.coordinates)
        else:
            _draw_panels(figure, chart)
        figure.suptitle(_safe(title), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        content = BytesIO()
        figure.savefig(content, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else None)
        return content.getvalue()


def _safe(words: str) -> str:
    """Text from outside: without control characters, and a dollar is a dollar, not mathematics."""
    return plain(words).replace("\n", " ").replace("$", r"\$")


def _draw_panels(figure: Figure, chart: Chart) -> None:
    rows = math.ceil(len(chart.panels) / chart.columns)
    most = max(len(panel.y.categories) for panel in chart.panels)
    row_height = max(ROW_HEIGHT_IN, CATEGORY_HEIGHT_IN * most + 0.8)
    figure.set_size_inches(WIDTH_IN, max(SINGLE_HEIGHT_IN if rows == 1 else 0.0, row_height * rows + 0.6))
    axes = figure.subplots(rows, chart.columns, squeeze=False)
    named: dict[str, Any] = {}
    for number, place in enumerate(axes.flat):
        if number >= len(chart.panels):
            place.set_axis_off()
            continue
        for name, handle in _draw_panel(place, chart.panels[number]).items():
            named.setdefault(name, handle)
    if named:
        figure.legend(
            list(named.values()), list(named), loc="outside lower left", ncols=6, frameon=False, markerscale=0.7
        )


def _draw_panel(axes: Axes, panel: Panel) -> dict[str, Any]:
    """Draw one panel; the handles of its legend by name."""
    handles = {}
    for series in panel.series:
        handle = _draw_series(axes, series)
        if series.name:
            handles[series.name] = handle
    for line in panel.lines:
        (axes.axvline if line.axis == "x" else axes.axhline)(line.at, color="#8a939c", linestyle="--", linewidth=1.2)
        place = (line.at, 0.0) if line.axis == "x" else (1.0, line.at)
        transform = axes.get_xaxis_transform() if line.axis == "x" else axes.get_yaxis_transform()
        axes.text(*place, f"{line.label} ", transform=transform, ha="right", va="bottom", fontsize=8.5)
    axes.set_title(_safe(panel.title), loc="left", fontsize=10, fontweight="bold")
    _dress(axes, panel.x, "x")
    longest = max((max(series.x) for series in panel.series if series.kind == "rows"), default=0.0)
    if longest:
        axes.set_xlim(0, ROOM_FOR_WORDS * longest)
    _dress(axes, panel.y, "y")
    return handles


def _dress(axes: Axes, axis: Axis, which: str) -> None:
    ours = axes.xaxis if which == "x" else axes.yaxis
    ours.set_label_text(_safe(axis.label))
    limits = axes.set_xlim if which == "x" else axes.set_ylim
    if axis.categories:
        ours.set_ticks(range(len(axis.categories)), [_safe(name) for name in axis.categories])
        limits(-0.6, len(axis.categories) - 0.4)
        ours.grid(visible=False)
        return
    ours.set_major_formatter(lambda value, _: thousands(value))
    if axis.from_zero:
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        limits(min(low, -0.03 * high), 1.03 * high)


def _draw_series(axes: Axes, series: Series) -> Any:
    if series.kind == "bars":
        return axes.bar(series.x, series.y, width=_thick(series), color=series.colour)
    if series.kind == "rows":
        return _draw_rows(axes, series)
    if series.kind == "points":
        return _draw_points(axes, series)
    style = "steps-post" if series.kind == "step" else "default"
    return axes.plot(
        series.x,
        series.y,
        color=series.colour,
        drawstyle=style,
        linestyle=":" if series.dashed else "-",
        linewidth=1.2 if series.dashed else 2.0,
        zorder=2,
    )[0]


def _thick(series: Series) -> float:
    return series.size if series.size < 1 else 0.6


def _draw_rows(axes: Axes, series: Series) -> Any:
    rows = axes.barh(series.y, series.x, height=_thick(series), color=series.colour)
    for x, y, words in zip(series.x, series.y, series.texts, strict=False):
        axes.annotate(_safe(words), (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5)
    return rows


def _draw_points(axes: Axes, series: Series) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    side = (series.size * PIXELS_PER_POINT) ** 2  # matplotlib states areas, in points squared
    symbol = SYMBOLS[series.symbol]
    style: dict[str, Any] = {"s": side, "marker": symbol, "zorder": 3, "clip_on": False}
    if series.shades:
        style |= {"c": series.shades, "cmap": LinearSegmentedColormap.from_list("knob", [LOW, MIDDLE, HIGH])}
        style |= {"vmin": 0.0, "vmax": 1.0, "alpha": 0.85}
    elif series.hollow and symbol not in ("x", "_"):
        style |= {"facecolors": "none", "edgecolors": series.colour}
    else:
        style |= {"color": series.colour}
    handle = axes.scatter(series.x, series.y, **style)
    inside = series.size > 20
    for x, y, words in zip(series.x, series.y, series.texts, strict=False):
        axes.annotate(
            _safe(words),
            (x, y),
            xytext=(0, 0 if inside else 7),
            textcoords="offset points",
            ha="center",
            va="center" if inside else "bottom",
            color="white" if inside else "#1f2328",
            fontsize=8,
            zorder=4,
        )
    return handle


def _draw_coordinates(figure: Figure, coordinates: tuple[Coordinate, ...]) -> None:
    """Parallel coordinates as lines on one pair of axes, each coordinate scaled to 0 .. 1; the slowest drawn first."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    figure.set_size_inches(WIDTH_IN, SINGLE_HEIGHT_IN)
    axes = figure.subplots()
    columns = [_scaled(coordinate) for coordinate in coordinates]
    speeds = coordinates[-1].values
    colours = LinearSegmentedColormap.from_list("speed", [(0.0, SLOW), (0.6, FAIR), (1.0, FAST)])
    shade = Normalize(min(speeds), max(speeds) if max(speeds) > min(speeds) else min(speeds) + 1)
    for row in sorted(range(len(speeds)), key=lambda place: speeds[place]):
        heights = [column[row] for column in columns]
        axes.plot(range(len(columns)), heights, color=colours(shade(speeds[row])), linewidth=1.2, alpha=0.85)
    for place, coordinate in enumerate(coordinates):
        axes.axvline(place, color="#8a939c", linewidth=0.8)
        for height, words in _ticks(coordinate):
            axes.annotate(
                _safe(words), (place, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
    axes.set_xticks(range(len(coordinates)), [_safe(coordinate.label) for coordinate in coordinates])
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(coordinates) - 0.4)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _ends(coordinate: Coordinate) -> tuple[float, float]:
    """The values at the foot and at the head of an axis."""
    places = [at for at, _ in coordinate.ticks] or list(coordinate.values)
    low, high = min(places), max(places)
    return low, high if high > low else low + 1.0


def _scaled(coordinate: Coordinate) -> list[float]:
    low, high = _ends(coordinate)
    return [(value - low) / (high - low) for value in coordinate.values]


def _ticks(coordinate: Coordinate) -> list[tuple[float, str]]:
    low, high = _ends(coordinate)
    if coordinate.ticks:
        return [((at - low) / (high - low), words) for at, words in coordinate.ticks]
    return [(height, thousands(low + height * (high - low))) for height in (0.0, 0.25, 0.5, 0.75, 1.0)]
