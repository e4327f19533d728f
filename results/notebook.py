"""Values as HTML for notebooks: small tables of escaped text, without script or style."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from frontrunner.text import gib, node_time, percent, plain, seconds, thousands

if TYPE_CHECKING:
    from frontrunner.results.ranking import RankedRecipe
    from frontrunner.results.records import Campaign
    from frontrunner.results.status import Status

RANKING = ("#", "recipe", "choices", "tokens/s", "gap", "TFLOPS/device", "MFU", "peak GiB", "step", "spread")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """A table; every cell is taken as text."""
    head = "".join(f"<th>{escaped(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f"<table>{top}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """What is known of one thing, a line each."""
    rows = "".join(f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in pairs)
    return f"<table><caption>{escaped(title)}</caption><tbody>{rows}</tbody></table>"


def escaped(text: str) -> str:
    """Text from outside as HTML, control characters shown."""
    return html.escape(plain(text))


def ranking_html(rows: Sequence[RankedRecipe]) -> str:
    """Ranked recipes, a row each; says so where their figures were not measured."""
    kinds = sorted({row.figures for row in rows} - {"measured"})
    caption = f"{', '.join(kinds)} figures" if kinds else ""
    return table(RANKING, (_ranked(row) for row in rows), caption=caption)


def _ranked(row: RankedRecipe) -> tuple[str, ...]:
    standing = row.standing
    return (
        str(row.rank),
        row.recipe_id,
        row.recipe.describe(),
        thousands(standing.tokens_per_s),
        f"{row.gap_percent:.1f} %",
        thousands(standing.model_tflops_per_device),
        percent(standing.mfu),
        gib(standing.peak_memory_bytes_max_rank),
        seconds(standing.step_time_s_median),
        percent(standing.step_time_spread),
    )


def campaign_html(campaign: Campaign) -> str:
    """A campaign: its state, what it is about, and what it has spent."""
    return facts(f"campaign {campaign.name}", campaign_facts(campaign))


def campaign_facts(campaign: Campaign) -> list[tuple[str, str]]:
    """The lines that tell of a campaign."""
    reason = f": {campaign.state_reason}" if campaign.state_reason else ""
    problem = ", ".join(f"{key} {value}" for key, value in campaign.problem_summary.items())
    return [
        ("state", f"{campaign.state}{reason}"),
        ("problem", problem),
        ("search", f"{campaign.strategy} over {campaign.legal_recipes:,} legal recipes"),
        ("spent", f"{campaign.outcomes} outcomes, {node_time(campaign.node_seconds_spent)}"),
    ]


def status_html(status: Status) -> str:
    """Where a campaign stands, with its best recipe."""
    trials = ", ".join(f"{count} {state}" for state, count in status.trials.items() if count) or "none"
    failed = ", ".join(f"{count} {kind}" for kind, count in status.failures.items()) or "none"
    told = facts(
        f"campaign {status.campaign.name}",
        [*campaign_facts(status.campaign), ("recipes tried", trials), ("failures", failed)],
    )
    return told if status.best is None else told + ranking_html([status.best])
