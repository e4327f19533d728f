"""The command that traces a recipe without a device: dryrun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from frontrunner import api
from frontrunner.commands.options import json_option, print_json, store_option
from frontrunner.spaces.errors import InvalidInput

FLAGS = {"true": True, "false": False}


@click.command()
@click.argument("recipe", nargs=-1, metavar="RECIPE_ID | CHOICE=VALUE...")
@click.option("--campaign", type=click.Path(path_type=Path), metavar="FILE", help="The campaign file of the choices.")
@click.option("--rank", type=int, help="The rank to trace [default: those that may need most memory].")
@store_option
@json_option
def dryrun(
    recipe: tuple[str, ...], campaign: Path | None, rank: int | None, store: str | None, *, as_json: bool
) -> None:
    """Trace a recipe's real training step and print its peak memory by category, and its FLOPs.

    No device is needed, whatever the recipe's size: one rank runs in one process, over tensors without data. The
    recipe is a stored one, or the one that choices leave of a campaign file's space.

    \b
    Examples:
      frontrunner dryrun 3f9c01d2ab4e
      frontrunner dryrun --campaign a.toml sharding=zero-1 recompute=none
    """
    from frontrunner.evaluators.dry_run.run import run

    planned = api.plan_dryrun(_named(recipe, campaign), campaign=campaign, rank=rank, store=store)
    ranks = " and ".join(map(str, planned.ranks))
    click.echo(f"tracing {planned.recipe_id}, rank {ranks} of {planned.recipe.devices}", err=True)
    found = run(planned)
    if as_json:
        print_json(found)
        return
    from frontrunner.render_dryrun import print_dryrun

    print_dryrun(found)


def _named(words: tuple[str, ...], campaign: Path | None) -> str | Mapping[str, object]:
    """The recipe id, or the choices, that the words are."""
    if campaign is not None:
        return dict(_choice(word) for word in words)
    if len(words) != 1:
        raise InvalidInput(
            f"expected the id of a stored recipe, not {len(words)} words",
            hint="choices such as tensor_parallel=8 go with --campaign FILE",
        )
    return words[0]


def _choice(word: str) -> tuple[str, object]:
    key, separator, value = word.partition("=")
    if not separator:
        raise InvalidInput(
            f"{word!r} is no choice", hint="with --campaign a recipe is named by words as sharding=zero-1"
        )
    return key, FLAGS.get(value, int(value) if value.isdecimal() and value.isascii() else value)
