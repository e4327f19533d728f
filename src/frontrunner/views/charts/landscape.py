"""Charts of the measured recipes: speed against memory, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from frontrunner.evaluators.insight.knobs import shown
from frontrunner.evaluators.insight.landscape import Parallel, SpeedMemory
from frontrunner.results.ranking import RankedRecipe
from frontrunner.text import gib, percent, thousands
from frontrunner.views.charts.chart import (
    BLUE,
    ORANGE,
    Axis,
    Chart,
    Coordinate,
    Line,
    Panel,
    Series,
    Table,
)
from frontrunner.views.columns import COLUMNS, used

GIB = 2**30
FAR = 2.0
"""A device's memory beyond so many times the fullest recipe's peak is told, not drawn: it would squeeze the points."""
NODE_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon")
"""Of points that take the fewest nodes, the next fewest, and so on."""
APART = 0.06
"""Places of the front are written where the point is so much of the axis away from the last one written."""


def speed_memory_chart(found: SpeedMemory) -> Chart:
    """Every measured recipe by peak memory and tokens/s, the front joined, the device's limit marked."""
    front, limit = found.front, found.limit_bytes
    fullest = max(row.standing.peak_memory_bytes_max_rank for row in found.recipes)
    leanest = front[-1].standing
    room = 1 - front[0].standing.peak_memory_bytes_max_rank / limit
    is_near = limit <= FAR * fullest
    return Chart(
        reading=(
            f"{len(front)} of {len(found.recipes)} recipes are on the front: no other is both faster and smaller. The "
            f"fastest leaves {percent(room, 0)} of a device's {gib(limit)} GiB free; the leanest of the front needs "
            f"{gib(leanest.peak_memory_bytes_max_rank)} GiB and reaches {thousands(leanest.tokens_per_s)} tokens/s."
        ),
        remarks=(
            *_nodes_remark(found),
            *(() if is_near else (f"The device's {gib(limit)} GiB lie beyond the figure.",)),
        ),
        panels=(
            Panel(
                x=Axis(label="peak memory of the fullest rank, GiB"),
                y=Axis(label="tokens/s", from_zero=True),
                series=(
                    *_by_nodes(found),
                    _joined(front),
                    _points(front, "on the front", ORANGE, size=11.0, texts=_places(found)),
                ),
                lines=(Line(axis="x", at=limit / GIB, label=f"device: {gib(limit)} GiB"),) if is_near else (),
            ),
        ),
        table=ranking_table(front),
    )


def _nodes_remark(found: SpeedMemory) -> tuple[str, ...]:
    counts = sorted(set(found.nodes.values()))
    if len(counts) < 2:
        return ()
    weighed = "frontrunner pareto --objectives tokens,memory,nodes"
    return (f"Recipes take {counts[0]} to {counts[-1]} nodes, which this front does not weigh: {weighed} does.",)


def _by_nodes(found: SpeedMemory) -> list[Series]:
    """The recipes off the front, a series for each number of nodes where there are several."""
    others = [row for row in found.recipes if row.recipe_id not in found.front_ids]
    counts = sorted(set(found.nodes.values()))
    if len(counts) < 2:
        return [_points(others, "measured", BLUE)]
    series = []
    for place, count in enumerate(counts):
        rows = [row for row in others if found.nodes[row.recipe_id] == count]
        name = f"{count} node{'s' if count > 1 else ''}"
        series.append(replace(_points(rows, name, BLUE), symbol=NODE_SYMBOLS[place % len(NODE_SYMBOLS)]))
    return series


def _points(
    rows: Sequence[RankedRecipe], name: str, colour: str, *, size: float = 8.0, texts: tuple[str, ...] = ()
) -> Series:
    return Series(
        kind="points",
        x=tuple(row.standing.peak_memory_bytes_max_rank / GIB for row in rows),
        y=tuple(row.standing.tokens_per_s for row in rows),
        name=name,
        colour=colour,
        size=size,
        texts=texts,
        hover=tuple(hover(row) for row in rows),
    )


def _places(found: SpeedMemory) -> tuple[str, ...]:
    """The place in the ranking beside each point of the front, but where it would cover the one before."""
    sizes = [row.standing.peak_memory_bytes_max_rank for row in found.recipes]
    places = {row.recipe_id: row.rank for row in found.recipes}
    written, last = [], math.inf
    for row in found.front:
        size = row.standing.peak_memory_bytes_max_rank
        is_apart = last - size >= APART * (max(sizes) - min(sizes))
        written.append(f"#{places[row.recipe_id]}" if is_apart else "")
        last = size if is_apart else last
    return tuple(written)


def _joined(front: Sequence[RankedRecipe]) -> Series:
    return Series(
        kind="line",
        x=tuple(row.standing.peak_memory_bytes_max_rank / GIB for row in front),
        y=tuple(row.standing.tokens_per_s for row in front),
        colour=ORANGE,
    )


def hover(row: RankedRecipe) -> str:
    """A recipe where a pointer rests on it."""
    return f"{row.recipe_id}<br>{row.recipe.describe()}"


def ranking_table(rows: Sequence[RankedRecipe]) -> Table:
    """Recipes with the figures that they are chosen by."""
    columns = used(COLUMNS, rows)
    return Table(
        header=tuple(column.title for column in columns),
        rows=tuple(tuple(column.cell(row) for column in columns) for row in rows),
    )


def parallel_chart(found: Parallel) -> Chart:
    """A line a recipe over the knobs, the peak memory and the speed."""
    recipes = found.recipes
    coordinates = [
        Coordinate(
            label=knob.label,
            values=tuple(float(knob.place(row.recipe)) for row in recipes),
            ticks=tuple((float(place), shown(value)) for place, value in enumerate(knob.values)),
        )
        for knob in found.knobs
    ]
    coordinates.append(
        Coordinate(label="peak GiB", values=tuple(row.standing.peak_memory_bytes_max_rank / GIB for row in recipes))
    )
    coordinates.append(Coordinate(label="tokens/s", values=tuple(row.standing.tokens_per_s for row in recipes)))
    return Chart(
        reading=(
            "Each line is a measured recipe, orange the fastest. On the page, drag along an axis to keep the "
            "lines that pass there; drag an axis by its name to move it."
        ),
        coordinates=tuple(coordinates),
        table=Table(
            header=("recipe", *(knob.label for knob in found.knobs), "peak GiB", "tokens/s"),
            rows=tuple(
                (
                    row.recipe_id,
                    *(shown(knob.values[knob.place(row.recipe)]) for knob in found.knobs),
                    gib(row.standing.peak_memory_bytes_max_rank),
                    thousands(row.standing.tokens_per_s),
                )
                for row in recipes
            ),
        ),
    )
