"""The front of several objectives as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from frontrunner.evaluators.insight.objectives import OnFront
from frontrunner.text import gib, percent, thousands
from frontrunner.views.columns import Column, fitted_table
from frontrunner.views.render import ORIGINS, batch, console, layout, options, sharding

COLUMNS: tuple[Column[OnFront], ...] = (
    Column("#", lambda row: str(row.ranked.rank)),
    Column("recipe", lambda row: row.ranked.recipe_id, is_number=False),
    Column("tokens/s", lambda row: thousands(row.ranked.standing.tokens_per_s)),
    Column("headroom GiB", lambda row: gib(row.headroom_bytes)),
    Column("nodes", lambda row: f"{row.nodes:,}"),
    Column("tp x pp x dp", lambda row: layout(row.ranked.recipe), drop=1, is_number=False),
    Column("batch", lambda row: batch(row.ranked.recipe), drop=2, is_number=False),
    Column("sharding", lambda row: sharding(row.ranked.recipe), drop=4, is_number=False),
    Column("options", lambda row: options(row.ranked.recipe), drop=6, is_number=False),
    Column("TFLOPS/dev", lambda row: thousands(row.ranked.standing.model_tflops_per_device), drop=3),
    Column("MFU", lambda row: percent(row.ranked.standing.mfu), drop=5),
)


def print_front(front: Sequence[OnFront], objectives: Sequence[str]) -> None:
    """The front, fastest first; `#` is the place in the ranking by tokens/s."""
    out = console()
    title = f"what nothing else beats in {' and '.join([', '.join(objectives[:-1]), objectives[-1]])}"
    for origin in sorted({row.ranked.figures for row in front} & set(ORIGINS)):
        title += f" ({ORIGINS[origin]})"
    columns = [c for c in COLUMNS if c.title != "MFU" or any(row.ranked.standing.mfu is not None for row in front)]
    out.print(fitted_table(title, columns, front, width=out.width, bold=lambda row: row.ranked.rank == 1))
