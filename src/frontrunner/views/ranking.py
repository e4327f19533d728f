"""Recipes on the terminal: the ranking, fronts, one recipe in full, and predictions from fewer nodes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from rich.text import Text

from frontrunner.results.explain import Appearance, Explanation
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.predictions import Predicted, SmallScale
from frontrunner.results.ranking import RankedRecipe
from frontrunner.search.budget import Limit, outlook_in_words, unused
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.recipe import DIMENSIONS, Recipe
from frontrunner.standings import OBJECTIVES, OnFront
from frontrunner.text import gib, percent, plain, seconds, thousands
from frontrunner.views.campaigns import print_origin, problem_line
from frontrunner.views.columns import COLUMNS, ENDINGS, FIGURES, RECIPE, RECIPE_ID, Column, against
from frontrunner.views.terminal import Terminal, column_table, console, ruled_table

Row = TypeVar("Row")
_FRONT_FIRST = ("rank", "recipe_id", "tokens_per_s")
FRONT: tuple[Column[OnFront], ...] = (
    *(column.of(attrgetter("ranked")) for column in COLUMNS if column.key in _FRONT_FIRST),
    Column("headroom_bytes", "headroom GiB", attrgetter("headroom_bytes"), gib),
    Column("nodes", "nodes", attrgetter("nodes"), "{:,}".format),
    *(column.of(attrgetter("ranked")) for column in COLUMNS if column.key not in (*_FRONT_FIRST, "gap_percent")),
)


def print_ranking(ranking: Sequence[RankedRecipe] | RankedRecipe, *, title: str = "") -> None:
    """Print ranked recipes, with a note where steps spread too far to trust the order."""
    _print_rows(title, COLUMNS, [ranking] if isinstance(ranking, RankedRecipe) else ranking, lambda row: row)


def print_front(front: Sequence[OnFront], objectives: Sequence[str] = tuple(OBJECTIVES)) -> None:
    """Print a front, fastest first."""
    title = f"what nothing else beats in {' and '.join([', '.join(objectives[:-1]), objectives[-1]])}"
    _print_rows(title, FRONT, front, lambda row: row.ranked)


def _print_rows(
    title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], ranked: Callable[[Row], RankedRecipe]
) -> None:
    out = console()
    out.print(column_table(title, columns, rows, width=out.width, bold=lambda row: ranked(row).rank == 1))
    for origin in sorted({ranked(row).figures for row in rows}):
        print_origin(origin)
    if any(ranked(row).standing.is_noisy for row in rows):
        out.say("! step times spread by more than 5 %: the order near such a row may change", style="dim")


def print_outlook(outlook: Outlook | None, limits: Sequence[Limit]) -> None:
    """Print what is left to gain, where the strategy predicts it, and what is left of the budget."""
    if outlook is None:
        return
    out = console()
    out.say(f"outlook: {outlook_in_words(outlook)}")
    if limits:
        out.say(f"unused:  {unused(limits)}")


def print_next_commands(
    campaign: str,
    winner: RankedRecipe,
    store: str | None,
    objectives: Sequence[str] = ("tokens",),
    *,
    replays: bool = True,
) -> None:
    """Print what to do next as commands to copy, with `store` where the commands would not find it themselves."""
    out = console()
    named = f" --store {shlex.quote(store)}" if store else ""
    several = f" --objectives {','.join(objectives)}" if len(objectives) > 1 else ""
    commands = {
        f"frontrunner show {winner.recipe_id}": "why it ranks first",
        f"frontrunner pareto {campaign}{several}": "the front" if several else "speed against memory",
    }
    if replays and winner.figures != "imported":  # a table's rows cannot be replayed
        commands[f"frontrunner replay {winner.recipe_id} --steps 200"] = "train with it"
    out.say("\nnext:", style="bold")
    for command, what in commands.items():
        out.say(f"  {command + named:<46} {what}", whole=bool(named))


def print_explanation(explanation: Explanation) -> None:
    """Print everything about one recipe, campaign by campaign."""
    out = console()
    recipe = explanation.recipe
    out.say((explanation.recipe_id, "bold"), f"  {recipe.describe()}")
    out.say(f"engine {recipe.engine}, {recipe.devices} devices, global batch {recipe.global_batch_seqs} sequences")
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
        out.say(f"  {with_recompute} TFLOPS/device with what is computed a second time", style="dim")
    for place in ("above", "below"):
        if neighbor := getattr(appearance, place):
            out.say(f"  next {place}: {neighbor.recipe_id}, {against(neighbor, place)}")
    table = ruled_table("attempts", ("attempt", "fold"), ("outcome", "fold"), ("detail", "fold"))
    for row in appearance.attempts:
        table.add_row(f"{appearance.trial.number}.{row.attempt.number}", str(row.attempt.state), _detail(row.outcome))
    out.print(table)
    latest = next((row.provenance for row in reversed(appearance.attempts) if row.provenance), None)
    if latest is not None:
        versions = ", ".join(f"{name} {version}" for name, version in latest.versions.items())
        out.say(f"on {latest.host}, {latest.device}; {versions}", style="dim")
        out.say(f"command: {' '.join(latest.command_line)}", style="dim")


def _detail(outcome: Measurement | Failure | None) -> Text:
    if outcome is None:
        return Text("running")
    if isinstance(outcome, Failure):
        return Text(plain(f"{outcome.kind}: {outcome.message}"))
    steps = " ".join(f"{1000 * time:.0f}" for time in outcome.step_times_s)
    ended = "" if outcome.ended is None else f"; {ENDINGS[outcome.ended]}"
    losses = f"; loss {outcome.losses[0]:.3f} to {outcome.losses[-1]:.3f}" if outcome.losses else ""
    started = f"; built in {seconds(outcome.build_time_s)}, first step {seconds(outcome.first_step_time_s)}"
    return Text(f"steps {steps} ms{ended}{losses}{started}; {outcome.node_seconds:.3g} node-seconds")


def print_recipe(recipe: Recipe) -> None:
    """Print the choices that are not neutral, and what follows from them."""
    out = console()
    out.say("recipe ", (recipe.describe(), "bold"))
    for one in DIMENSIONS.values():
        if getattr(recipe, one.field) != one.neutral:
            value = recipe.layers_name if one.kind == "layers" else one.of(recipe)
            out.say(f"  {one.field:<20} {value}")
    for field in ("data_parallel", "global_batch_seqs"):
        out.say(f"  {field:<20} {getattr(recipe, field)}")


def interval(predicted: Predicted) -> str:
    """Return the ends of the 95 % interval: `50,000-80,000`."""
    return f"{thousands(predicted.low)}-{thousands(predicted.high)}"


def _measured(row: Predicted) -> str:
    return thousands(row.confirmed.tokens_per_s) if row.confirmed else "failed" if row.failed else "-"


PREDICTIONS: tuple[Column[Predicted], ...] = (
    RECIPE_ID,
    Column("tokens_per_s", "predicted", attrgetter("tokens_per_s"), thousands),
    Column("interval", "95 %", interval),
    Column("chance", "runs", attrgetter("chance"), lambda chance: percent(chance, 0), drop=3),
    Column("confirmed", "measured", _measured),
    Column("error", "off by", attrgetter("error"), lambda error: f"{100 * error:+.1f} %", drop=2),
    *(replace(column, drop=column.drop + 1) for column in RECIPE[1:]),
)


def print_predictions(scale: SmallScale) -> None:
    """Print the predicted ranking with what was confirmed of it; nothing where nothing is predicted yet."""
    if not scale.predicted:
        return
    out = console()
    title = f"{scale.campaign}: predicted tokens/s on {scale.nodes} nodes"
    best = scale.predicted[0]
    out.print(column_table(title, PREDICTIONS, scale.predicted, width=out.width, bold=lambda row: row is best))
    print_origin(scale.figures)
    for line in scale_lines(scale):
        out.say(line)


def print_prediction(scale: SmallScale) -> None:
    """Print what a campaign predicts of one recipe, in two lines."""
    (one,) = scale.predicted
    came = f"measured {thousands(one.confirmed.tokens_per_s)} there" if one.confirmed else "not measured there"
    out = console()
    out.say(
        f"predicted  {thousands(one.tokens_per_s)} tokens/s on {scale.nodes} nodes (95 %: {interval(one)}), "
        f"{percent(one.chance, 0)} to run: {'failed there' if one.failed else came}; campaign {scale.campaign}"
    )
    out.say(f"           {one.recipe_id}  {one.recipe.describe()}, from campaign {scale.small}: {scale.scale}")


def scale_lines(scale: SmallScale) -> tuple[str, ...]:
    """Return what is measured small, what is predicted large with its error, and what is confirmed."""
    small = plain(f"measured   {scale.small_measured} recipes on fewer nodes: campaign {scale.small}, {scale.scale}")
    if not scale.predicted:
        return small, f"predicted  nothing yet for {scale.nodes} nodes"
    best, many = scale.predicted[0], f"{len(scale.predicted)} predictions"
    confirmed = f"none of {many}"
    if scale.mean_error is not None:
        confirmed = f"{len(scale.confirmed)} of {many}, off by {percent(scale.mean_error)} on average"
    return (
        small,
        f"predicted  best on {scale.nodes} nodes: {best.recipe_id}  {thousands(best.tokens_per_s)} tokens/s "
        f"(95 %: {interval(best)})",
        f"confirmed  {confirmed}",
    )
