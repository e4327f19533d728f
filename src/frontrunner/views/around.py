"""What was measured around a recipe, on the terminal: sweeps and scaling, beside the estimates."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from frontrunner.evaluators.analytic.variations import (
    Found,
    MeasuredScaling,
    ScaledRecipe,
    Sweep,
    Variation,
)
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.text import counted, gib, percent, thousands
from frontrunner.views.charts.marks import shown
from frontrunner.views.columns import SCALINGS, Column, words
from frontrunner.views.terminal import column_table, console


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _found(name: str) -> Callable[[Any], Any]:
    return attrgetter(f"found.{name}")


def _peak(found: Found) -> int | None:
    return found.peak_memory_bytes_max_rank


def _outcome(found: Found) -> str:
    if found.illegal is not None:
        return f"illegal: {found.illegal}"
    fit = "" if found.estimate is None else found.estimate.fit
    return found.outcome or f"to be measured{'' if fit in ('', 'fits') else f', estimated: {fit}'}"


SWEEP: tuple[Column[Variation], ...] = (
    words(
        "dimension",
        "dimension",
        lambda row: (
            DIMENSIONS[row.dimension].label if row.dimension in DIMENSIONS else row.dimension
        ),
    ),
    words("value", "value", lambda row: shown(row.value) + (" *" if row.is_own else "")),
    words("recipe_id", "recipe", _found("recipe_id"), drop=3),
    Column("tokens_per_s", "tokens/s", _found("tokens_per_s"), thousands),
    Column("change", "change", lambda row: None if row.is_own else row.change, _signed),
    Column(
        "estimated_change",
        "est. change",
        lambda row: None if row.is_own else row.estimated_change,
        _signed,
        drop=1,
    ),
    Column("estimated", "est. tokens/s", _found("estimated_tokens_per_s"), thousands, drop=4),
    Column("peak", "peak GiB", lambda row: _peak(row.found), gib, drop=2),
    words("outcome", "outcome", lambda row: _outcome(row.found), least=20),
)
SCALED: tuple[Column[ScaledRecipe], ...] = (
    Column("nodes", "nodes", attrgetter("nodes"), "{:,}".format),
    Column("devices", "devices", attrgetter("devices"), "{:,}".format, drop=6),
    Column("batch", "global batch",
        lambda row: row.found.recipe and row.found.recipe.global_batch_seqs, "{:,}".format,
           drop=5),
    words("recipe_id", "recipe", _found("recipe_id"), drop=3),
    Column("tokens_per_s", "tokens/s", _found("tokens_per_s"), thousands),
    Column("efficiency", "efficiency", attrgetter("efficiency"), percent),
    Column("estimated", "est. tokens/s", _found("estimated_tokens_per_s"), thousands, drop=1),
    Column("estimated_efficiency", "est. efficiency", attrgetter("estimated_efficiency"), percent,
        drop=1),
    Column("peak", "peak GiB", lambda row: _peak(row.found), gib, drop=2),
    words("outcome", "outcome", lambda row: _outcome(row.found), least=20),
)  # fmt: skip


def print_around(found: Sweep | MeasuredScaling) -> None:
    """Print a sweep or a scaling."""
    if isinstance(found, Sweep):
        print_sweep(found)
    else:
        print_measured_scaling(found)


def print_sweep(found: Sweep) -> None:
    """Print each value of each dimension beside the recipe's own."""
    out = console()
    center = found.center
    if center.recipe is not None:
        rate = "" if center.tokens_per_s is None else f"  {thousands(center.tokens_per_s)} tokens/s"
        out.say((str(center.recipe_id), "bold"), f"  {center.recipe.describe()}{rate}")
    rows = found.variations
    out.print(
        column_table(
            "one dimension at a time", SWEEP, rows, width=out.width, bold=lambda row: row.is_own
        )
    )
    out.say(
        "* the recipe itself; changes are of tokens/s, measured and estimated, from its own",
        style="dim",
    )


def print_measured_scaling(found: MeasuredScaling) -> None:
    """Print strong and weak scaling."""
    out = console()
    for title, rows in zip(SCALINGS, (found.strong, found.weak), strict=True):
        out.print()
        out.print(column_table(title, SCALED, rows, width=out.width))
        whole = (row.nodes for row in rows if 1.0 in (row.efficiency, row.estimated_efficiency))
        if (fewest := next(whole, None)) is not None:
            out.say(
                f"efficiency: tokens/s per device relative to {counted(fewest, 'node')}",
                style="dim",
            )
