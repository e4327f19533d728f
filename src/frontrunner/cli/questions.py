"""The commands that read: best, pareto, show, status, failures, campaigns, dataframe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner.cli.options import json_option, open_backend, print_json, server_option, store_option
from frontrunner.plain_json import as_plain
from frontrunner.spaces.errors import NotFound, NothingLegal

if TYPE_CHECKING:
    from frontrunner.remote import RemoteStore
    from frontrunner.store import LocalStore

    Backend = LocalStore | RemoteStore


@click.command()
@click.argument("campaign", required=False)
@click.option("--top", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="How many recipes.")
@click.option("--by", default="tokens", show_default=True, help="Order: tokens, tflops, memory or step-time.")
@click.option("--max-memory-gb", type=float, help="Only recipes with no rank above so many 1e9 bytes.")
@store_option
@server_option
@json_option
def best(  # noqa: PLR0913 - an option each
    campaign: str | None,
    top: int,
    by: str,
    max_memory_gb: float | None,
    store: str | None,
    server: str | None,
    *,
    as_json: bool,
) -> None:
    """Print the best recipes of CAMPAIGN (default: the newest).

    \b
    Examples:
      frontrunner best
      frontrunner best laptop --top 3 --by memory --json
    """
    questions = open_backend(store, server)
    ranking = questions.best(campaign, top=top, by=by, max_memory_gb=max_memory_gb)
    if as_json:
        print_json(ranking)
        return
    scale = questions.predictions(campaign)
    if ranking:
        from frontrunner.views.ranking import print_ranking

        print_ranking(ranking, title=f"best by {by}")
        _say_baseline(campaign, questions)
    elif scale is None or not scale.predicted:
        raise NothingLegal("no measured recipe answers this question", hint="see `frontrunner status`")
    if scale is not None:
        from frontrunner.views.ranking import print_predictions

        print_predictions(scale)


def _say_baseline(campaign: str | None, questions: Backend) -> None:
    """What the best gains over the campaign's baseline, where it has one."""
    found = questions.baseline(campaign)
    if found is not None:
        click.echo(found.in_words())


@click.command()
@click.argument("campaign", required=False)
@click.option("--objectives", metavar="A,B,...", help="Two or more of tokens, memory, nodes [default: tokens,memory].")
@store_option
@server_option
@json_option
def pareto(
    campaign: str | None, objectives: str | None, store: str | None, server: str | None, *, as_json: bool
) -> None:
    """Print the recipes of CAMPAIGN that no other beats in both speed and peak memory.

    With --objectives: in all of speed (tokens), memory headroom (memory) and number of nodes (nodes) that it names.

    \b
    Examples:
      frontrunner pareto
      frontrunner pareto laptop --json
      frontrunner pareto --objectives tokens,memory,nodes
    """
    questions = open_backend(store, server)
    if objectives is not None:
        _front(campaign, tuple(name.strip() for name in objectives.split(",")), questions, as_json=as_json)
        return
    front = questions.pareto(campaign)
    if as_json:
        print_json(front)
    elif not front:
        raise NothingLegal("no recipe was measured", hint="see `frontrunner status`")
    else:
        from frontrunner.views.ranking import print_ranking

        print_ranking(front, title="speed against memory: what nothing else beats in both")


def _front(campaign: str | None, objectives: tuple[str, ...], questions: Backend, *, as_json: bool) -> None:
    found = questions.front(campaign, objectives=objectives)
    if as_json:
        print_json(found)
    elif not found:
        raise NothingLegal("no recipe was measured", hint="see `frontrunner status`")
    else:
        from frontrunner.views.ranking import print_front

        print_front(found, objectives)


@click.command()
@click.argument("recipe_id")
@store_option
@server_option
@json_option
def show(recipe_id: str, store: str | None, server: str | None, *, as_json: bool) -> None:
    """Print everything about RECIPE_ID (or a unique beginning of it), and why it ranks where it does.

    \b
    Examples:
      frontrunner show 3f9c01d2ab4e
      frontrunner show 3f9c --json
    """
    questions = open_backend(store, server)
    try:
        explanation = questions.show(recipe_id)
    except NotFound:
        if not _show_predicted(recipe_id, questions, as_json=as_json):
            raise
        return
    if as_json:
        print_json(explanation)
    else:
        from frontrunner.views.ranking import print_explanation

        print_explanation(explanation)
        _show_predicted(explanation.recipe_id, questions, as_json=False)


def _show_predicted(recipe_id: str, questions: Backend, *, as_json: bool) -> bool:
    """Print what is predicted of a recipe, where anything is."""
    try:
        scales = questions.predictions_of(recipe_id)
    except NotFound:
        return False
    if as_json:
        print_json({"recipe_id": scales[0].predicted[0].recipe_id, "appearances": [], "predictions": scales})
        return True
    from frontrunner.views.ranking import print_prediction

    for scale in scales:
        print_prediction(scale)
    return True


@click.command()
@click.argument("campaign", required=False)
@store_option
@server_option
@json_option
def status(campaign: str | None, store: str | None, server: str | None, *, as_json: bool) -> None:
    """Print where CAMPAIGN (default: the newest) stands.

    \b
    Examples:
      frontrunner status
      frontrunner status laptop --json
    """
    questions = open_backend(store, server)
    found = questions.status(campaign)
    scale = questions.predictions(found.campaign.name)
    if as_json:
        print_json(as_plain(found) | ({} if scale is None else {"small_scale": as_plain(scale)}))
        return
    from frontrunner.views.campaigns import print_status

    print_status(found)
    if scale is not None:
        from frontrunner.views.ranking import scale_lines

        click.echo("\n".join(scale_lines(scale)))


@click.command()
@click.argument("campaign", required=False)
@store_option
@server_option
@json_option
def failures(campaign: str | None, store: str | None, server: str | None, *, as_json: bool) -> None:
    """Print what failed in CAMPAIGN (default: the newest), why, and the end of each log.

    \b
    Examples:
      frontrunner failures
      frontrunner failures laptop --json
    """
    found = open_backend(store, server).failures(campaign)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("nothing failed")
    else:
        from frontrunner.views.campaigns import print_failures

        print_failures(found)


@click.command()
@store_option
@server_option
@json_option
def campaigns(store: str | None, server: str | None, *, as_json: bool) -> None:
    """Print every campaign of the store, the newest first.

    \b
    Examples:
      frontrunner campaigns
      frontrunner campaigns --store sweeps.db --json
    """
    found = open_backend(store, server).campaigns()
    if as_json:
        print_json(found)
    elif not found:
        click.echo("no campaign yet: frontrunner launch FILE")
    else:
        from frontrunner.views.campaigns import print_campaigns

        print_campaigns(found)


@click.command()
@click.argument("campaign", required=False)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write: x.csv or x.parquet.")
@store_option
@server_option
def dataframe(campaign: str | None, out: Path, store: str | None, server: str | None) -> None:
    """Write one row a finished attempt of CAMPAIGN (default: the newest) as a table file.

    \b
    Examples:
      frontrunner dataframe --out sweep.csv
      frontrunner dataframe laptop --out sweep.parquet
    """
    from frontrunner.results.frames import write_frame

    table = open_backend(store, server).dataframe(campaign)
    write_frame(table, out)
    click.echo(f"{len(table)} rows, {len(table.columns)} columns: {out}")
