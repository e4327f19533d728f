"""Tables whose least telling columns leave where the terminal is narrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.table import Table

Row = TypeVar("Row")
GAP = 2


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column; those with a lower `drop` are fitted in first, 0 always. One with a `least` width may wrap to it."""

    title: str
    cell: Callable[[Row], str]
    drop: int = 0
    is_number: bool = True
    least: int | None = None


def tight_table(title: str | None) -> Table:
    """A table without a frame, whose columns stand as close as can be read."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def fitted_table(
    title: str | None, columns: Sequence[Column[Row]], rows: Sequence[Row], *, width: int, bold: Callable[[Row], bool]
) -> Table:
    """The rows as a table of at most `width` characters, if the columns that never leave allow it."""
    kept: list[Column[Row]] = []
    for column in sorted(columns, key=lambda c: c.drop):
        if not column.drop or sum(_width(c, rows) + GAP for c in (*kept, column)) <= width + 1:
            kept.append(column)
    table = tight_table(title)
    kept = [column for column in columns if column in kept]
    for column in kept:
        table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=column.least is None)
    for row in rows:
        table.add_row(*(column.cell(row) for column in kept), style="bold" if bold(row) else None)
    return table


def _width(column: Column[Row], rows: Sequence[Row]) -> int:
    whole = max(len(line) for text in (column.title, *map(column.cell, rows)) for line in text.split("\n"))
    return whole if column.least is None else min(whole, column.least)
