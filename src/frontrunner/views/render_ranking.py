"""A ranking on the terminal, and what follows it: the outlook, and the commands to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.results.ranking import RankedRecipe
from frontrunner.search.budget import Limit
from frontrunner.search.stopping import outlook_in_words, unused
from frontrunner.search.strategy import Outlook
from frontrunner.text import gib, percent, seconds, thousands
from frontrunner.views.render import ORIGINS, batch, console, layout, options, sharding, titled_table


@dataclass(frozen=True)
class _Column:
    """A column of the ranking; those with a higher `drop` leave first where the terminal is narrow."""

    title: str
    cell: Callable[[RankedRecipe], str]
    width: int
    drop: int = 0
    is_number: bool = True


def _step(row: RankedRecipe) -> str:
    mark = " !" if row.standing.is_noisy else ""
    return f"{seconds(row.standing.step_time_s_median)} ± {100 * row.standing.step_time_spread:.0f} %{mark}"


COLUMNS = (
    _Column("#", lambda row: str(row.rank), 3),
    _Column("recipe", lambda row: row.recipe_id, 12, is_number=False),
    _Column("tp x pp x dp", lambda row: layout(row.recipe), 12, is_number=False),
    _Column("batch", lambda row: batch(row.recipe), 8, is_number=False),
    _Column("sharding", lambda row: sharding(row.recipe), 9, is_number=False),
    _Column("options", lambda row: options(row.recipe), 20, drop=2, is_number=False),
    _Column("tokens/s", lambda row: thousands(row.standing.tokens_per_s), 9),
    _Column("gap", lambda row: f"{row.gap_percent:.1f} %", 7, drop=3),
    _Column("step", _step, 16, drop=1),
    _Column("TFLOPS/dev", lambda row: thousands(row.standing.model_tflops_per_device), 10, drop=4),
    _Column("MFU", lambda row: percent(row.standing.mfu), 6, drop=4),
    _Column("peak GiB", lambda row: gib(row.standing.peak_memory_bytes_max_rank), 8),
    _Column("n", lambda row: str(row.standing.repeats), 2, drop=5),
)


def _fitting(width: int, ranking: Sequence[RankedRecipe]) -> list[_Column]:
    """The columns that fit; MFU only where the cluster states a peak to measure it against."""
    columns = [c for c in COLUMNS if c.title != "MFU" or any(row.standing.mfu is not None for row in ranking)]
    while sum(_width(c, ranking) + 2 for c in columns) > width and any(c.drop for c in columns):
        columns.remove(max(columns, key=lambda c: c.drop))
    return columns


def _width(column: _Column, ranking: Sequence[RankedRecipe]) -> int:
    """What a column takes: one that never leaves is shown whole, a long name of a sharding included."""
    return column.width if column.drop else max([column.width, *(len(column.cell(row)) for row in ranking)])


def print_ranking(ranking: Sequence[RankedRecipe], *, title: str) -> None:
    """The ranking; columns that do not fit are left out, the least telling first."""
    out = console()
    for origin in sorted({row.figures for row in ranking} & set(ORIGINS)):
        title += f" ({ORIGINS[origin]})"
    columns = _fitting(out.width, ranking)
    table = titled_table(title)
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=True)
    for row in ranking:
        table.add_row(*(column.cell(row) for column in columns), style="bold" if row.rank == 1 else None)
    out.print(table)
    if any(row.standing.is_noisy for row in ranking) and any(c.title == "step" for c in columns):
        out.print("! step times spread by more than 5 %: the order near such a row may change", style="dim")


def print_outlook(outlook: Outlook | None, limits: Sequence[Limit]) -> None:
    """What is left to gain, where the strategy can tell, and what is left of the budget to gain it with."""
    if outlook is None:
        return
    out = console()
    out.print(f"outlook: {outlook_in_words(outlook)}", soft_wrap=True)
    if limits:
        out.print(f"unused:  {unused(limits)}")


def print_next_commands(
    campaign: str,
    winner: RankedRecipe,
    store: str | None,
    objectives: Sequence[str] = ("tokens",),
    *,
    replays: bool = True,
) -> None:
    """What to do next, as commands to copy; `store` where it is not the one that the commands find themselves.

    `objectives` are what the campaign sought; it `replays` unless another trainer than frontrunner's ran its probes.
    """
    out = console()
    named = f" --store {shlex.quote(store)}" if store else ""
    commands = [
        (f"frontrunner show {winner.recipe_id}", "why it ranks first"),
        (f"frontrunner pareto {campaign}", "speed against memory")
        if len(objectives) == 1
        else (f"frontrunner pareto {campaign} --objectives {','.join(objectives)}", "the front"),
    ]
    if replays and winner.figures != "imported":  # what a table says cannot be replayed
        commands.append((f"frontrunner replay {winner.recipe_id} --steps 200", "train with it"))
    out.print("\nnext:", style="bold")
    for command, what in commands:
        out.print(f"  {command + named:<46} {what}", soft_wrap=bool(named))
