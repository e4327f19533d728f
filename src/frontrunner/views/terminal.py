"""Output on a terminal, and the same as HTML in a notebook. Results go to stdout, in color where it
is a terminal.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frontrunner.spaces.display import in_short
from frontrunner.text import plain
from frontrunner.views.columns import IMPORTANT, Column, joined, used

Row = TypeVar("Row")
PIPED_WIDTH = 140
GAP = 2
PRE = "white-space: pre; overflow-x: auto; line-height: normal"


class Terminal(Console):
    """Console for lines of literal text: no markup, no control characters."""

    def say(self, *parts: str | tuple[str, str], style: str = "", whole: bool = False) -> None:
        """Print a line; a part may be (text, style). A terminal wraps it between words unless it is
        to stay `whole`.
        """
        shown = (
            plain(part) if isinstance(part, str) else (plain(part[0]), part[1]) for part in parts
        )
        self.print(Text.assemble(*shown, style=style), soft_wrap=whole or not self.is_terminal)


_RECORDING: ContextVar[Terminal | None] = ContextVar("_RECORDING", default=None)


def console() -> Terminal:
    """Return the console for results: stdout, as wide as the terminal or as $COLUMNS states."""
    recording = _RECORDING.get()
    if recording is not None:
        return recording
    found = Terminal(highlight=False)
    return (
        found
        if found.is_terminal or "COLUMNS" in os.environ
        else Terminal(highlight=False, width=PIPED_WIDTH)
    )


@contextmanager
def recorded() -> Iterator[Callable[[], str]]:
    """Record what is printed to `console()` inside, and yield a function that returns it as
    HTML.
    """
    recording = Terminal(
        record=True,
        file=io.StringIO(),
        width=PIPED_WIDTH,
        highlight=False,
        force_jupyter=False,
        color_system=None,
    )
    token = _RECORDING.set(recording)
    try:
        yield lambda: recording.export_html(
            inline_styles=True, code_format=f'<pre style="{PRE}">{{code}}</pre>'
        )
    finally:
        _RECORDING.reset(token)


def ruled_table(title: str | None = None, *columns: str | tuple[str, str]) -> Table:
    """Return a table with a line below its heads and none around; a column may be (title, "right",
    "fold" or both).
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        head, kind = column if isinstance(column, tuple) else (column, "")
        justify, overflow = (
            "right" if "right" in kind else "left",
            "fold" if "fold" in kind else "ellipsis",
        )
        table.add_column(head, justify=justify, no_wrap="fold" not in kind, overflow=overflow)  # type: ignore[arg-type]
    return table


def print_fields(value: object) -> None:
    """Print a dataclass field by field, each in short."""
    table = ruled_table(type(value).__name__, "field", ("value", "fold"))
    for name, text in in_short(value).items():
        table.add_row(name, Text(plain(text)))
    console().print(table)


def column_table(
    title: str | None,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    width: int,
    bold: Callable[[Row], bool] = lambda _: False,
) -> Table:
    """Return the rows as a table of at most `width` characters, if the columns that are always kept
    allow it.

    Where an important column would be left out, columns that belong together become one.
    """
    filled = used(columns, rows)
    cells, kept = _fitted(filled, rows, width)
    if any(filled[place].drop <= IMPORTANT for place in range(len(filled)) if place not in kept):
        filled = joined(filled)
        cells, kept = _fitted(filled, rows, width)
    table = ruled_table(title)
    for place in kept:
        column = filled[place]
        justify, wraps = "right" if column.is_number else "left", column.least is not None
        overflow = "fold" if wraps else "ellipsis"
        table.add_column(column.title, justify=justify, no_wrap=not wraps, overflow=overflow)  # type: ignore[arg-type]
    left_out = [column for place, column in enumerate(filled) if place not in kept]
    doubts = [any(column.is_doubtful(row) for column in left_out) for row in rows]
    if any(doubts):  # the first column has the mark of those that are left out
        first = cells[kept[0]]
        marks = ("!" if doubt else " " for doubt in doubts)
        cells[kept[0]] = [f"{text} {mark}" for text, mark in zip(first, marks, strict=True)]
    for number, row in enumerate(rows):
        texts = (Text(cells[place][number]) for place in kept)
        table.add_row(*texts, style="bold" if bold(row) else None)
    return table


def _fitted(
    filled: Sequence[Column[Row]], rows: Sequence[Row], width: int
) -> tuple[list[list[str]], list[int]]:
    """Return the texts of each column's cells, and the places of the columns that fit."""
    cells, widths = [], []
    for column in filled:
        marks = ["!" if column.is_doubtful(row) else " " for row in rows]
        doubts = [f" {mark}" for mark in marks] if "!" in marks else [""] * len(rows)
        cells.append([column.cell(row) + doubt for row, doubt in zip(rows, doubts, strict=True)])
        whole = max(len(line) for text in (column.title, *cells[-1]) for line in text.split("\n"))
        widths.append(GAP + (whole if column.least is None else min(whole, column.least)))
    kept: list[int] = []
    for place in sorted(range(len(filled)), key=lambda place: filled[place].drop):
        if not filled[place].drop or sum(widths[other] for other in (*kept, place)) <= width + 1:
            kept.append(place)
    return cells, sorted(kept)
