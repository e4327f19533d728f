"""Campaigns on the terminal: what a space holds, the list of them, where one stands, and what failed in it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from frontrunner.results.outcome import FailureKind
from frontrunner.results.predictions import outlook_shares
from frontrunner.results.records import IMPORTED, CampaignSummary
from frontrunner.results.states import TrialState
from frontrunner.results.status import FailedTrial, Status
from frontrunner.search.stopping import outlook_in_words
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.legality import marks
from frontrunner.spaces.space import Survey
from frontrunner.text import node_time, plain, seconds, thousands
from frontrunner.views.render import ORIGINS, console, titled_table


def print_survey(survey: Survey) -> None:
    """What a space holds."""
    out = console()
    out.print(
        f"{survey.points:,} points: {len(survey.recipes):,} legal recipes, "
        f"{survey.repeats:,} other names of the same recipes, {sum(survey.refusals.values()):,} refused"
    )
    searched = {name: values for name, values in survey.dimensions.items() if len(values) > 1}
    out.print("choices: " + ", ".join(f"{name} {len(values)}" for name, values in searched.items()), soft_wrap=True)
    if survey.refusals:
        table = titled_table()
        table.add_column("refused", justify="right")
        table.add_column("reason")
        table.add_column("for example", overflow="fold")
        for code, count, example in survey.refused_by_count():
            table.add_row(f"{count:,}", code, example)
        out.print(table)
    remarks: dict[str, tuple[int, str]] = {}
    for recipe in survey.recipes:
        for mark in marks(recipe, survey.problem):
            remarks[mark.code] = remarks.get(mark.code, (0, ""))[0] + 1, mark.text
    for code, (count, text) in remarks.items():
        out.print(f"note: {count:,} legal recipes are marked {code}: {text}", style="dim")


def print_campaigns(summaries: Sequence[CampaignSummary]) -> None:
    """The list of campaigns."""
    table = titled_table()
    for title in ("campaign", "state", "strategy"):
        table.add_column(title, no_wrap=True)
    for title in ("legal", "measured", "failed", "best tokens/s", "spent", "created"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in summaries:
        fastest = "-" if row.best_tokens_per_s is None else thousands(row.best_tokens_per_s)
        table.add_row(
            row.name,
            row.state_in_words + ("" if row.figures in ("measured", row.strategy) else f", {row.figures}"),
            row.strategy,
            f"{row.legal_recipes:,}",
            f"{row.probes[TrialState.MEASURED]:,}",
            f"{row.probes[TrialState.FAILED]:,}",
            fastest,
            "-" if row.figures == IMPORTED else node_time(row.node_seconds_spent),
            row.created_at[:16].replace("T", " "),
        )
    console().print(table)


def print_status(status: Status) -> None:
    """Where a campaign stands."""
    out = console()
    campaign = status.campaign
    reason = f": {plain(campaign.state_reason)}" if campaign.state_reason else ""
    out.print(f"[bold]{campaign.name}[/bold]  {status.state_in_words}{reason}")
    if campaign.figures in ORIGINS:
        out.print(ORIGINS[campaign.figures], style="yellow")
    if status.driver_is_live:
        out.print(f"driven by {campaign.driver}")
    elif campaign.state == "running":
        out.print(f"its driver is gone; go on with: frontrunner resume {campaign.name}", style="yellow")
    counts = ", ".join(f"{count} {state}" for state, count in status.trials.items() if count)
    out.print(f"recipes   {counts or 'none tried'} of {campaign.legal_recipes:,} legal")
    _print_failed_attempts(status)
    if campaign.figures != IMPORTED:
        in_probes, driving = node_time(campaign.node_seconds_spent), seconds(campaign.driver_seconds)
        out.print(f"spent     {in_probes} in probes, {driving} of driving")
    if status.best is not None:
        best = status.best
        out.print(
            f"best      {best.recipe_id}  {thousands(best.standing.tokens_per_s)} tokens/s  {best.recipe.describe()}"
        )
    if status.outlook is not None:
        out.print(f"outlook   {outlook_in_words(Outlook(**outlook_shares(status.outlook)))}", soft_wrap=True)
    for event in status.last_events:
        data = " ".join(f"{key}={value}" for key, value in event.data.items())
        out.print(f"{event.at[:19].replace('T', ' ')}  {event.kind}  {plain(data)}", style="dim", markup=False)


def _print_failed_attempts(status: Status) -> None:
    """Failed attempts by kind; those that were lost say nothing of their recipes, and are no failures of a recipe."""
    kinds = {kind: count for kind, count in status.failures.items() if kind is not FailureKind.LOST}
    if kinds:
        more = f"  (frontrunner failures {status.campaign.name})" if status.trials[TrialState.FAILED] else ""
        console().print(f"failures  {', '.join(f'{count} {kind}' for kind, count in kinds.items())}{more}")
    if lost := status.failures.get(FailureKind.LOST):
        console().print(f"lost      {lost} attempt{'s' if lost > 1 else ''}, cut off or withdrawn")


def print_failures(failed: Sequence[FailedTrial]) -> None:
    """Each failed recipe with the end of its log."""
    out = console()
    for row in failed:
        tries = f" after {row.attempts} attempts" if row.attempts > 1 else ""
        out.print(
            f"[bold red]{row.failure.kind}[/bold red]{tries}  {row.trial.recipe_id}  {row.trial.recipe.describe()}"
        )
        out.print(f"  {plain(row.failure.message)}", markup=False)
        for line in row.failure.log_tail.splitlines()[-5:]:
            out.print(Text(f"  | {plain(line)}", style="dim"), overflow="ellipsis", no_wrap=True)
        if row.failure.log_path:
            out.print(f"  log: {row.failure.log_path}", style="dim", markup=False, soft_wrap=True)
