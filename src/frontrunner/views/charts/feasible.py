"""The chart of what is feasible: which corners of the space ran, and which failed."""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.insight.landscape import Cell, Feasibility
from frontrunner.text import thousands
from frontrunner.views.charts.chart import BLUE, GREY, OUTCOMES, Axis, Chart, Panel, Series, Table, even_columns

CELL = 34.0
"""Side of a cell of the map, in pixels of a page that is wide enough."""
MOST_COLUMNS, MOST_CELLS_A_ROW = 4, 24
"""So many panels, and squares of all of them, stand beside one another at most: on 960 pixels they are then apart."""
MIXED = "#b3620a"
"""White numbers can be read on it."""


def feasibility_chart(found: Feasibility) -> Chart:
    """A panel a micro-batch: what ran and what failed by tensor and pipeline parallelism."""
    maps: dict[int, list[tuple[int, int, Cell]]] = {}
    for (tensor, pipeline, micro_batch), cell in found.cells.items():
        maps.setdefault(micro_batch, []).append((tensor, pipeline, cell))
    tried = [cell for cell in found.cells.values() if cell.state != "untried"]
    failed = [cell for cell in tried if cell.state == "failed"]
    return Chart(
        reading=(
            f"Of {len(found.cells)} corners with a legal recipe {len(tried)} were tried; {_none(len(failed))} of these "
            "failed altogether. A cell says how many of the recipes tried there ran; an empty place has no legal one."
        ),
        panels=tuple(_map(found, micro_batch, maps.get(micro_batch, [])) for micro_batch in found.micro_batch_seqs),
        columns=_columns(found),
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


def _columns(found: Feasibility) -> int:
    """How many panels stand beside one another."""
    room = max(1, min(MOST_COLUMNS, MOST_CELLS_A_ROW // len(found.tensor_parallel)))
    return even_columns(len(found.micro_batch_seqs), at_most=room)


def _none(number: int) -> str:
    return str(number) if number else "none"


def _map(found: Feasibility, micro_batch: int, cells: Sequence[tuple[int, int, Cell]]) -> Panel:
    """One panel; `cells` are (tensor parallelism, pipeline parallelism, cell)."""
    groups: dict[tuple[str, str, str], list[tuple[float, float, Cell]]] = {}
    for tensor, pipeline, cell in cells:
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
