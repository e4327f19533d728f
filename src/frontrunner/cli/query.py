"""Commands that read a store: best, pareto, show, status, history, failures, campaigns, dataframe,
report, plot.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner.cli.options import (
    FILE,
    RECIPE_ID,
    backend_options,
    campaign_argument,
    json_option,
    print_json,
    prints,
    show,
)
from frontrunner.results.frames import write_frame
from frontrunner.results.pages import HistoryPage
from frontrunner.results.records import NODE_TYPES, CampaignList
from frontrunner.results.status import FailureList
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from frontrunner.text import as_plain
from frontrunner.views import results as views
from frontrunner.views.comparison import (
    compare_campaigns,
    compare_recipes,
    print_campaign_comparison,
    print_comparison,
)
from frontrunner.views.history import print_history

if TYPE_CHECKING:
    from frontrunner.cli.options import Backend


@click.command()
@campaign_argument
@click.option(
    "--top",
    type=click.IntRange(1, 1_000_000),
    default=10,
    show_default=True,
    help="How many recipes.",
)
@click.option(
    "--by",
    help=(
        "Order: tokens, tokens-per-device, tflops, memory or step-time [default: what the campaign"
        " seeks]."
    ),
)
@click.option(
    "--max-memory-gb",
    type=float,
    help="Exclude recipes whose peak memory per rank exceeds this many GB.",
)
@backend_options
@json_option
def best(
    campaign: str | None,
    top: int,
    by: str | None,
    max_memory_gb: float | None,
    backend: Backend,
    *,
    as_json: bool,
) -> None:
    """Print the best recipes of CAMPAIGN (default: the newest)."""
    ranking = backend.best(campaign, top=top, by=by, max_memory_gb=max_memory_gb)
    if as_json:
        print_json(ranking)
        return
    if not ranking:
        raise _nothing_measured(backend, campaign, "a peak within --max-memory-gb")
    status = backend.status(campaign)
    ranked = status.campaign
    views.print_ranking(ranking, title=f"best by {by or ranked.objective}")
    views.print_left_ranking(status)
    if NODE_TYPES in ranked.problem_summary:
        views.print_node_types(ranked)
    elif baseline := backend.baseline(campaign):
        click.echo(baseline.in_words())


def _nothing_measured(backend: Backend, campaign: str | None, wanted: str) -> NothingLegal:
    """Return the error for a campaign without a measurement, or without one within what was
    `wanted`.
    """
    found = backend.status(campaign)
    name, state = found.campaign.name, found.state_in_words
    why = f"campaign {name} has no measurements yet ({state})"
    if found.best is not None:
        why = f"campaign {name} ({state}) has no measured recipe with {wanted}"
    return NothingLegal(why, hint=f"frontrunner status {name}")


@click.command()
@campaign_argument
@click.option(
    "--objectives",
    metavar="A,B,...",
    help="Two or more of tokens, memory, nodes [default: tokens,memory].",
)
@backend_options
@json_option
def pareto(
    campaign: str | None, objectives: str | None, backend: Backend, *, as_json: bool
) -> None:
    """Print the Pareto front of CAMPAIGN: recipes that no other beats in both speed and peak
    memory.

    With --objectives: in all of speed (tokens), memory headroom (memory) and number of nodes
    (nodes) that it names.
    """
    names = tuple(name.strip() for name in (objectives or "").split(","))
    ranking = backend.pareto(campaign) if objectives is None else ()
    front = () if objectives is None else backend.front(campaign, objectives=names)
    if as_json:
        print_json(front or ranking)
    elif not front and not ranking:
        raise _nothing_measured(backend, campaign, "a known peak memory")
    elif ranking:
        views.print_ranking(ranking, title="Pareto front of speed and memory")
    else:
        views.print_front(front, names)


@click.command("show")
@click.argument("recipe_id")
@click.option(
    "--campaign",
    metavar="NAME",
    help="Begin with this campaign [default: the newest that measured it].",
)
@backend_options
@json_option
def show_recipe(recipe_id: str, campaign: str | None, backend: Backend, *, as_json: bool) -> None:
    """Print everything about RECIPE_ID (or a unique prefix of it), and why it ranks where it
    does.
    """
    explanation = backend.show(recipe_id, campaign=campaign)
    show(explanation, views.print_explanation, as_json=as_json)


@click.command()
@click.argument(
    "recipes", nargs=-1, required=True, metavar="RECIPE_ID RECIPE_ID...|CAMPAIGN CAMPAIGN..."
)
@click.option(
    "--campaign",
    metavar="NAME",
    help="Begin with this campaign [default: the newest that measured each].",
)
@backend_options
@json_option
def compare(
    recipes: tuple[str, ...], campaign: str | None, backend: Backend, *, as_json: bool
) -> None:
    """Compare two or more recipes of the store: what was measured, the choices that differ, the
    estimated steps.

    Or campaigns, where all are names of campaigns: what differs in their specifications, and how
    far each came.
    """
    if len(recipes) < 2:
        what = f"expected two recipe ids or more, or two campaigns or more, not {recipes[0]} alone"
        raise InvalidInput(what, hint="frontrunner best")
    known = {one.name for one in backend.campaigns()}
    if known.issuperset(recipes) or any(
        name in known and not RECIPE_ID.fullmatch(name) for name in recipes
    ):
        compared = compare_campaigns([backend.status(name) for name in recipes])
        if as_json:
            shared = backend.compare(recipes)
            print_json({"differing": dict(compared.differing), **as_plain(shared)})
        else:
            print_campaign_comparison(compared)
        return
    sides = [backend.show(recipe, campaign=campaign) for recipe in recipes]
    estimates = []
    with suppress(InvalidInput):  # the formulas do not cover one of them
        estimates = [backend.explain(side.recipe_id) for side in sides]
    found = compare_recipes(sides, estimates)
    if as_json:
        document = {"same_problem": found.same_problem, "speed_ratios": found.speed_ratios}
        print_json(
            document | {"differing": [name for name, _ in found.differing], "recipes": sides}
        )
    else:
        print_comparison(found)


@click.command()
@campaign_argument
@backend_options
@json_option
def status(campaign: str | None, backend: Backend, *, as_json: bool) -> None:
    """Print the state of CAMPAIGN (default: the newest)."""
    found = backend.status(campaign)
    running = backend.running(found.campaign.name) if found.driver_is_live else None
    if as_json:
        more = {} if running is None else {"running": as_plain(running)}
        print_json(as_plain(found) | more)
        return
    views.print_status(found)
    if running is not None:
        views.print_running(running)


@click.command()
@campaign_argument
@click.option(
    "--page",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="Of 50 events each.",
)
@backend_options
@prints(print_history)
def history(campaign: str | None, page: int, backend: Backend) -> HistoryPage:
    """Print the history of CAMPAIGN (default: the newest), the newest event first: who asked for
    what, and when.

    A user is the one of a service, or of the operating system where the command ran.
    """
    return backend.history(campaign, page=page)


@click.command()
@campaign_argument
@backend_options
@prints(views.print_failures)
def failures(campaign: str | None, backend: Backend) -> FailureList:
    """Print the failed probes of CAMPAIGN (default: the newest) with reasons and log tails."""
    return backend.failures(campaign)


@click.command()
@click.option(
    "--search",
    metavar="WORDS",
    default="",
    help="Only those with all these words: name, model, tag, note.",
)
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@click.option("--all", "with_hidden", is_flag=True, help="Hidden ones too.")
@backend_options
@prints(views.print_campaigns)
def campaigns(search: str, tag: str | None, backend: Backend, *, with_hidden: bool) -> CampaignList:
    """Print the campaigns of the store, the newest first."""
    return CampaignList(
        one
        for one in backend.campaigns()
        if one.has(search)
        and (tag is None or tag in one.labels.tags)
        and (with_hidden or not one.labels.hidden)
    )


@click.command()
@campaign_argument
@click.option("--out", type=FILE, required=True, help="Where to write: x.csv or x.parquet.")
@backend_options
def dataframe(campaign: str | None, out: Path, backend: Backend) -> None:
    """Write the attempts of CAMPAIGN (default: the newest) as a table, one row per finished
    attempt.
    """
    table = backend.dataframe(campaign)
    write_frame(table, out)
    click.echo(f"{len(table)} rows, {len(table.columns)} columns: {out}")


@click.command()
@campaign_argument
@click.option("--out", type=FILE, metavar="FILE", help="[default: CAMPAIGN.html]")
@backend_options
def report(campaign: str | None, out: Path | None, backend: Backend) -> None:
    """Write CAMPAIGN (default: the newest) as one HTML page.

    The best recipe and its command, the history, speed against memory, what fits and what fails,
    the model against the measurements, which knobs matter, and where the node-hours went. The page
    needs no network and no other file.
    """
    path = backend.report(campaign, out=out)
    click.echo(f"report: {path}, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


@click.command()
@campaign_argument
@click.option("--out", type=FILE, required=True, help="A folder; or x.svg, x.png for one figure.")
@click.option("--figure", metavar="NAME", help="Only this figure [default: all of them].")
@click.option(
    "--format", "wanted", metavar="svg|png", help="Of the files in a folder [default: svg]."
)
@backend_options
def plot(
    campaign: str | None, out: Path, figure: str | None, wanted: str | None, backend: Backend
) -> None:
    """Write the figures of CAMPAIGN's report (default: the newest) as SVG or PNG.

    Figures: history, speed-memory, sensitivity, scaling, parallel-coordinates, feasibility,
    predicted, shap, node-hours.
    """
    written, absent = backend.plot(campaign, out=out, figure=figure, format=wanted)
    for path in written:
        click.echo(str(path))
    for row in absent:
        click.echo(f"{row.name} is not drawn: {row.reason}", err=True)
