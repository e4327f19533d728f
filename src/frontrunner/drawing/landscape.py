"""Charts of the measured recipes: speed against memory, parallel coordinates, and the map of what is feasible."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontrunner.drawing.chart import (
    BLUE,
    GREY,
    ORANGE,
    OUTCOMES,
    Axis,
    Chart,
    Coordinate,
    Line,
    Panel,
    Series,
    Table,
)
from frontrunner.evaluators.insight.knobs import shown
from frontrunner.evaluators.insight.landscape import Cell, Feasibility, Parallel, SpeedMemory
from frontrunner.results.ranking import RankedRecipe
from frontrunner.text import gib, percent, thousands

GIB = 2**30
FAR = 2.0
"""A device's memory beyond so many times the fullest recipe's peak is told, not drawn: it would squeeze the points."""
CELL = 34.0
"""Side of a cell of the map, in points."""
MIXED = "#b3620a"
"""White numbers can be read on it."""
APART = 0.06
"""Places of the front are written where the point is so much of the axis away from the last one written."""


def speed_memory_chart(found: SpeedMemory) -> Chart:
    """Every measured recipe by peak memory and tokens/s, the front joined, the device's limit marked."""
    front, limit = found.front, found.limit_bytes
    fullest = max(row.standing.peak_memory_bytes_max_rank for row in found.recipes)
    others = [row for row in found.recipes if row.recipe_id not in found.front_ids]
    leanest = front[-1].standing
    room = 1 - front[0].standing.peak_memory_bytes_max_rank / limit
    is_near = limit <= FAR * fullest
    return Chart(
        reading=(
            f"{len(front)} of {len(found.recipes)} recipes are on the front: no other is both faster and smaller. The "
            f"fastest leaves {percent(room, 0)} of a device's {gib(limit)} GiB free; the leanest of the front needs "
            f"{gib(leanest.peak_memory_bytes_max_rank)} GiB and reaches {thousands(leanest.tokens_per_s)} tokens/s."
        ),
        remarks=() if is_near else (f"The device's {gib(limit)} GiB lie beyond the figure's right edge.",),
        panels=(
            Panel(
                x=Axis(label="peak memory of the fullest rank, GiB"),
                y=Axis(label="tokens/s", from_zero=True),
                series=(
                    _points(others, "measured", BLUE),
                    _joined(front),
                    _points(front, "on the front", ORANGE, size=11.0, texts=_places(found)),
                ),
                lines=(Line(axis="x", at=limit / GIB, label=f"device: {gib(limit)} GiB"),) if is_near else (),
            ),
        ),
        table=ranking_table(front),
    )


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
    return Table(
        header=("recipe", "choices", "tokens/s", "gap", "TFLOPS/device", "MFU", "peak GiB", "spread", "repeats"),
        rows=tuple(
            (
                row.recipe_id,
                row.recipe.describe(),
                thousands(row.standing.tokens_per_s),
                f"{row.gap_percent:.1f} %",
                thousands(row.standing.model_tflops_per_device),
                percent(row.standing.mfu),
                gib(row.standing.peak_memory_bytes_max_rank),
                percent(row.standing.step_time_spread),
                str(row.standing.repeats),
            )
            for row in rows
        ),
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


def feasibility_chart(found: Feasibility) -> Chart:
    """A panel a micro-batch: what ran and what failed by tensor and pipeline parallelism."""
    tried = [cell for cell in found.cells.values() if cell.state != "untried"]
    failed = [cell for cell in tried if cell.state == "failed"]
    return Chart(
        reading=(
            f"Of {len(found.cells)} corners with a legal recipe {len(tried)} were tried; {_none(len(failed))} of these "
            "failed altogether. A cell says how many of the recipes tried there ran; an empty place has no legal one."
        ),
        panels=tuple(_map(found, micro_batch) for micro_batch in found.micro_batch_seqs),
        columns=min(4, len(found.micro_batch_seqs)),
        table=Table(
            header=("TP", "PP", "micro-batch", "legal recipes", "measured", "failed", "best tokens/s"),
            rows=tuple(
                (
                    *map(str, corner),
                    str(cell.legal),
                    str(cell.measured),
                    _failures(cell) or "0",
                    "-" if cell.best_tokens_per_s is None else thousands(cell.best_tokens_per_s),
                )
                for corner, cell in found.cells.items()
            ),
        ),
    )


def _none(number: int) -> str:
    return str(number) if number else "none"


def _map(found: Feasibility, micro_batch: int) -> Panel:
    groups: dict[tuple[str, str, str], list[tuple[float, float, Cell]]] = {}
    for (tensor, pipeline, size), cell in found.cells.items():
        if size == micro_batch:
            place = (found.tensor_parallel.index(tensor), found.pipeline_parallel.index(pipeline))
            groups.setdefault(_style(cell), []).append((*place, cell))
    return Panel(
        title=f"micro-batch {micro_batch}",
        x=Axis(label="TP", categories=tuple(map(str, found.tensor_parallel))),
        y=Axis(label="PP", categories=tuple(map(str, found.pipeline_parallel))),
        series=tuple(
            Series(
                kind="points",
                x=tuple(x for x, _, _ in places),
                y=tuple(y for _, y, _ in places),
                name=name,
                colour=colour,
                symbol=symbol,
                size=CELL if symbol == "square" else 6.0,
                hollow=name == "not tried",
                texts=tuple(_count(cell) for _, _, cell in places) if symbol == "square" else (),
                hover=tuple(_hover(cell) for _, _, cell in places),
            )
            for (name, colour, symbol), places in groups.items()
        ),
    )


def _style(cell: Cell) -> tuple[str, str, str]:
    """Name, colour and symbol of a cell."""
    if cell.state == "untried":
        return "not tried", GREY, "circle"
    if cell.state == "mixed":
        return "some ran, some failed", MIXED, "square"
    if cell.state == "measured":
        return "all ran", BLUE, "square"
    kind = cell.commonest_failure or ""
    return f"all failed: {kind}", OUTCOMES[kind][0], "square"


def _count(cell: Cell) -> str:
    return f"{cell.measured}/{cell.measured + sum(cell.failures.values())}"


def _hover(cell: Cell) -> str:
    best = "" if cell.best_tokens_per_s is None else f"<br>best {thousands(cell.best_tokens_per_s)} tokens/s"
    failed = _failures(cell)
    return f"{cell.legal} legal, {cell.measured} measured" + (f"<br>{failed}" if failed else "") + best


def _failures(cell: Cell) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(cell.failures.items()))
