"""What became of an imported table, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from frontrunner.text import plain, seconds
from frontrunner.views.render import console, titled_table

if TYPE_CHECKING:
    from frontrunner.import_api import Import, ImportedProblem

MOST_PROBLEMS = 20
MOST_REASONS = 12
MOST_DISAGREEMENTS = 5
WIDE = 125
"""Columns from which a campaign's name and its problem fit beside one another."""


def print_import(found: Import) -> None:
    """The campaigns that hold the rows, what was left out and why, and which rows disagree."""
    out = console()
    verb = "would be kept" if found.is_preview else "kept"
    out.print(f"{plain(found.file)}: {found.taken_rows:,} of {found.rows:,} rows {verb} in {plain(found.store)}")
    if found.problems:
        out.print(_campaigns(found.problems, width=out.width))
        if len(found.problems) > MOST_PROBLEMS:
            out.print(f"and {len(found.problems) - MOST_PROBLEMS:,} more campaigns: frontrunner campaigns")
    if found.known_rows:
        out.print(f"in the store before, and not kept twice: {_rows(found.known_rows)}")
    if found.left_out:
        out.print(f"left out: {_rows(sum(left.rows for left in found.left_out))}")
        for left in found.left_out[:MOST_REASONS]:
            where = "" if left.first_row is None else f" (first: row {left.first_row})"
            out.print(f"  {left.rows:>5} x {plain(left.reason)}{where}", markup=False)
        if len(found.left_out) > MOST_REASONS:
            out.print(f"        and {len(found.left_out) - MOST_REASONS} more reasons (--json has them all)")
    _print_disagreements(found)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _recipes(count: int) -> str:
    return "the rows of 1 recipe" if count == 1 else f"the rows of {count:,} recipes"


def _campaigns(problems: tuple[ImportedProblem, ...], *, width: int) -> Table:
    """The campaigns; where there are several their names tell the problem, so a narrow terminal does without it."""
    is_wide = len(problems) == 1 or width >= WIDE
    table = titled_table()
    for title in ("campaign", "problem")[: 1 + is_wide]:
        table.add_column(title, overflow="fold")
    for title in ("rows", "recipes", "failed"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in problems[:MOST_PROBLEMS]:
        about = row.problem
        problem = f"{about['model']}, {about['devices']} x {about['device']}, {about['sequence_length']} tokens, "
        problem += f"batch {about['global_batch']}, {about['precision']}"
        cells = (row.campaign, plain(problem))[: 1 + is_wide]
        table.add_row(*cells, f"{row.rows:,}", f"{row.recipes:,}", f"{row.failed:,}")
    return table


def _print_disagreements(found: Import) -> None:
    out = console()
    if not found.disagreeing:
        return
    out.print(f"kept as repeats, though they differ by more than 25 %: {_recipes(len(found.disagreeing))}")
    for repeats in found.disagreeing[:MOST_DISAGREEMENTS]:
        rows = ", ".join(str(row) for row in repeats.rows)
        times = ", ".join(seconds(time) for time in repeats.step_times_s)
        out.print(f"  rows {rows}: {times}  {plain(repeats.recipe)}", markup=False)
