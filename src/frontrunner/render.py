"""Tables for the terminal. Every answer goes to stdout; colours only where it is a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frontrunner.results.explain import Appearance, Explanation, Neighbour
from frontrunner.results.outcome import Failure, Measurement, ProbeEnding
from frontrunner.results.outlooks import outlook_shares
from frontrunner.results.ranking import RankedRecipe
from frontrunner.results.records import CampaignSummary
from frontrunner.results.states import TrialState
from frontrunner.results.status import FailedTrial, Status
from frontrunner.search.budget import Limit
from frontrunner.search.stopping import outlook_in_words, unused
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.legality import marks
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey
from frontrunner.text import gib, percent, plain, seconds, thousands

PIPED_WIDTH = 140
"""Columns of a table that is not printed on a terminal."""


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
    """What else the recipe chooses, where it is not the plain choice."""
    parts = []
    if recipe.pipeline_parallel > 1:
        parts.append(recipe.schedule + (f" v{recipe.virtual_stages}" if recipe.virtual_stages > 1 else ""))
    if recipe.layers_per_stage:
        parts.append(f"layers {recipe.layers_name}")
    if recipe.recompute != "none":
        parts.append(f"recompute {recipe.recompute}")
    if recipe.sequence_parallel:
        parts.append("seq. parallel")
    if recipe.replication != "replicate":
        parts.append(recipe.replication)
    if recipe.secondary_partition > 1:
        parts.append(f"secondary {recipe.secondary_partition}")
    if recipe.rank_order != "tp-dp-pp":
        parts.append(f"order {recipe.rank_order}")
    if recipe.engine != "torch":
        parts.append(recipe.engine)
    parts.extend(recipe.levers)
    return ", ".join(parts) or "-"


def sharding(recipe: Recipe) -> str:
    """The sharding's name; a dash where there is one copy of the model."""
    return recipe.sharding_name if recipe.copies > 1 else "-"


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


_COLUMNS = (
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
    columns = [c for c in _COLUMNS if c.title != "MFU" or any(row.standing.mfu is not None for row in ranking)]
    while sum(_width(c, ranking) + 2 for c in columns) > width and any(c.drop for c in columns):
        columns.remove(max(columns, key=lambda c: c.drop))
    return columns


def _width(column: _Column, ranking: Sequence[RankedRecipe]) -> int:
    """What a column takes: one that never leaves is shown whole, a long name of a sharding included."""
    return column.width if column.drop else max([column.width, *(len(column.cell(row)) for row in ranking)])


ORIGINS = {
    "simulated": "simulated: rough formulas, nothing was trained",
    "imported": "imported: a table says so, nothing was trained here",
}
"""What stands beside figures that were not measured here, wherever they are shown."""


def print_ranking(ranking: Sequence[RankedRecipe], *, title: str) -> None:
    """The ranking; columns that do not fit are left out, the least telling first."""
    out = console()
    for origin in sorted({row.figures for row in ranking} & set(ORIGINS)):
        title += f" ({ORIGINS[origin]})"
    columns = _fitting(out.width, ranking)
    table = _table(title)
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
        table = _table(None)
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
    table = _table(None)
    for title in ("campaign", "state", "strategy"):
        table.add_column(title, no_wrap=True)
    for title in ("legal", "measured", "failed", "best tokens/s", "node-hours", "created"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in summaries:
        fastest = "-" if row.best_tokens_per_s is None else thousands(row.best_tokens_per_s)
        table.add_row(
            row.name,
            row.state if row.figures in ("measured", row.strategy) else f"{row.state}, {row.figures}",
            row.strategy,
            f"{row.legal_recipes:,}",
            f"{row.probes[TrialState.MEASURED]:,}",
            f"{row.probes[TrialState.FAILED]:,}",
            fastest,
            f"{row.node_seconds_spent / 3600:.3g}",
            row.created_at[:16].replace("T", " "),
        )
    console().print(table)


def print_status(status: Status) -> None:
    """Where a campaign stands."""
    out = console()
    campaign = status.campaign
    reason = f": {plain(campaign.state_reason)}" if campaign.state_reason else ""
    out.print(f"[bold]{campaign.name}[/bold]  {campaign.state}{reason}")
    if campaign.figures in ORIGINS:
        out.print(ORIGINS[campaign.figures], style="yellow")
    if status.driver_is_live:
        out.print(f"driven by {campaign.driver}")
    elif campaign.state == "running":
        out.print(f"its driver is gone; go on with: frontrunner resume {campaign.name}", style="yellow")
    counts = ", ".join(f"{count} {state}" for state, count in status.trials.items() if count)
    out.print(f"recipes   {counts or 'none tried'} of {campaign.legal_recipes:,} legal")
    if status.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in status.failures.items())
        out.print(f"failures  {kinds}  (frontrunner failures {campaign.name})")
    out.print(
        f"spent     {campaign.node_seconds_spent / 3600:.3g} node-hours in probes, "
        f"{seconds(campaign.driver_seconds)} of driving"
    )
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


def print_explanation(explanation: Explanation) -> None:
    """Everything about one recipe."""
    out = console()
    recipe = explanation.recipe
    out.print(f"[bold]{explanation.recipe_id}[/bold]  {recipe.describe()}")
    out.print(f"engine {recipe.engine}, {recipe.devices} devices, global batch {recipe.global_batch_seqs} sequences")
    for appearance in explanation.appearances:
        _print_appearance(out, appearance)


def _print_appearance(out: Console, appearance: Appearance) -> None:
    summary = ", ".join(f"{key} {value}" for key, value in appearance.campaign.problem_summary.items())
    out.print(f"\ncampaign [bold]{appearance.campaign.name}[/bold]  ({plain(summary)})")
    if appearance.campaign.figures in ORIGINS:
        out.print(ORIGINS[appearance.campaign.figures], style="yellow")
    standing = appearance.standing
    if standing is not None:
        out.print(f"rank {appearance.rank} of {appearance.ranked_recipes} by tokens/s")
        out.print(
            f"  {thousands(standing.tokens_per_s)} tokens/s, step {seconds(standing.step_time_s_median)} "
            f"± {100 * standing.step_time_spread:.1f} % over {standing.repeats} measurement"
            f"{'s' if standing.repeats > 1 else ''}"
        )
        out.print(
            f"  {thousands(standing.model_tflops_per_device)} model TFLOPS a device "
            f"({thousands(standing.hardware_tflops_per_device)} with recompute), MFU {percent(standing.mfu)}, "
            f"peak {gib(standing.peak_memory_bytes_max_rank)} GiB on the rank that needs most"
        )
        for word, neighbour in (("above", appearance.above), ("below", appearance.below)):
            if neighbour is not None:
                out.print(f"  {_against(word, neighbour)}")
    table = _table("attempts")
    for title in ("attempt", "outcome", "detail"):
        table.add_column(title, overflow="fold")
    for row in appearance.attempts:
        name = f"{appearance.trial.number}.{row.attempt.number}"
        table.add_row(name, str(row.attempt.state), _detail(row.outcome))
    out.print(table)
    latest = next((row.provenance for row in reversed(appearance.attempts) if row.provenance), None)
    if latest is not None:
        versions = ", ".join(f"{name} {version}" for name, version in latest.versions.items())
        out.print(f"on {latest.host}, {latest.device}; {versions}", style="dim", markup=False)
        out.print(f"command: {' '.join(latest.command_line)}", style="dim", markup=False)


def _against(word: str, neighbour: Neighbour) -> str:
    doubt = ": within the spread, another measurement could turn it round" if neighbour.within_spread else ""
    relation = "faster" if word == "above" else "slower"
    return f"next {word}: {neighbour.recipe_id}, {neighbour.gap_percent:.1f} % {relation}{doubt}"


_ENDINGS = {
    ProbeEnding.KNOWN: "ended: known well enough",
    ProbeEnding.SLOWER: "ended: clearly slower than the best, so its figures are rough",
    ProbeEnding.NOISY: "ended: too noisy to be known better with more steps",
    ProbeEnding.LIMIT: "ended at its limit",
    ProbeEnding.FIXED: "ended after as many steps as were asked for",
}


def _detail(outcome: Measurement | Failure | None) -> str:
    if outcome is None:
        return "running"
    if isinstance(outcome, Failure):
        return plain(f"{outcome.kind}: {outcome.message}")
    steps = " ".join(f"{1000 * time:.0f}" for time in outcome.step_times_s)
    ended = "" if outcome.ended is None else f"; {_ENDINGS[outcome.ended]}"
    losses = f"; loss {outcome.losses[0]:.3f} to {outcome.losses[-1]:.3f}" if outcome.losses else ""
    started = f"; built in {seconds(outcome.build_time_s)}, first step {seconds(outcome.first_step_time_s)}"
    return f"steps {steps} ms{ended}{losses}{started}; {outcome.node_seconds:.3g} node-seconds"


def _table(title: str | None) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
