"""A chart as a Plotly figure: plain values for its JSON, without colours of paper and text, which the page sets."""

from __future__ import annotations

import math
from typing import Any

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
    Line,
    Panel,
    Series,
)

Json = dict[str, Any]
SYMBOLS = {"cross": "line-ew", "x": "x", "star": "star"}
"""Where Plotly's name of a symbol is not ours."""
SINGLE_HEIGHT, ROW_HEIGHT, COORDINATES_HEIGHT, LEGEND_HEIGHT = 400, 280, 430, 34
CATEGORY_HEIGHT = 42
"""Of a row of an axis of categories, in pixels, with room for its name."""
SPEEDS = [[0, SLOW], [0.6, FAIR], [1, FAST]]
KNOBS = [[0, LOW], [0.5, MIDDLE], [1, HIGH]]
CELLS = "cells"
"""The `meta` of a trace whose points are squares that may not cover one another: a page sizes them to its width."""
FEWEST_CATEGORIES = 4
"""An axis has room for so many, lest one bar be as broad as the page."""


def plotly_figure(chart: Chart) -> Json:
    """`data` and `layout` of a Plotly figure."""
    if chart.coordinates:
        return _parallel(chart.coordinates)
    rows = math.ceil(len(chart.panels) / chart.columns)
    data: list[Json] = []
    layout: Json = {
        "height": _height(chart, rows),
        "margin": {"l": 62, "r": 18, "t": 34, "b": 44},
        "hoverlabel": {"align": "left"},
        "barmode": "overlay",
        "annotations": [],
        "shapes": [],
    }
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    named: set[str] = set()
    for number, panel in enumerate(chart.panels):
        place = _place(number, chart.columns, rows)
        _add_axes(layout, panel, number, place)
        if number % chart.columns and panel.y.label == chart.panels[number - 1].y.label:
            del layout[f"yaxis{_suffix(number)}"]["title"]  # it stands at the row's first panel
        for series in panel.series:
            data.append(_trace(series, number, in_legend=bool(series.name) and series.name not in named))
            named.add(series.name)
        for line in panel.lines:
            _add_line(layout, line, number)
    layout["showlegend"] = any(named)
    if any(named):
        layout["height"] += LEGEND_HEIGHT
        layout["margin"]["b"] += LEGEND_HEIGHT
    return {"data": data, "layout": layout}


def _height(chart: Chart, rows: int) -> int:
    categories = max(len(panel.y.categories) for panel in chart.panels)
    if len(chart.panels) > 1:
        row = max(ROW_HEIGHT, CATEGORY_HEIGHT * categories + 20)
        return SINGLE_HEIGHT if rows == 1 and chart.columns == 2 and not categories else row * rows + 60
    return max(SINGLE_HEIGHT if not categories else 200, CATEGORY_HEIGHT * categories + 110)


def _place(number: int, columns: int, rows: int) -> tuple[list[float], list[float]]:
    """The share of the paper, from the left and from below, that a panel takes."""
    wide_gap, high_gap = (0.085 if columns > 1 else 0.0), (0.3 / rows if rows > 1 else 0.0)
    width, height = (1 + wide_gap) / columns, (1 + high_gap) / rows
    column, row = number % columns, number // columns
    left, top = column * width, 1 - row * height
    return [left, left + width - wide_gap], [max(0.0, top - height + high_gap), top]


def _add_axes(layout: Json, panel: Panel, number: int, place: tuple[list[float], list[float]]) -> None:
    suffix = _suffix(number)
    layout[f"xaxis{suffix}"] = _axis(panel.x, wide=_has_bars(panel)) | {"domain": place[0], "anchor": f"y{suffix}"}
    layout[f"yaxis{suffix}"] = _axis(panel.y, wide=False) | {"domain": place[1], "anchor": f"x{suffix}"}
    if _longest_row(panel):
        layout[f"xaxis{suffix}"]["range"] = [0, ROOM_FOR_WORDS * _longest_row(panel)]
    if panel.title:
        layout["annotations"].append(
            {
                "text": f"<b>{panel.title}</b>",
                "x": place[0][0],
                "y": place[1][1],
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
            }
        )


def _longest_row(panel: Panel) -> float:
    """The end of the longest row of bars that lie; 0 where none do."""
    return max((max(series.x) for series in panel.series if series.kind == "rows"), default=0.0)


def _has_bars(panel: Panel) -> bool:
    return any(series.kind == "bars" for series in panel.series)


def _axis(axis: Axis, *, wide: bool) -> Json:
    found: Json = {"title": {"text": axis.label, "standoff": 8}, "zeroline": False, "automargin": True}
    if axis.from_zero:
        found["rangemode"] = "tozero"
    if axis.categories:
        count = len(axis.categories)
        found |= {"tickmode": "array", "tickvals": list(range(count)), "ticktext": list(axis.categories)}
        found |= {"range": [-0.6, max(count, FEWEST_CATEGORIES) - 0.4 if wide else count - 0.4]}
    return found


def _trace(series: Series, number: int, *, in_legend: bool) -> Json:
    suffix = _suffix(number)
    trace: Json = {
        "x": list(series.x),
        "y": list(series.y),
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "name": series.name,
        "legendgroup": series.name,
        "showlegend": in_legend,
    }
    if series.hover:
        trace |= {"customdata": list(series.hover), "hovertemplate": "%{customdata}<br>%{y:.4~g}<extra></extra>"}
    else:
        trace |= {"hovertemplate": "%{x}, %{y:.4~g}<extra></extra>"}
    if series.kind in ("bars", "rows"):
        return trace | _bars(series)
    return trace | (_points(series) if series.kind == "points" else _line(series))


def _bars(series: Series) -> Json:
    found: Json = {"type": "bar", "marker": {"color": series.colour}, "hoverinfo": "y"}
    found["width"] = series.size if series.size < 1 else 0.6
    found["orientation"] = "h" if series.kind == "rows" else "v"
    if series.texts:
        found |= {"text": list(series.texts), "textposition": "outside", "cliponaxis": False, "constraintext": "none"}
    return found


def _line(series: Series) -> Json:
    shape = {"color": series.colour, "width": 1.5 if series.dashed else 2.5}
    shape |= {"dash": "dot"} if series.dashed else {}
    shape |= {"shape": "hv"} if series.kind == "step" else {}
    return {"type": "scatter", "mode": "lines", "line": shape, "hoverinfo": "skip", "hovertemplate": None}


def _points(series: Series) -> Json:
    symbol = SYMBOLS.get(series.symbol, series.symbol)
    if series.hollow:
        symbol += "-open"
    marker: Json = {"symbol": symbol, "size": series.size, "color": series.colour}
    if symbol == "line-ew" or series.hollow:
        marker["line"] = {"color": series.colour, "width": 2}
    if series.shades:
        marker |= {"color": list(series.shades), "colorscale": KNOBS, "cmin": 0, "cmax": 1, "opacity": 0.85}
    found: Json = {"type": "scatter", "mode": "markers", "marker": marker, "cliponaxis": False}
    if series.texts:
        inside = series.size > 20
        found |= {"mode": "markers+text", "text": list(series.texts)}
        found |= {"textposition": "middle center" if inside else "top center"}
        if inside:
            found["textfont"] = {"color": "#ffffff", "size": 11}
            found["meta"] = CELLS
    return found


def _add_line(layout: Json, line: Line, number: int) -> None:
    suffix = _suffix(number)
    ours, other = ("x", "y") if line.axis == "x" else ("y", "x")
    layout["shapes"].append(
        {
            "type": "line",
            f"{ours}ref": f"{ours}{suffix}",
            f"{other}ref": f"{other}{suffix} domain",
            f"{ours}0": line.at,
            f"{ours}1": line.at,
            f"{other}0": 0,
            f"{other}1": 1,
            "line": {"dash": "dash", "width": 1.5, "color": "#8a939c"},
        }
    )
    layout["annotations"].append(
        {
            "text": line.label,
            f"{ours}ref": f"{ours}{suffix}",
            f"{other}ref": f"{other}{suffix} domain",
            ours: line.at,
            other: 0,
            "xanchor": "right",
            "yanchor": "bottom",
            "showarrow": False,
        }
    )


def _parallel(coordinates: tuple[Coordinate, ...]) -> Json:
    speeds = coordinates[-1].values
    trace: Json = {
        "type": "parcoords",
        "dimensions": [_dimension(coordinate) for coordinate in coordinates],
        "line": {"color": list(speeds), "colorscale": SPEEDS, "cmin": min(speeds), "cmax": max(speeds)},
        "domain": {"x": [0, 1], "y": [0, 1]},
    }
    return {
        "data": [trace],
        "layout": {"height": COORDINATES_HEIGHT, "margin": {"l": 50, "r": 60, "t": 60, "b": 24}},
    }


def _dimension(coordinate: Coordinate) -> Json:
    found: Json = {"label": coordinate.label, "values": list(coordinate.values), "tickformat": ".3~g"}
    if max(coordinate.values) >= 1000:
        found["tickformat"] = ".3~s"
    if coordinate.ticks:
        last = len(coordinate.ticks) - 1
        found |= {"tickvals": [at for at, _ in coordinate.ticks], "ticktext": [words for _, words in coordinate.ticks]}
        found |= {"range": [0, last or 1]}
    return found


def _suffix(number: int) -> str:
    return "" if number == 0 else str(number + 1)
