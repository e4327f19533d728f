"""The commands by which recipes travel: export and import-config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner.cli.options import json_option, open_backend, print_json, server_option, store_option
from frontrunner.cli.recipe_words import choices
from frontrunner.spaces.errors import NothingLegal, bad_value, writing

if TYPE_CHECKING:
    from frontrunner.travel_api import ImportedRecipe


@click.command()
@click.argument("name", metavar="RECIPE_ID|CAMPAIGN")
@click.option("--to", required=True, metavar="TOOL", help="What to write; the tools are named above.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write it [default: stdout].")
@click.option("--storage", metavar="URL", help="With --to optuna: the study's database, as sqlite:///study.db.")
@store_option
@server_option
def export(name: str, to: str, out: Path | None, storage: str | None, store: str | None, server: str | None) -> None:
    """Write RECIPE_ID, or a recipe file, in the words of another tool.

    TOOL is megatron-lm, megatron-deepspeed, deepspeed, nemo, torchtitan, nanotron or accelerate; slurm or pbs for a
    batch script; recipe for a recipe file, which loses nothing. What a tool cannot be told is refused with the reason.

    With optuna the whole CAMPAIGN becomes a study of --storage; run again, trials that are new are added.

    \b
    Examples:
      frontrunner export 3f9c01d2ab4e --to megatron-lm > recipe.sh
      frontrunner export 3f9c --to recipe --out recipe.json
      frontrunner export laptop --to optuna --storage sqlite:///study.db
    """
    if (to == "optuna") != (storage is not None):
        raise bad_value("--storage", storage, "a URL with --to optuna, and with nothing else")
    from frontrunner.replay_api import names_a_file

    if server is not None and (storage is not None or names_a_file(name)):
        raise bad_value("--server", server, "a RECIPE_ID with it: files and studies are exported without a service")
    if storage is not None:
        _mirror(name, storage, store, out)
        return
    text = open_backend(store, server).export(name, to=to)
    if out is None:
        click.echo(text, nl=False)
    else:
        _write(out, text)


def _mirror(campaign: str, storage: str, store: str | None, out: Path | None) -> None:
    from frontrunner.travel_api import mirror

    if out is not None:
        raise bad_value("--out", str(out), "nothing with --to optuna, which writes to --storage")
    found = mirror(campaign, storage=storage, store=store)
    waiting = f"; {found.waiting} have not ended yet" if found.waiting else ""
    click.echo(f"study {found.study}: {found.added} trials added, {found.trials} in all{waiting}")


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all; raises `InvalidInput` for a place that cannot be written to."""
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise bad_value("--out", str(path), "a file in a folder that exists")
    from frontrunner.evaluators.probe.files import write_text

    with writing(path):
        write_text(path, text)


@click.command("import-config")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--from", "tool", required=True, metavar="TOOL", help="The tool that the configuration is for.")
@click.option("--campaign", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Whose problem it is.")
@click.option("--set", "stated", multiple=True, metavar="CHOICE=VALUE", help="What the configuration does not say.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the recipe file there.")
@json_option
def import_config(
    file: Path, tool: str, campaign: Path, stated: tuple[str, ...], out: Path | None, *, as_json: bool
) -> None:
    """Read FILE, a launch script or configuration of another tool, as a recipe.

    TOOL is megatron-lm, megatron-deepspeed, deepspeed, nemo, torchtitan, nanotron or accelerate. Scripts are read, not
    run. A setting that no recipe has is refused by its name, and so is a model that is not the campaign file's.

    \b
    Examples:
      frontrunner import-config pretrain.sh --from megatron-lm --campaign 22b.toml
      frontrunner import-config ds.json --from deepspeed --campaign 22b.toml
    """
    from frontrunner.config.recipe_file import to_text
    from frontrunner.travel_api import import_config as imported

    found = imported(file, tool=tool, campaign=campaign, stated=choices(stated) if stated else {})
    if found.file is None:
        raise NothingLegal(
            f"{file} is the recipe {found.recipe.describe()}, which cannot be probed: {found.illegal}",
            hint="--set engine=torch, or engine=deepspeed, reads it for the other engine",
        )
    if out is not None:
        _write(out, to_text(found.file))
    if as_json:
        print_json(found)
    else:
        _print(found, campaign, out)


def _print(found: ImportedRecipe, campaign: Path, out: Path | None) -> None:
    click.echo(f"recipe {found.recipe_id}: {found.recipe.describe()}")
    if out is not None:
        click.echo(f'written to {out}; to measure it first: [search] baseline = "{out}" in {campaign}')
