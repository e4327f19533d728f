"""Campaigns and recipes on the terminal: rankings, one recipe, one campaign, failures, imports and
store checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from rich.text import Text

from frontrunner.config.settings import located
from frontrunner.fronts import OBJECTIVE_VALUES, OnFront
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.predictions import outlook_of
from frontrunner.results.pruning import Deleted
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import (
    IMPORTED,
    NODE_TYPES,
    SEVERAL_NODE_TYPES,
    Campaign,
    CampaignSummary,
    Labels,
)
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import Appearance, Explanation, FailedTrial, Status
from frontrunner.running_trials import Running, why_chosen
from frontrunner.search.budget import Limit, outlook_in_words, unused
from frontrunner.search.driver import Conclusion
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.batches import useful_batch
from frontrunner.spaces.legality import marks
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.spaces.space import Survey
from frontrunner.text import counted, gib, mib, node_time, percent, plain, seconds, thousands
from frontrunner.views.columns import (
    CAMPAIGNS,
    COLUMNS,
    ENDINGS,
    FIGURES,
    ORIGINS,
    Column,
    against,
    expert_balance,
    used,
)
from frontrunner.views.history import noticed
from frontrunner.views.terminal import Terminal, column_table, console, ruled_table

if TYPE_CHECKING:
    from frontrunner.exchange import Import
    from frontrunner.results.check import Check
    from frontrunner.results.pruning import Prunable

MOST_PROBLEMS, MOST_REASONS, MOST_DISAGREEMENTS = 20, 12, 5
PROBLEM = (
    "{model}, {devices} x {device}, {sequence_length} tokens, batch {global_batch}, {precision}"
)
MOST_FOLDERS = 5
CONFIRMED = 5
MOST_NODES = 8
MOST_CELL = 60
WIDE = 125


def print_survey(survey: Survey) -> None:
    """Print how many recipes a space has, and why the others are refused."""
    out = console()
    out.say(
        f"{survey.points:,} points: {len(survey.recipes):,} legal recipes, "
        f"{survey.repeats:,} duplicates, {sum(survey.refusals.values()):,} illegal"
    )
    searched = {name: values for name, values in survey.dimensions.items() if len(values) > 1}
    out.say("choices: " + ", ".join(f"{name} {len(values)}" for name, values in searched.items()))
    if survey.refusals:
        table = ruled_table(None, ("refused", "right"), "reason", ("for example", "fold"))
        for code, count, example in survey.refused_by_count():
            table.add_row(f"{count:,}", code, Text(example))
        out.print(table)
    batch = useful_batch(survey)
    if batch is not None:
        out.say(
            f"note: with problem.global_batch = {batch:,} more recipes would be legal", style="dim"
        )
    marked = Counter(
        survey.recipes.each(lambda recipe: tuple(marks(recipe, survey.problem))).tolist()
    )
    texts = {mark.code: mark.text for found in marked for mark in found}
    counts = Counter(dict.fromkeys(texts, 0))
    for found, recipes in marked.items():
        counts.update(dict.fromkeys({mark.code for mark in found}, recipes))
    for code, count in counts.items():
        out.say(f"note: {count:,} legal recipes are marked {code}: {texts[code]}", style="dim")


def print_campaigns(summaries: Sequence[CampaignSummary]) -> None:
    """Print the list of campaigns."""
    out = console()
    if summaries:
        out.print(column_table(None, used(CAMPAIGNS, summaries), summaries, width=out.width))
    else:
        out.say(
            located(
                "no campaign; to list hidden ones too: frontrunner campaigns --all; to begin:"
                " frontrunner launch FILE"
            )
        )


def print_labels(labels: Labels) -> None:
    """Print what people say of a campaign."""
    out = console()
    out.say(f"tags    {', '.join(labels.tags) or '-'}")
    out.say(f"note    {labels.note or '-'}")
    if labels.hidden:
        out.say("hidden  lists leave it out")


def print_campaign(campaign: Campaign, *, state: str = "") -> None:
    """Print a campaign: its state, its problem, and what it has spent."""
    out = console()
    reason = f": {campaign.state_reason}" if campaign.state_reason else ""
    out.say((campaign.name, "bold"), f"  {state or campaign.state}{reason}")
    print_origin(campaign.figures)
    out.say(f"problem   {problem_line(campaign)}")
    print_node_types(campaign)
    out.say(f"search    {campaign.strategy} over {campaign.legal_recipes:,} legal recipes")
    if campaign.figures != IMPORTED:
        driving = (
            f"{node_time(campaign.node_seconds_spent)} in probes,"
            f" {seconds(campaign.driver_seconds)} of driving"
        )
        out.say(f"spent     {driving}")


def print_origin(figures: str) -> None:
    """Print where figures come from that nobody measured."""
    if figures in ORIGINS:
        console().say(ORIGINS[figures], style="yellow")


def print_node_types(campaign: Campaign) -> None:
    """Print what is unknown of a campaign on several node types; nothing for others."""
    if NODE_TYPES in campaign.problem_summary:
        console().say(
            f"cluster   {SEVERAL_NODE_TYPES}: `group` names a recipe's node type; its price is"
            " unknown",
            style="yellow",
        )


def problem_line(campaign: Campaign) -> str:
    """Return what a campaign's creator stated of its problem."""
    words = [
        f"{key} {value}"
        for key, value in campaign.problem_summary.items()
        if key not in ("figures", NODE_TYPES)
    ]
    return ", ".join(words)


def print_status(status: Status) -> None:
    """Print where a campaign stands."""
    out = console()
    campaign = status.campaign
    print_campaign(campaign, state=status.state_in_words)
    if status.driver_is_live:
        out.say(f"driven by {campaign.driver}")
    elif campaign.state == CampaignState.RUNNING:
        out.say(
            located(f"its driver is gone; to continue: frontrunner resume {campaign.name}"),
            style="yellow",
        )
    counts = ", ".join(f"{count} {state}" for state, count in status.trials.items() if count)
    out.say(f"recipes   {counts or 'none tried'} of {campaign.legal_recipes:,} legal")
    if kinds := [
        f"{count} {kind}" for kind, count in status.failures.items() if kind is not FailureKind.LOST
    ]:
        more = (
            located(f"  (frontrunner failures {campaign.name})")
            if status.trials[TrialState.FAILED]
            else ""
        )
        out.say(f"failures  {', '.join(kinds)}{more}")
    if lost := status.failures.get(FailureKind.LOST):  # no failure of a recipe
        out.say(f"lost      {counted(lost, 'attempt')}, interrupted or withdrawn")
    for line in status.nodes_aside_in_words:
        out.say(f"avoided   {line}", style="yellow")
    if status.best is not None:
        speed = thousands(status.best.standing.tokens_per_s)
        out.say(
            f"best      {status.best.recipe_id}  {speed} tokens/s  {status.best.recipe.describe()}"
        )
        _print_doubts(status.best)
        if (why := status.best.why_unconfirmed) is not None:
            out.say(f"! {why}", style="yellow")
    print_left_ranking(status)
    if status.outlook is not None:
        out.say(f"outlook   {outlook_in_words(outlook_of(status.outlook)[0])}")
    for event in status.last_events:
        by = f" (by {event.user})" if event.user else ""
        what = noticed(event.kind, event.data, running=False)
        out.say(f"{event.at[:19].replace('T', ' ')}  {what}{by}", style="dim")


def print_running(running: Running) -> None:
    """Print what runs in a campaign now, and the time that its budget leaves."""
    out = console()
    for number, one in enumerate(running.probes):
        label = "running" if number == 0 else ""
        does = f"{seconds(round(one.seconds))}, {one.step_in_words}"
        out.say(f"{label:<10}[{one.trial_number}] {one.recipe.describe()}  {does}")
        out.say(f"          {why_chosen(one, running.strategy)}", style="dim")
    if (more := running.total - len(running.probes)) > 0:
        out.say(f"          and {more:,} more")
    if running.driver is not None and running.limits:
        left = running.seconds_left
        out.say(
            "time left"
            f" {'not known yet' if left is None else f'about {seconds(round(left))} at this pace'}"
        )


def print_conclusion(conclusion: Conclusion) -> None:
    """Print how a driver left its campaign."""
    out = console()
    out.say((conclusion.state, "bold"), f": {conclusion.reason}")
    out.say(f"measured  {counted(conclusion.measured, 'recipe')}")
    out.say(f"budget    {', '.join(map(str, conclusion.limits)) or 'no limit'}")
    if conclusion.last_failure is not None:
        out.say(f"failure   {conclusion.last_failure.kind}: {conclusion.last_failure.message}")


def print_failures(failed: Sequence[FailedTrial]) -> None:
    """Print each failed recipe with the end of its log."""
    out = console()
    if not failed:
        out.say("nothing failed")
    for row in failed:
        tries = f" after {row.attempts} attempts" if row.attempts > 1 else ""
        out.say(
            (row.failure.kind, "bold red"),
            f"{tries}  {row.trial.recipe_id}  {row.trial.recipe.describe()}",
        )
        out.say(f"  {row.failure.message}")
        for line in row.failure.log_tail.splitlines()[-5:]:
            out.print(Text(f"  | {plain(line)}", style="dim"), overflow="ellipsis", no_wrap=True)
        if row.failure.log_path:
            out.say(f"  log: {row.failure.log_path}", style="dim", whole=True)


def print_import(found: Import) -> None:
    """Print the campaigns that hold a table's rows, what was left out and why, and which rows
    disagree.
    """
    out = console()
    verb = "would be kept" if found.is_preview else "kept"
    out.say(f"{found.file}: {found.taken_rows:,} of {found.rows:,} rows {verb} in {found.store}")
    if found.problems:
        is_wide = (
            len(found.problems) == 1 or out.width >= WIDE
        )  # the names of several describe the problem
        numbers = (("rows", "right"), ("recipes", "right"), ("failed", "right"))
        table = ruled_table(
            None, ("campaign", "fold"), *([("problem", "fold")] if is_wide else []), *numbers
        )
        for row in found.problems[:MOST_PROBLEMS]:
            problem = [Text(plain(PROBLEM.format_map(row.problem)))] if is_wide else []
            table.add_row(
                row.campaign, *problem, f"{row.rows:,}", f"{row.recipes:,}", f"{row.failed:,}"
            )
        out.print(table)
        if len(found.problems) > MOST_PROBLEMS:
            out.say(
                located(
                    f"and {len(found.problems) - MOST_PROBLEMS:,} more campaigns: frontrunner"
                    " campaigns"
                )
            )
    if found.known_rows:
        out.say(f"already in the store, and not kept twice: {counted(found.known_rows, 'row')}")
    if found.left_out:
        out.say(f"left out: {counted(sum(left.rows for left in found.left_out), 'row')}")
        for left in found.left_out[:MOST_REASONS]:
            where = "" if left.first_row is None else f" (first: row {left.first_row})"
            out.say(f"  {left.rows:>5} x {left.reason}{where}")
        if len(found.left_out) > MOST_REASONS:
            out.say(
                f"        and {len(found.left_out) - MOST_REASONS} more reasons (--json has them"
                " all)"
            )
    if found.disagreeing:
        recipes = counted(len(found.disagreeing), "recipe")
        out.say(f"kept as repeats, though they differ by more than 25 %: the rows of {recipes}")
    for repeats in found.disagreeing[:MOST_DISAGREEMENTS]:
        rows = ", ".join(map(str, repeats.rows))
        out.say(f"  rows {rows}: {', '.join(map(seconds, repeats.step_times_s))}  {repeats.recipe}")


def print_check(found: Check) -> None:
    """Print what does not hold in a store, each with its first rows."""
    out = console()
    read = (
        f"{counted(found.campaigns, 'campaign')}, {counted(found.attempts, 'attempt')},"
        f" {found.rules} rules"
    )
    out.say(f"{found.store}: {read}")
    for finding in found.findings:
        word = "BROKEN" if finding.is_fault else f"odd, {finding.odd_as}"
        out.say(f"{word}: {finding.says}: not so in {counted(finding.count, 'row')}")
        for row in finding.rows:
            out.say(
                "  "
                + ", ".join(f"{key} {plain(str(value))[:MOST_CELL]}" for key, value in row.items())
            )
    if not found.findings:
        out.say("all hold")


def print_prunable(found: Sequence[Prunable], *, removed: bool) -> None:
    """Print the folders that can be removed by campaign, and what to do next."""
    out = console()
    for part in found:
        rows = f"{counted(part.rows, 'row')} of the store, " if isinstance(part, Deleted) else ""
        out.say(
            f"{part.campaign}: {rows}{counted(len(part.folders), 'run folder')},"
            f" {counted(part.bytes, 'byte')}"
        )
        for folder in part.folders[:MOST_FOLDERS]:
            out.say(f"  {folder}", whole=True)
        if len(part.folders) > MOST_FOLDERS:
            out.say(f"  and {len(part.folders) - MOST_FOLDERS:,} more")
    done = "removed" if removed else "nothing was removed yet; to remove them: add --yes"
    out.say(done if found else "there is nothing to remove")


def print_deleted(found: Deleted) -> None:
    """Print what was deleted, or would be."""
    print_prunable([found], removed=not found.is_preview)


Row = TypeVar("Row")
_FRONT_FIRST = ("rank", "recipe_id", "tokens_per_s")
FRONT: tuple[Column[OnFront], ...] = (
    *(column.of(attrgetter("ranked")) for column in COLUMNS if column.key in _FRONT_FIRST),
    Column("headroom_bytes", "headroom GiB", attrgetter("headroom_bytes"), gib),
    Column("nodes", "nodes", attrgetter("nodes"), "{:,}".format),
    *(
        column.of(attrgetter("ranked"))
        for column in COLUMNS
        if column.key not in (*_FRONT_FIRST, "gap_percent")
    ),
)


def print_ranking(ranking: Sequence[RankedRecipe] | RankedRecipe, *, title: str = "") -> None:
    """Print ranked recipes, with a note where steps spread too far to trust the order."""
    _print_rows(
        title, COLUMNS, [ranking] if isinstance(ranking, RankedRecipe) else ranking, lambda row: row
    )


def print_front(
    front: Sequence[OnFront], objectives: Sequence[str] = tuple(OBJECTIVE_VALUES)
) -> None:
    """Print a front, fastest first."""
    title = f"Pareto front of {' and '.join([', '.join(objectives[:-1]), objectives[-1]])}"
    _print_rows(title, FRONT, front, lambda row: row.ranked)


def _print_rows(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    ranked: Callable[[Row], RankedRecipe],
) -> None:
    out = console()
    for row in map(ranked, rows):
        if row.rank == 1 and (why := row.why_unconfirmed) is not None:
            out.say(f"! {why}", style="yellow")
    out.print(
        column_table(title, columns, rows, width=out.width, bold=lambda row: ranked(row).rank == 1)
    )
    for origin in sorted({ranked(row).figures for row in rows}):
        print_origin(origin)
    if any(ranked(row).standing.is_noisy for row in rows):
        out.say(
            "! step times spread by more than 5 %: the order near such a row may change",
            style="dim",
        )
    for row in map(ranked, rows):
        _print_doubts(row)


def _print_doubts(row: RankedRecipe) -> None:
    if row.doubts:
        console().say(f"! {row.recipe_id}: {'; '.join(row.doubts)}", style="dim")


def print_left_ranking(status: Status) -> None:
    """Print which recipes were measured and left the ranking, and why."""
    out = console()
    for left in status.left_ranking:
        out.say(f"! {left.left_the_ranking}", style="yellow")
    more = status.left_ranking_count - len(status.left_ranking)
    if more:
        out.say(
            located(f"! and {more:,} more; see: frontrunner failures {status.campaign.name}"),
            style="yellow",
        )


def print_outlook(outlook: Outlook | None, limits: Sequence[Limit]) -> None:
    """Print what is left to gain, where the strategy predicts it, and what is left of the
    budget.
    """
    if outlook is None:
        return
    out = console()
    out.say(f"outlook: {outlook_in_words(outlook)}")
    if limits:
        out.say(f"unused budget: {unused(limits)}")


def print_next_commands(
    campaign: str,
    winner: RankedRecipe,
    objectives: Sequence[str] = ("tokens",),
    *,
    replays: bool = True,
    elsewhere: bool = False,
) -> None:
    """Print what to do next as commands to copy; `elsewhere` is whether another campaign measured
    the winner too.
    """
    out, where = console(), f" --campaign {campaign}" if elsewhere else ""
    several = f" --objectives {','.join(objectives)}" if len(objectives) > 1 else ""
    commands = {}
    if winner.why_unconfirmed is not None or winner.standing.is_noisy:
        confirm = f"frontrunner measure --confirm {CONFIRMED} --campaign {campaign}"
        commands[confirm] = "measure the first places again"
    commands |= {
        f"frontrunner show {winner.recipe_id}{where}": "why it ranks first",
        f"frontrunner pareto {campaign}{several}": (
            "the front" if several else "speed against memory"
        ),
    }
    if replays:
        commands[f"frontrunner replay {winner.recipe_id} --steps 200"] = "train with it"
    lines = {located(command): what for command, what in commands.items()}
    out.say("\nnext:", style="bold")
    width = max(map(len, lines))
    has_room = width + max(map(len, lines.values())) + 6 <= out.width
    for line, what in lines.items():
        if has_room:
            out.say(f"  {line:<{width}}  # {what}")
        else:  # a comment never breaks a command that is copied
            out.say(f"  # {what}")
            out.say(f"  {line}", whole=True)


def print_explanation(explanation: Explanation) -> None:
    """Print everything about one recipe, campaign by campaign."""
    out = console()
    recipe = explanation.recipe
    out.say((explanation.recipe_id, "bold"), f"  {recipe.describe()}")
    out.say(
        f"engine {recipe.engine}, {recipe.devices} devices, global batch {recipe.global_batch_seqs}"
        " sequences"
    )
    for appearance in explanation.appearances:
        _print_appearance(out, appearance)


def _print_appearance(out: Terminal, appearance: Appearance) -> None:
    campaign = appearance.campaign
    out.say("\ncampaign ", (campaign.name, "bold"), f"  ({problem_line(campaign)})")
    print_origin(campaign.figures)
    if appearance.standing is not None:
        out.say(f"rank {appearance.rank} of {appearance.ranked_recipes} by tokens/s")
        out.print(column_table(None, FIGURES, [appearance.standing], width=out.width))
        with_recompute = thousands(appearance.standing.hardware_tflops_per_device)
        out.say(
            f"  {with_recompute} TFLOPS/device with what is computed a second time", style="dim"
        )
        if appearance.mfu_megatron is not None:
            out.say(
                f"  MFU {percent(appearance.mfu_megatron)} as Megatron-LM counts, attention halved",
                style="dim",
            )
    for place in ("above", "below"):
        if neighbor := getattr(appearance, place):
            out.say(f"  next {place}: {neighbor.recipe_id}, {against(neighbor, place)}")
    table = ruled_table("attempts", ("attempt", "fold"), ("outcome", "fold"), ("detail", "fold"))
    for row in appearance.attempts:
        detail, where = _detail(row.outcome), row.nodes
        if where is not None:
            detail.append(
                f"; on {', '.join(where.names[:MOST_NODES])}"
                + ", ..." * (len(where.names) > MOST_NODES)
            )
        table.add_row(
            f"{appearance.trial.number}.{row.attempt.number}", str(row.attempt.state), detail
        )
    out.print(table)
    latest = next((row.provenance for row in reversed(appearance.attempts) if row.provenance), None)
    if latest is not None:
        versions = ", ".join(f"{name} {version}" for name, version in latest.versions.items())
        out.say(f"on {latest.host}, {latest.device}; {versions}", style="dim")
        out.say(f"command: {' '.join(latest.command_line)}", style="dim")
    measured = [row.outcome for row in appearance.attempts if isinstance(row.outcome, Measurement)]
    if (
        measured
        and (recorded := measured[-1].telemetry) is not None
        and recorded.attention is not None
    ):
        kernel = f"attention by {recorded.attention}" + (
            ", S x S scores in memory" * (recorded.attention == "math")
        )
        out.say(f"ranks: {', '.join((kernel, *recorded.versions))}", style="dim")


def _detail(outcome: Measurement | Failure | None) -> Text:
    if outcome is None:
        return Text("running")
    if isinstance(outcome, Failure):
        return Text(plain(f"{outcome.kind}: {outcome.message}"))
    steps = " ".join(thousands(1000 * time) for time in outcome.step_times_s)
    ended = "" if outcome.ended is None else f"; {ENDINGS[outcome.ended]}"
    losses = f"; loss {outcome.losses[0]:.3f} to {outcome.losses[-1]:.3f}" if outcome.losses else ""
    started = (
        f"; built in {seconds(outcome.build_time_s)}, first step"
        f" {seconds(outcome.first_step_time_s)}"
    )
    above = outcome.memory_above_idle_bytes_max_rank
    needs = "" if above is None else f"; needs {mib(above)} MiB above an idle rank"
    doubts = (f"! {why}" for why in outcome.doubts)
    more = "".join(f"; {clause}" for clause in (expert_balance(outcome), *doubts) if clause)
    return Text(
        f"steps {steps} ms{ended}{losses}{started}{needs}; {node_time(outcome.node_seconds)}{more}"
    )


def print_recipe(recipe: Recipe) -> None:
    """Print the choices that are not neutral, and what follows from them."""
    out = console()
    out.say("recipe ", (recipe.describe(), "bold"))
    for one in DIMENSIONS.values():
        if getattr(recipe, one.field) != one.neutral:
            value = recipe.layers_name if one.kind == "layers" else one.of(recipe)
            out.say(f"  {one.field:<20} {value}")
    for own in recipe.custom:
        out.say(f"  {own.name:<20} {own.shown()}  ({own.flag or own.env})")
    for field in ("data_parallel", "global_batch_seqs"):
        out.say(f"  {field:<20} {getattr(recipe, field)}")
