"""The command that traces a recipe without a device: dryrun."""

from __future__ import annotations

from pathlib import Path

import click

from frontrunner import dryrun_api
from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.cli.recipe_words import named


@click.command()
@click.argument("recipe", nargs=-1, metavar="RECIPE_ID | CHOICE=VALUE...")
@click.option("--campaign", type=click.Path(path_type=Path), metavar="FILE", help="The campaign file it is of.")
@click.option("--rank", type=int, help="The rank to trace [default: those that may need most memory].")
@store_option
@json_option
def dryrun(
    recipe: tuple[str, ...], campaign: Path | None, rank: int | None, store: str | None, *, as_json: bool
) -> None:
    """Trace a recipe's real training step and print its peak memory by category, and its FLOPs.

    No device is needed, whatever the recipe's size: one rank runs in one process, over tensors without data. The
    recipe is a stored one, or one of a campaign file's space: by its id, or by the choices that leave it.

    \b
    Examples:
      frontrunner dryrun 3f9c01d2ab4e
      frontrunner dryrun --campaign a.toml sharding=zero-1 recompute=none
    """
    from frontrunner.evaluators.diagnostics.dryrun import run

    planned = dryrun_api.plan_dryrun(named(recipe, campaign), campaign=campaign, rank=rank, store=store)
    ranks = " and ".join(map(str, planned.ranks))
    click.echo(f"tracing {planned.recipe_id}, rank {ranks} of {planned.recipe.devices}", err=True)
    found = run(planned)
    if as_json:
        print_json(found)
        return
    from frontrunner.views.diagnostics import print_dryrun

    print_dryrun(found)
