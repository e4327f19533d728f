"""The commands that estimate without a machine: plan, explain, advise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner import planning_api
from frontrunner.cli.options import json_option, open_backend, print_json, server_option, store_option
from frontrunner.cli.recipe_words import named
from frontrunner.spaces.errors import InvalidInput, NothingLegal, bad_value

if TYPE_CHECKING:
    from frontrunner.evaluators.analytic.estimates import Plan
    from frontrunner.evaluators.analytic.scaling import Scaling

TOP = 10


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(1, 1_000_000), help=f"How many recipes [default: {TOP}].")
@click.option("--nodes", metavar="N,N,...", help="Strong and weak scaling over these numbers of nodes instead.")
@json_option
def plan(file: Path, top: int | None, nodes: str | None, *, as_json: bool) -> None:
    """Estimate every legal recipe of campaign FILE by formulas, and print the fastest that fit. Nothing is run.

    \b
    Examples:
      frontrunner plan examples/frontier-22b.toml
      frontrunner plan examples/frontier-22b.toml --top 3 --json
      frontrunner plan examples/frontier-22b.toml --nodes 8,16,32,64
    """
    if nodes is None:
        _plan(planning_api.plan(file), TOP if top is None else top, str(file), as_json=as_json)
    elif top is None:
        _scaling(planning_api.scaling(file, _counts(nodes)), as_json=as_json)
    else:
        raise InvalidInput("--top goes with the ranking, in whose place --nodes prints one recipe for each count")


def _plan(found: Plan, top: int, file: str, *, as_json: bool) -> None:
    if as_json:
        print_json(planning_api.shown_plan(found, top))
    else:
        from frontrunner.views.plan import print_plan

        print_plan(found, top=top, file=file)
    if not len(found.table):
        raise NothingLegal(
            f"none of the {found.legal:,} legal recipes can be estimated: the formulas do not know "
            f"{', '.join(found.not_modelled)}",
            hint="frontrunner dryrun traces single recipes",
        )
    if not found.table.fitting:
        raise NothingLegal(
            f"no recipe of this space is estimated to fit in {found.memory_limit_bytes / 2**30:.3g} GiB a device",
            hint="frontrunner advise FILE looks beyond the space; or allow more sharding, recompute or devices",
        )


def _counts(text: str) -> list[int]:
    """The numbers of --nodes; their values are checked where they are used."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) < 10):
            raise bad_value("--nodes", text, f"whole numbers with commas between, as in 16,32,64, not {part!r}")
    return [int(part) for part in parts]


def _scaling(found: Scaling, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        from frontrunner.views.plan import print_scaling

        print_scaling(found)
    if not found.has_recipe:
        raise NothingLegal("no recipe is estimated to fit on any of these numbers of nodes")


@click.command()
@click.argument("recipe", nargs=-1, metavar="RECIPE_ID | CHOICE=VALUE...")
@click.option("--campaign", type=click.Path(path_type=Path), metavar="FILE", help="The campaign file it is of.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Write the picture as one SVG file.")
@store_option
@server_option
@json_option
def explain(
    recipe: tuple[str, ...],
    campaign: Path | None,
    svg: Path | None,
    store: str | None,
    server: str | None,
    *,
    as_json: bool,
) -> None:
    """Take a recipe's estimate apart: what its step and its memory go to, as a table and a picture.

    The recipe is a stored one, or one of a campaign file's space: by its id, or by the choices that leave it. What a
    store measured of it stands beside.

    \b
    Examples:
      frontrunner explain 3f9c01d2ab4e
      frontrunner explain --campaign a.toml 3f9c --svg 3f9c.svg
      frontrunner explain --campaign a.toml sharding=zero-1 recompute=none
    """
    found = open_backend(store, server).explain(named(recipe, campaign), campaign=campaign)
    if svg is not None:
        from frontrunner.evaluators.probe.files import write_bytes
        from frontrunner.spaces.errors import writing
        from frontrunner.views.charts.recipe import breakdown
        from frontrunner.views.charts.render import picture

        content = picture(breakdown(found), "svg")
        with writing(svg):
            write_bytes(svg, content)
        click.echo(f"picture: {svg}", err=True)
    if as_json:
        print_json(found)
        return
    from frontrunner.views.plan import print_breakdown

    print_breakdown(found)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def advise(file: Path, *, as_json: bool) -> None:
    """Recommend a starting configuration for the model and the machines of campaign FILE.

    Whether it fits on one device, on one node, on all; in which parallel layout, and why. Each answer rests on the
    estimate of a recipe that it names, whether the file's space lists it or not.

    \b
    Examples:
      frontrunner advise examples/frontier-22b.toml
      frontrunner advise examples/frontier-22b.toml --json
    """
    found = planning_api.advise(file)
    if as_json:
        from frontrunner.views.advice import as_document

        print_json(as_document(found, str(file)))
    else:
        from frontrunner.views.advice import print_advice

        print_advice(found, str(file))
    if found.chosen is None:
        raise NothingLegal("no parallel layout is estimated to fit on this cluster")
