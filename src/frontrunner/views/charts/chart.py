"""Charts: what a figure shows, without saying by which library it is drawn.

A `Chart` has panels of series, or is one set of parallel coordinates, and always a table that says the same in words
and numbers, for readers whom a picture does not serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from frontrunner.evaluators.insight.history import MEASURED

BLUE, ORANGE, RED, GREY = "#4c78a8", "#f58518", "#d9534f", "#8a939c"
OUTCOMES: dict[str, tuple[str, str]] = {
    MEASURED: (BLUE, "circle"),
    "out-of-memory": (RED, "x"),
    "crashed": ("#a47bb9", "triangle-up"),
    "hung": ("#b5835a", "square"),
    "too-slow": ("#e9b44c", "triangle-down"),
    "not-finite": ("#5fb3ad", "diamond"),
    "lost": (GREY, "cross"),
    "implausible": ("#59a14f", "star"),
    "illegal-for-engine": ("#86b5dd", "pentagon"),
}
"""Colour and symbol of each outcome: neither alone has to do. They stand out from white and black."""

ROOM_FOR_WORDS = 1.35
"""An axis along which bars lie is so many times as long as they are: words stand at their ends."""

LOW, MIDDLE, HIGH = "#2c7fb8", "#a7a3ad", "#e0533d"
"""The scale for the positions of knobs, from the first value to the last."""
SLOW, FAIR, FAST = "#a9b4c0", BLUE, ORANGE
"""The scale for speeds. All of it can be seen on white and on black."""

SeriesKind = Literal["points", "line", "step", "bars", "rows"]
"""Bars stand on the x axis, rows lie on the y axis: x is then how long they are."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`categories` stand at 0, 1, 2, ...; without them the axis is of numbers, from zero on where `from_zero`."""

    label: str
    categories: tuple[str, ...] = ()
    from_zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Series:
    """One set of marks.

    `name` stands in the legend, empty for none; `texts` are drawn beside points and at the ends of bars, `hover` is
    shown where a pointer rests; `shades`, from 0 to 1, colour points by a scale in place of `colour`.
    """

    kind: SeriesKind
    x: tuple[float, ...]
    y: tuple[float, ...]
    name: str = ""
    colour: str = BLUE
    symbol: str = "circle"
    size: float = 8.0
    hollow: bool = False
    dashed: bool = False
    texts: tuple[str, ...] = ()
    hover: tuple[str, ...] = ()
    shades: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight mark across a panel at one value of an axis, with a label."""

    axis: Literal["x", "y"]
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str = ""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """One upright axis of parallel coordinates: a value a recipe; `ticks` are (value, words), empty for numbers."""

    label: str
    values: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """The figure in words: a row a fact."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure. `reading` says in one or two sentences what to see in it; `remarks` what it does not show.

    `coordinates`, where there are any, take the place of `panels`; lines are coloured by the last of them.
    """

    reading: str
    table: Table
    panels: tuple[Panel, ...] = ()
    columns: int = 1
    coordinates: tuple[Coordinate, ...] = ()
    remarks: tuple[str, ...] = ()


def shades(places: Sequence[float]) -> tuple[float, ...]:
    """The values moved to 0 .. 1; all in the middle where they are equal."""
    low, high = min(places), max(places)
    return tuple((place - low) / (high - low) if high > low else 0.5 for place in places)


def even_columns(panels: int, *, at_most: int) -> int:
    """How many panels stand in a row, so that the last row is as full as can be: of five, with at most four, 3 + 2."""
    rows = -(-panels // at_most)
    return -(-panels // rows)
