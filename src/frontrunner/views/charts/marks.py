"""Parts of Vega-Lite specifications that charts share: colors, symbols of outcomes, encodings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from frontrunner.results.outcome import Failure, Outcome
from frontrunner.results.ranking import RankedRecipe
from frontrunner.views.charts.data import Json

MEASURED = "measured"
NUMBER = ",.4~r"
"""Format of numbers: 12,345, 0.98; never with a prefix or an exponent."""
BLUE, ORANGE, RED, GRAY, GREEN = "#4c78a8", "#f58518", "#d9534f", "#8a939c", "#59a14f"
SLOW = "#a9b4c0"
CROSS = "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"
STAR = "M0,-1.2L.3,-.4L1.1,-.4L.5,.15L.7,1L0,.5L-.7,1L-.5,.15L-1.1,-.4L-.3,-.4Z"
PENTAGON = "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z"
BAR = "M-1,-.35L1,-.35L1,.35L-1,.35Z"
OUTCOMES: dict[str, tuple[str, str]] = {
    MEASURED: (BLUE, "circle"),
    "out-of-memory": (RED, CROSS),
    "crashed": ("#a47bb9", "triangle-up"),
    "hung": ("#b5835a", "square"),
    "too-slow": ("#e9b44c", "triangle-down"),
    "not-finite": ("#5fb3ad", "diamond"),
    "lost": (GRAY, BAR),
    "implausible": (GREEN, STAR),
    "illegal-for-engine": ("#86b5dd", PENTAGON),
    "running": ("#2aa198", "arrow"),
}
"""Color and symbol of each outcome: each is unique by itself, and visible on white and on black."""


def outcome_name(outcome: Outcome) -> str:
    """Return `measured`, or the failure's kind."""
    return outcome.kind.value if isinstance(outcome, Failure) else MEASURED


def number(field: str, title: str | None, *, from_zero: bool = True, **more: Any) -> Json:
    """Encode a quantitative field."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": from_zero}} | more


def unscaled(field: str, **scale: Any) -> Json:
    """Encode a quantitative field without an axis."""
    return {"field": field, "type": "quantitative", "axis": None, "scale": scale}


def name(field: str, title: str | None = None, **more: Any) -> Json:
    """Encode a nominal field in the order of the data."""
    return {"field": field, "type": "nominal", "title": title, "sort": None} | more


def looks(field: str, known: Mapping[str, Sequence[str]], present: Iterable[str], *channels: str) -> Json:
    """Encode a nominal field by several channels, each with its own part of the looks of the `known` values."""
    used = _present(known, present)
    return {
        channel: name(field, scale={"domain": used, "range": [known[value][place] for value in used]})
        for place, channel in enumerate(channels)
    }


def palette(field: str, colors: Mapping[str, str], present: Iterable[str]) -> Json:
    """Encode a nominal field by these colors, with a legend of the values that are present."""
    used = _present(colors, present)
    return name(field, scale={"domain": used, "range": [colors[value] for value in used]})


def outcome_colors(present: Iterable[str]) -> Json:
    """Encode the field `outcome` by color."""
    return palette("outcome", {outcome: color for outcome, (color, _) in OUTCOMES.items()}, present)


def _present(known: Collection[str], present: Iterable[str]) -> list[str]:
    found = set(present)
    return [value for value in known if value in found]


def tooltip(*fields: str, numbers: Mapping[str, str] = MappingProxyType({}), **titled: str) -> list[Json]:
    """Return a tooltip of these fields; keyword arguments are field=title, and `numbers` are rounded."""
    words = {field: field for field in fields} | titled
    quantities = [
        {"field": field, "title": title, "type": "quantitative", "format": NUMBER} for field, title in numbers.items()
    ]
    return [*({"field": field, "title": title} for field, title in words.items()), *quantities]


def recipe_fields(row: RankedRecipe) -> Json:
    """Return the fields by which a row of data names its recipe."""
    return {"recipe": row.recipe_id, "choices": row.recipe.describe()}


def rule(axis: str, at: float, words: str) -> list[Json]:
    """Return layers of a dashed line across a panel at a value of the axis, with a label."""
    rows = [{"at": at, "words": words}]
    place = {axis: {"field": "at", "type": "quantitative"}}
    label = place | {"text": {"field": "words"}}
    return [
        layer("rule", place, rows=rows, strokeDash=[5, 4], color=GRAY),
        layer("text", label, rows=rows, align="right", baseline="bottom", dx=-5, y="height", dy=-4),
    ]


def layer(kind: str, encoding: Json, *, rows: Sequence[Json] | None = None, where: str = "", **mark: Any) -> Json:
    """Return a layer of marks: of `rows`, else of the chart's own, and of these only those `where` a test holds."""
    data = {} if rows is None else {"data": {"values": list(rows)}}
    kept = {"transform": [{"filter": where}]} if where else {}
    return {**data, **kept, "mark": {"type": kind} | mark, "encoding": encoding}
