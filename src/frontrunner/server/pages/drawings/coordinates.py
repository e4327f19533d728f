"""Parallel coordinates as shapes to draw: an upright axis a knob, a line a recipe.

Plotly's own need a script that is compiled in the browser, which the service's content security policy does not allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frontrunner.text import thousands
from frontrunner.views.charts.chart import Coordinate

WIDTH, HEIGHT = 1120.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 60.0, 46.0, 14.0
MOST_LINES = 300
FAINTEST = 0.18


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A value on an axis."""

    y: float
    words: str


@dataclass(frozen=True, kw_only=True)
class UprightAxis:
    """One axis."""

    x: float
    label: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True)
class Polyline:
    """One recipe: its points as SVG writes them, and how strongly it is drawn; the fastest is drawn apart."""

    recipe_id: str
    words: str
    points: str
    opacity: float
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class Parallels:
    """The drawing; the fastest comes last, above all others. `left_out` slower recipes are not drawn."""

    width: float
    height: float
    top: float
    bottom: float
    axes: tuple[UprightAxis, ...]
    lines: tuple[Polyline, ...]
    left_out: int


def parallels(coordinates: Sequence[Coordinate], recipes: Sequence[tuple[str, str]]) -> Parallels:
    """The drawing of these axes, the last of them the speed; `recipes` are (id, words) of the first of their values.

    The fastest recipe is the first; none after `MOST_LINES` is drawn.
    """
    shown = min(len(recipes), MOST_LINES)
    gap = (WIDTH - LEFT - RIGHT) / max(len(coordinates) - 1, 1)
    xs = [LEFT + gap * place for place in range(len(coordinates))]
    heights = [_heights(axis, axis.values[:shown]) for axis in coordinates]
    speeds = coordinates[-1].values
    slowest, fastest = min(speeds), max(speeds)
    lines = [
        Polyline(
            recipe_id=recipes[row][0],
            words=f"{recipes[row][1]}, {thousands(speeds[row])} tokens/s",
            points=" ".join(f"{x:.1f},{ys[row]:.1f}" for x, ys in zip(xs, heights, strict=True)),
            opacity=round(FAINTEST + (1 - FAINTEST) * _share(speeds[row], slowest, fastest) ** 2, 3),
            is_best=row == 0,
        )
        for row in reversed(range(shown))
    ]
    return Parallels(
        width=WIDTH,
        height=HEIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        axes=tuple(
            UprightAxis(x=x, label=axis.label, marks=_marks(axis)) for x, axis in zip(xs, coordinates, strict=True)
        ),
        lines=tuple(lines),
        left_out=len(speeds) - shown,
    )


def _ends(axis: Coordinate) -> tuple[float, float]:
    if axis.ticks:
        return axis.ticks[0][0], axis.ticks[-1][0]
    return min(axis.values), max(axis.values)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _heights(axis: Coordinate, values: Iterable[float]) -> list[float]:
    """From below, as axes are read."""
    low, high = _ends(axis)
    return [HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(value, low, high) for value in values]


def _marks(axis: Coordinate) -> tuple[Mark, ...]:
    """The named values, or both ends and the middle of an axis of numbers."""
    named = dict(axis.ticks)
    if not named:
        low, high = _ends(axis)
        named = {value: thousands(value) for value in (low, (low + high) / 2, high)}
    return tuple(Mark(y=y, words=words) for y, words in zip(_heights(axis, named), named.values(), strict=True))
