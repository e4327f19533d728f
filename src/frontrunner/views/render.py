"""What the answers on the terminal share: the console, their tables, and a recipe in few words.

Every answer goes to stdout; colours only where it is a terminal.
"""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from frontrunner.spaces.recipe import Recipe

PIPED_WIDTH = 140
"""Columns of a table that is not printed on a terminal."""
ORIGINS = {
    "simulated": "simulated: rough formulas, nothing was trained",
    "imported": "imported: a table says so, nothing was trained here",
}
"""What stands beside figures that were not measured here, wherever they are shown."""


def console() -> Console:
    """The answering console: stdout, as wide as the terminal."""
    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def layout(recipe: Recipe) -> str:
    """Degrees as tensor x pipeline x data, and context where sequences are shared: `2 x 1 x 4 cp2`."""
    context = f" cp{recipe.context_parallel}" if recipe.context_parallel > 1 else ""
    return f"{recipe.tensor_parallel} x {recipe.pipeline_parallel} x {recipe.data_parallel}{context}"


def batch(recipe: Recipe) -> str:
    """Micro-batch x accumulation."""
    return f"{recipe.micro_batch_seqs} x {recipe.accumulation}"


def options(recipe: Recipe) -> str:
    """Return what else the recipe chooses, where it is not neutral."""
    return ", ".join(recipe.options()) or "-"


def sharding(recipe: Recipe) -> str:
    """The sharding's name; a dash where there is one copy of the model."""
    return recipe.sharding_name if recipe.copies > 1 else "-"


def titled_table(title: str | None = None) -> Table:
    """A table as most answers have it: a line below the heads, and none around."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
