"""Campaigns and stores on the terminal: a space, campaigns, where one stands, failures, imports and store checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from frontrunner.results.outcome import FailureKind
from frontrunner.results.predictions import outlook_of
from frontrunner.results.records import IMPORTED, Campaign, CampaignSummary
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import FailedTrial, Status
from frontrunner.search.budget import outlook_in_words
from frontrunner.search.driver import Conclusion
from frontrunner.spaces.legality import marks
from frontrunner.spaces.space import Survey
from frontrunner.text import counted, node_time, plain, seconds, thousands
from frontrunner.views.columns import CAMPAIGNS, ORIGINS
from frontrunner.views.terminal import Terminal, column_table, console, ruled_table

if TYPE_CHECKING:
    from frontrunner.exchange import Import
    from frontrunner.results.check import Check
    from frontrunner.results.pruning import Prunable

MOST_PROBLEMS, MOST_REASONS, MOST_DISAGREEMENTS = 20, 12, 5
PROBLEM = "{model}, {devices} x {device}, {sequence_length} tokens, batch {global_batch}, {precision}"
MOST_FOLDERS = 5
MOST_CELL = 60
WIDE = 125


def print_survey(survey: Survey) -> None:
    """Print how many recipes a space has, and why the others are refused."""
    out = console()
    out.say(
        f"{survey.points:,} points: {len(survey.recipes):,} legal recipes, "
        f"{survey.repeats:,} other names of the same recipes, {sum(survey.refusals.values()):,} refused"
    )
    searched = {name: values for name, values in survey.dimensions.items() if len(values) > 1}
    out.say("choices: " + ", ".join(f"{name} {len(values)}" for name, values in searched.items()))
    if survey.refusals:
        table = ruled_table(None, ("refused", "right"), "reason", ("for example", "fold"))
        for code, count, example in survey.refused_by_count():
            table.add_row(f"{count:,}", code, Text(example))
        out.print(table)
    found = [(mark.code, mark.text) for recipe in survey.recipes for mark in marks(recipe, survey.problem)]
    texts = dict(found)
    for code, count in Counter(code for code, _ in found).items():
        out.say(f"note: {count:,} legal recipes are marked {code}: {texts[code]}", style="dim")


def print_campaigns(summaries: Sequence[CampaignSummary]) -> None:
    """Print the list of campaigns."""
    out = console()
    if summaries:
        out.print(column_table(None, CAMPAIGNS, summaries, width=out.width))
    else:
        out.say("no campaign yet: frontrunner launch FILE")


def print_campaign(campaign: Campaign, *, state: str = "") -> None:
    """Print a campaign: its state, its problem, and what it has spent."""
    out = console()
    reason = f": {campaign.state_reason}" if campaign.state_reason else ""
    out.say((campaign.name, "bold"), f"  {state or campaign.state}{reason}")
    print_origin(campaign.figures)
    out.say(f"problem   {problem_line(campaign)}")
    out.say(f"search    {campaign.strategy} over {campaign.legal_recipes:,} legal recipes")
    if campaign.figures != IMPORTED:
        driving = f"{node_time(campaign.node_seconds_spent)} in probes, {seconds(campaign.driver_seconds)} of driving"
        out.say(f"spent     {driving}")


def print_origin(figures: str) -> None:
    """Print where figures come from that nobody measured."""
    if figures in ORIGINS:
        console().say(ORIGINS[figures], style="yellow")


def problem_line(campaign: Campaign) -> str:
    """Return what a campaign's creator stated of its problem."""
    return ", ".join(f"{key} {value}" for key, value in campaign.problem_summary.items() if key != "figures")


def print_status(status: Status) -> None:
    """Print where a campaign stands."""
    out = console()
    campaign = status.campaign
    print_campaign(campaign, state=status.state_in_words)
    if status.driver_is_live:
        out.say(f"driven by {campaign.driver}")
    elif campaign.state == CampaignState.RUNNING:
        out.say(f"its driver is gone; to continue: frontrunner resume {campaign.name}", style="yellow")
    counts = ", ".join(f"{count} {state}" for state, count in status.trials.items() if count)
    out.say(f"recipes   {counts or 'none tried'} of {campaign.legal_recipes:,} legal")
    if kinds := [f"{count} {kind}" for kind, count in status.failures.items() if kind is not FailureKind.LOST]:
        more = f"  (frontrunner failures {campaign.name})" if status.trials[TrialState.FAILED] else ""
        out.say(f"failures  {', '.join(kinds)}{more}")
    if lost := status.failures.get(FailureKind.LOST):  # no failure of a recipe
        out.say(f"lost      {counted(lost, 'attempt')}, interrupted or withdrawn")
    if status.best is not None:
        speed = thousands(status.best.standing.tokens_per_s)
        out.say(f"best      {status.best.recipe_id}  {speed} tokens/s  {status.best.recipe.describe()}")
    if status.outlook is not None:
        out.say(f"outlook   {outlook_in_words(outlook_of(status.outlook)[0])}")
    for event in status.last_events:
        data = " ".join(f"{key}={value}" for key, value in event.data.items())
        out.say(f"{event.at[:19].replace('T', ' ')}  {event.kind}  {data}", style="dim")


def print_conclusion(conclusion: Conclusion) -> None:
    """Print how a driver left its campaign."""
    out = console()
    out.say((conclusion.state, "bold"), f": {conclusion.reason}")
    out.say(f"measured  {counted(conclusion.measured, 'recipe')}")
    out.say(f"budget    {', '.join(str(limit) for limit in conclusion.limits) or 'no limit'}")
    if conclusion.last_failure is not None:
        out.say(f"failure   {conclusion.last_failure.kind}: {conclusion.last_failure.message}")


def print_failures(failed: Sequence[FailedTrial]) -> None:
    """Print each failed recipe with the end of its log."""
    out = console()
    if not failed:
        out.say("nothing failed")
    for row in failed:
        tries = f" after {row.attempts} attempts" if row.attempts > 1 else ""
        out.say((row.failure.kind, "bold red"), f"{tries}  {row.trial.recipe_id}  {row.trial.recipe.describe()}")
        out.say(f"  {row.failure.message}")
        for line in row.failure.log_tail.splitlines()[-5:]:
            out.print(Text(f"  | {plain(line)}", style="dim"), overflow="ellipsis", no_wrap=True)
        if row.failure.log_path:
            out.say(f"  log: {row.failure.log_path}", style="dim", whole=True)


def print_import(found: Import) -> None:
    """Print the campaigns that hold a table's rows, what was left out and why, and which rows disagree."""
    out = console()
    verb = "would be kept" if found.is_preview else "kept"
    out.say(f"{found.file}: {found.taken_rows:,} of {found.rows:,} rows {verb} in {found.store}")
    if found.problems:
        _print_problems(out, found)
    if found.known_rows:
        out.say(f"already in the store, and not kept twice: {counted(found.known_rows, 'row')}")
    if found.left_out:
        out.say(f"left out: {counted(sum(left.rows for left in found.left_out), 'row')}")
        for left in found.left_out[:MOST_REASONS]:
            where = "" if left.first_row is None else f" (first: row {left.first_row})"
            out.say(f"  {left.rows:>5} x {left.reason}{where}")
        if len(found.left_out) > MOST_REASONS:
            out.say(f"        and {len(found.left_out) - MOST_REASONS} more reasons (--json has them all)")
    if found.disagreeing:
        recipes = counted(len(found.disagreeing), "recipe")
        out.say(f"kept as repeats, though they differ by more than 25 %: the rows of {recipes}")
    for repeats in found.disagreeing[:MOST_DISAGREEMENTS]:
        rows = ", ".join(map(str, repeats.rows))
        out.say(f"  rows {rows}: {', '.join(map(seconds, repeats.step_times_s))}  {repeats.recipe}")


def _print_problems(out: Terminal, found: Import) -> None:
    is_wide = len(found.problems) == 1 or out.width >= WIDE
    numbers = (("rows", "right"), ("recipes", "right"), ("failed", "right"))
    table = ruled_table(None, ("campaign", "fold"), *([("problem", "fold")] if is_wide else []), *numbers)
    for row in found.problems[:MOST_PROBLEMS]:
        problem = Text(plain(PROBLEM.format_map(row.problem)))
        cells = (row.campaign, problem) if is_wide else (row.campaign,)
        table.add_row(*cells, f"{row.rows:,}", f"{row.recipes:,}", f"{row.failed:,}")
    out.print(table)
    if len(found.problems) > MOST_PROBLEMS:
        out.say(f"and {len(found.problems) - MOST_PROBLEMS:,} more campaigns: frontrunner campaigns")


def print_check(found: Check) -> None:
    """Print what does not hold in a store, each with its first rows."""
    out = console()
    read = f"{counted(found.campaigns, 'campaign')}, {counted(found.attempts, 'attempt')}, {found.rules} rules"
    out.say(f"{found.store}: {read}")
    for finding in found.findings:
        word = "BROKEN" if finding.is_fault else f"odd, {finding.odd_as}"
        out.say(f"{word}: {finding.says}: not so in {counted(finding.count, 'row')}")
        for row in finding.rows:
            out.say("  " + ", ".join(f"{key} {plain(str(value))[:MOST_CELL]}" for key, value in row.items()))
    if not found.findings:
        out.say("all hold")


def print_prunable(found: Sequence[Prunable], *, removed: bool) -> None:
    """Print the folders that can be removed by campaign, and what to do next."""
    out = console()
    for part in found:
        out.say(f"{part.campaign}: {counted(len(part.folders), 'run folder')}, {counted(part.bytes, 'byte')}")
        for folder in part.folders[:MOST_FOLDERS]:
            out.say(f"  {folder}", whole=True)
        if len(part.folders) > MOST_FOLDERS:
            out.say(f"  and {len(part.folders) - MOST_FOLDERS:,} more")
    done = "removed" if removed else "nothing was removed yet; to remove them: add --yes"
    out.say(done if found else "there is nothing to remove")
