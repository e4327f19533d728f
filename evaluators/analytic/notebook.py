"""An estimate that was taken apart, as HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontrunner.html_tables import table
from frontrunner.text import gib, percent, seconds, size, thousands

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.breakdown import Breakdown


def breakdown_html(found: Breakdown) -> str:
    """Estimated and, where there are any, measured figures; then the parts of the step and of the memory."""
    estimate, measured = found.estimate, found.measured
    rows = [("estimated", estimate.step_time_s, estimate.tokens_per_s, estimate.mfu, estimate.peak_memory_bytes)]
    if measured is not None:
        rows.append(("measured", measured.step_time_s, measured.tokens_per_s, measured.mfu, measured.peak_memory_bytes))
    figures = [
        (name, seconds(step_s), thousands(tokens), percent(mfu), gib(peak)) for name, step_s, tokens, mfu, peak in rows
    ]
    caption = f"{estimate.recipe_id}: {estimate.recipe.describe()}, limited by {_words(estimate.limit)}"
    times = {_words(name): seconds(part) for name, part in estimate.step_parts_s.items() if part > 0}
    sizes = {_words(name): size(part) for name, part in estimate.memory_parts_bytes.items() if part > 0}
    return (
        table(("", "step", "tokens/s", "MFU", "peak GiB"), figures, caption=caption)
        + table(("part of the step", "time"), times.items())
        + table(("part of the memory", "fullest rank"), sizes.items())
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
