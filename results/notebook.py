"""Values as HTML for notebooks: small tables of escaped text, without script or style."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from frontrunner.html_tables import facts, table
from frontrunner.results.states import TrialState
from frontrunner.text import gib, node_time, percent, seconds, thousands

if TYPE_CHECKING:
    from frontrunner.results.explain import Appearance, Explanation
    from frontrunner.results.ranking import RankedRecipe
    from frontrunner.results.records import Campaign, CampaignSummary
    from frontrunner.results.status import FailedTrial, Status

RANKING = ("#", "recipe", "choices", "tokens/s", "gap", "TFLOPS/device", "MFU", "peak GiB", "step", "spread")
CAMPAIGNS = (
    "campaign",
    "state",
    "figures",
    "search",
    "measured",
    "failed",
    "best tokens/s",
    "node-hours",
    "begun, UTC",
)
FAILURES = ("trial", "recipe", "choices", "failure", "why", "attempts")
APPEARANCES = ("campaign", "figures", "trial", "rank", "tokens/s", "step", "spread", "peak GiB", "attempts")


def ranking_html(rows: Sequence[RankedRecipe]) -> str:
    """Ranked recipes, a row each; says so where their figures were not measured."""
    return table(RANKING, (ranked_cells(row) for row in rows), caption=not_measured(rows))


def not_measured(rows: Iterable[RankedRecipe]) -> str:
    """Where figures come from that nobody measured; nothing for others."""
    kinds = sorted({row.figures for row in rows} - {"measured"})
    return f"{', '.join(kinds)} figures" if kinds else ""


def ranked_cells(row: RankedRecipe) -> tuple[str, ...]:
    """A ranked recipe's cells under `RANKING`."""
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


def campaigns_html(campaigns: Sequence[CampaignSummary]) -> str:
    """Campaigns, a row each."""
    return table(CAMPAIGNS, (_campaign_cells(campaign) for campaign in campaigns))


def _campaign_cells(campaign: CampaignSummary) -> tuple[str, ...]:
    best = campaign.best_tokens_per_s
    return (
        campaign.name,
        campaign.state,
        campaign.figures,
        f"{campaign.strategy} over {campaign.legal_recipes:,}",
        *(f"{campaign.probes.get(state, 0):,}" for state in (TrialState.MEASURED, TrialState.FAILED)),
        "-" if best is None else thousands(best),
        thousands(campaign.node_seconds_spent / 3600),
        campaign.created_at[:16].replace("T", " "),
    )


def failures_html(failures: Sequence[FailedTrial]) -> str:
    """Failed trials, a row each, without their logs."""
    rows = (
        (
            str(failed.trial.number),
            failed.trial.recipe_id,
            failed.trial.recipe.describe(),
            failed.failure.kind,
            failed.failure.message,
            str(failed.attempts),
        )
        for failed in failures
    )
    return table(FAILURES, rows, caption="" if failures else "nothing failed")


def explanation_html(explanation: Explanation) -> str:
    """A recipe's choices, and what came of it in each campaign."""
    rows = (_appearance_cells(appearance) for appearance in explanation.appearances)
    return explanation.recipe._repr_html_() + table(APPEARANCES, rows, caption=f"recipe {explanation.recipe_id}")


def _appearance_cells(appearance: Appearance) -> tuple[str, ...]:
    standing, rank = appearance.standing, f"{appearance.rank} of {appearance.ranked_recipes}"
    measured = ("-",) * 5
    if standing is not None:
        speed, step = thousands(standing.tokens_per_s), seconds(standing.step_time_s_median)
        memory = gib(standing.peak_memory_bytes_max_rank)
        measured = (rank, speed, step, percent(standing.step_time_spread), memory)
    attempts = ", ".join(_words(appearance))
    return (
        appearance.campaign.name,
        appearance.campaign.figures,
        str(appearance.trial.number),
        *measured,
        attempts,
    )


def _words(appearance: Appearance) -> Iterator[str]:
    """What came of each attempt."""
    for row in appearance.attempts:
        kind = getattr(row.outcome, "kind", None)
        yield str(row.attempt.state) if kind is None else f"{row.attempt.state} ({kind})"
