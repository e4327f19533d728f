"""Commands that exchange recipes and measurements: export, import-config, import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner.cli.options import (
    FILE,
    choices,
    json_option,
    key_values,
    open_backend,
    print_json,
    prints,
    server_option,
    store_option,
)
from frontrunner.spaces.errors import NothingLegal, bad_value, writing
from frontrunner.views.campaigns import print_import

if TYPE_CHECKING:
    from frontrunner.exchange import Import


@click.command()
@click.argument("name", metavar="RECIPE_ID|CAMPAIGN")
@click.option("--to", required=True, metavar="TOOL", help="What to write; the tools are listed above.")
@click.option("--out", type=FILE, metavar="FILE", help="Where to write it [default: stdout].")
@click.option("--storage", metavar="URL", help="With --to optuna: the study's database, as sqlite:///study.db.")
@store_option
@server_option
def export(name: str, to: str, out: Path | None, storage: str | None, store: str | None, server: str | None) -> None:
    """Export RECIPE_ID, or a recipe file, as another tool's configuration.

    TOOL is megatron-lm, megatron-deepspeed, deepspeed, nemo, torchtitan, nanotron or accelerate; slurm or pbs for a
    batch script; recipe for a recipe file, which loses nothing. What a tool cannot express is refused with the reason.

    With optuna the whole CAMPAIGN becomes a study of --storage; run again, it adds new trials.

    \b
    Examples:
      frontrunner export 3f9c01d2ab4e --to megatron-lm > recipe.sh
      frontrunner export laptop --to optuna --storage sqlite:///study.db
    """
    from frontrunner.recipe_actions import names_a_file

    if (to == "optuna") != (storage is not None):
        raise bad_value("--storage", storage, "a URL with --to optuna, and with nothing else")
    if server is not None and (storage is not None or names_a_file(name)):
        raise bad_value("--server", server, "a RECIPE_ID with it: files and studies are exported without a service")
    if storage is not None:
        _export_study(name, storage, store, out)
        return
    text = open_backend(store, server).export(name, to=to)
    if out is None:
        click.echo(text, nl=False)
    else:
        _write(out, text)


def _export_study(campaign: str, storage: str, store: str | None, out: Path | None) -> None:
    from frontrunner.exchange import mirror

    if out is not None:
        raise bad_value("--out", str(out), "nothing with --to optuna, which writes to --storage")
    found = mirror(campaign, storage=storage, store=store)
    waiting = f"; {found.waiting} have not ended yet" if found.waiting else ""
    click.echo(f"study {found.study}: {found.added} trials added, {found.trials} in all{waiting}")


def _write(path: Path, text: str) -> None:
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise bad_value("--out", str(path), "a file in a folder that exists")
    from frontrunner.evaluators.probe.files import write_text

    with writing(path):
        write_text(path, text)


@click.command("import-config")
@click.argument("file", type=FILE)
@click.option("--from", "tool", required=True, metavar="TOOL", help="The tool that the configuration is for.")
@click.option("--campaign", required=True, type=FILE, metavar="FILE", help="Whose problem it is.")
@click.option("--set", "stated", multiple=True, metavar="CHOICE=VALUE", help="A choice that the file leaves out.")
@click.option("--out", type=FILE, metavar="FILE", help="Write the recipe file there.")
@json_option
def import_config(
    file: Path, tool: str, campaign: Path, stated: tuple[str, ...], out: Path | None, *, as_json: bool
) -> None:
    """Read FILE, a launch script or configuration of another tool, as a recipe.

    TOOL is megatron-lm, megatron-deepspeed, deepspeed, nemo, torchtitan, nanotron or accelerate. Scripts are read, not
    run. A setting that no recipe has is refused by name, and so is a model that is not the campaign file's.

    \b
    Examples:
      frontrunner import-config pretrain.sh --from megatron-lm --campaign 22b.toml
      frontrunner import-config ds.json --from deepspeed --campaign 22b.toml
    """
    from frontrunner import exchange
    from frontrunner.config.recipe_file import to_text

    found = exchange.import_config(file, tool=tool, campaign=campaign, stated=choices(stated))
    if found.file is None:
        raise NothingLegal(
            f"{file} is the recipe {found.recipe.describe()}, which cannot be probed: {found.illegal}",
            hint="--set engine=torch, or engine=deepspeed, reads it for the other engine",
        )
    if out is not None:
        _write(out, to_text(found.file))
    if as_json:
        print_json(found)
        return
    click.echo(f"recipe {found.recipe_id}: {found.recipe.describe()}")
    if out is not None:
        click.echo(f'written to {out}; to measure it first: [search] baseline = "{out}" in {campaign}')


@click.command("import")
@click.argument("table", type=FILE)
@click.option("--column", "columns", multiple=True, metavar="NAME=THEIRS[:UNIT]", help="The table's name of a column.")
@click.option("--set", "constants", multiple=True, metavar="NAME=VALUE", help="A value of every row.")
@click.option("--ignore", multiple=True, metavar="THEIRS", help="A column of the table to leave out.")
@click.option("--cluster", metavar="NAME", help="Preset or cluster file of rows without hardware.")
@click.option("--name", help="The campaigns' name [default: the file's].")
@click.option("--preview", is_flag=True, help="Print what would be stored, and write nothing.")
@store_option
@prints(print_import)
def import_(  # noqa: PLR0913 - an option each
    table: Path,
    columns: tuple[str, ...],
    constants: tuple[str, ...],
    ignore: tuple[str, ...],
    *,
    cluster: str | None,
    name: str | None,
    preview: bool,
    store: str | None,
) -> Import:
    """Import the measured configurations of TABLE, a CSV file, as finished campaigns, one per problem.

    Later campaigns learn from them. docs/warm-starts.md has the columns' names and units; --column, --set and --ignore
    adapt other tables. Unusable rows are counted with the reason.

    \b
    Examples:
      frontrunner import sweep.csv --preview
      frontrunner import runs.csv --set hardware=h100 --column step_time_s=iter:ms
    """
    from frontrunner.evaluators.tables.reading import TableForm
    from frontrunner.exchange import import_table

    form = TableForm(columns=key_values("--column", columns), constants=key_values("--set", constants), ignore=ignore)
    return import_table(table, form=form, cluster=cluster, name=name, store=store, preview=preview)
