"""Commands that maintain stores, and exchange recipes and measurements: store, export, import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frontrunner import api, exchange
from frontrunner.cli import options as opt
from frontrunner.config.recipe_file import to_text
from frontrunner.evaluators.runs.files import write_text
from frontrunner.evaluators.tables.reading import TableForm
from frontrunner.exchange import Import
from frontrunner.recipe_actions import names_a_file
from frontrunner.results.pruning import Deleted
from frontrunner.results.records import Labels
from frontrunner.results.transfer import Copied
from frontrunner.search.recovery import NOT_STORED, Recovered
from frontrunner.spaces.errors import NothingLegal, StoreUnusable, bad_value, did_you_mean, writing
from frontrunner.store import LocalStore
from frontrunner.text import counted, plain
from frontrunner.views.results import (
    MOST_FOLDERS,
    print_check,
    print_deleted,
    print_import,
    print_labels,
    print_prunable,
)

if TYPE_CHECKING:
    from frontrunner.cli.options import Backend


@click.group(cls=opt.SuggestingGroup)
def store() -> None:
    """Check, back up, upgrade, copy and prune stores."""


@store.command(short_help="Check a store's integrity, and print what is broken.")
@click.option(
    "--run-folders",
    is_flag=True,
    help="Also look for outcomes in run folders that the store lacks.",
)
@opt.store_option
@opt.json_option
def check(store: str | None, *, run_folders: bool, as_json: bool) -> None:
    """Check a store's integrity, and print what is broken, with the rows.

    Exit code 4 where something is broken.
    """
    found = api.check_store(store, run_folders=run_folders)
    opt.show(found, print_check, as_json=as_json)
    if not found.is_sound:
        faults = {finding.rule for finding in found.findings if finding.is_fault}
        hint = "restore a backup, or report this"
        if faults == {NOT_STORED}:
            hint = "frontrunner store recover RUN_FOLDER, with the campaign's run folder"
        raise StoreUnusable(
            f"{found.store}: {len(faults)} of {found.rules} rules do not hold", hint=hint
        )


def print_recovered(found: Sequence[Recovered]) -> None:
    """Print what was read back of each campaign, and what was not."""
    for one in found:
        made = ", which was made" if one.is_new else ""
        click.echo(
            f"campaign {plain(one.campaign)}{made}:"
            f" {counted(one.recovered, 'outcome')} read back, {one.known:,} known before"
        )
        if one.left_to_resume:
            click.echo(
                f"  {counted(one.left_to_resume, 'outcome')} of recipes whose probe has not ended"
                f" in the store: frontrunner resume {one.campaign}, then this command again"
            )
        for folder in one.unreadable[:MOST_FOLDERS]:
            click.echo(
                f"  not read back, since its files are damaged or of another campaign: {folder}"
            )
        if len(one.unreadable) > MOST_FOLDERS:
            click.echo(f"  and {len(one.unreadable) - MOST_FOLDERS:,} more")


@store.command(short_help="Read outcomes in run folders back into a store.")
@click.argument("run_folder", type=opt.FILE)
@opt.store_option
@opt.prints(print_recovered)
def recover(run_folder: Path, store: str | None) -> list[Recovered]:
    """Read the outcomes in RUN_FOLDER back into the store, which is made if there is none.

    RUN_FOLDER is that of a campaign, or the folder that holds those of several, as
    frontrunner-runs. Outcomes that the store has stay as they are.
    """
    return api.recover_store(run_folder, store=store)


@store.command(short_help="Back a store up to a new file.")
@click.argument("file", type=opt.FILE, required=False)
@opt.store_option
def backup(file: Path | None, store: str | None) -> None:
    """Back the store up to FILE (default: next to it, named after the time). Drivers may keep
    running.

    The backup is a store in an SQLite file, also that of a PostgreSQL store.
    """
    made = api.backup_store(file, store=store)
    click.echo(f"{made} ({made.stat().st_size:,} bytes)")


@store.command(short_help="Upgrade an earlier version's store.")
@opt.store_option
def upgrade(store: str | None) -> None:
    """Upgrade a store of an earlier frontrunner, after a backup next to it."""
    done = api.upgrade_store(store)
    if done.backup is None:
        click.echo(f"{plain(done.store)} is up to date: revision {done.now}")
        return
    click.echo(
        f"{plain(done.store)}: revision {done.before} -> {done.now}; the backup is {done.backup}"
    )


def print_copied(done: Copied) -> None:
    """Print where from and to campaigns were copied, and how many rows they have."""
    click.echo(
        f"{plain(done.source)} -> {plain(done.target)}: {counted(done.campaigns, 'campaign')}, "
        f"{counted(sum(done.rows.values()), 'row')}"
    )


@store.command(short_help="Copy one campaign, or all, into another store.")
@click.option("--to", required=True, metavar="STORE", help="File or URL of the store to copy to.")
@click.option(
    "--campaign", metavar="NAME", help="The campaign to copy [default: all, into a new store]."
)
@click.option("--name", help="The campaign's name in the other store [default: its own].")
@opt.store_option
@opt.prints(print_copied)
def copy(to: str, campaign: str | None, name: str | None, store: str | None) -> Copied:
    """Copy one campaign of the store into another store, or every campaign into a new one.

    The stores may be of different kinds: an SQLite file, or a PostgreSQL database by its URL. A
    campaign is copied with everything that belongs to it but its run folders, and refused while a
    driver holds it. A copy of all campaigns also restores a backup, to a new name.
    """
    return api.copy_store(to, campaign=campaign, name=name, store=store)


@store.command("import-archive", short_help="Add a campaign that an earlier version archived.")
@click.argument("file", type=opt.FILE)
@click.option("--name", help="The campaign's name here [default: its own].")
@opt.store_option
@opt.prints(print_copied)
def import_archive(file: Path, name: str | None, store: str | None) -> Copied:
    """Add the campaign in FILE, an archive of an earlier version, to the store.

    A damaged or truncated file is refused with the line named, and nothing is written.
    """
    return api.import_archive(file, name=name, store=store)


@store.command(short_help="List or remove run folders that nothing needs.")
@click.argument("campaign", required=False)
@click.option("--yes", is_flag=True, help="Remove them instead of only listing them.")
@opt.store_option
@opt.json_option
def prune(campaign: str | None, store: str | None, *, yes: bool, as_json: bool) -> None:
    """List or remove the run folders of CAMPAIGN (default: every finished one) that nothing needs.

    Outcomes stay in the store, with the log tails of failures. Folders of outcomes that the store
    lacks, of replays and of unfinished campaigns stay too.
    """
    found = api.prune_store(campaign, store=store) if yes else api.prunable(campaign, store=store)
    if as_json:
        opt.print_json({"removed": yes, "campaigns": found})
    else:
        print_prunable(found, removed=yes)


@click.command()
@click.argument("campaign", metavar="OLD")
@click.argument("name", metavar="NEW")
@opt.backend_options
def rename(campaign: str, name: str, backend: Backend) -> None:
    """Give the campaign OLD the name NEW; its run folders keep theirs. Refused while a driver holds
    it.
    """
    backend.rename(campaign, name)
    click.echo(f"campaign {campaign} is now {name}")


@click.command()
@click.argument("campaign")
@click.option("--tag", "added", multiple=True, metavar="TAG", help="Add a tag; may be repeated.")
@click.option(
    "--untag", "removed", multiple=True, metavar="TAG", help="Remove a tag; may be repeated."
)
@click.option("--note", metavar="TEXT", help="Replace the note; an empty one removes it.")
@click.option(
    "--hide/--unhide", "hidden", default=None, help="Leave it out of lists, or list it again."
)
@opt.backend_options
@opt.prints(print_labels)
def label(
    campaign: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    note: str | None,
    hidden: bool | None,  # noqa: FBT001 - click passes it by name
    backend: Backend,
) -> Labels:
    """Print or change the tags and the note of CAMPAIGN, also while it runs, and whether lists
    leave it out.

    `frontrunner campaigns` and the page of campaigns find campaigns by their tags and notes. One
    that is hidden keeps everything: it is found with --all.
    """
    now = backend.label(campaign)
    for tag in removed:
        if tag not in now.tags:
            raise bad_value(
                "--untag", tag, f"a tag of campaign {campaign}", hint=did_you_mean(tag, now.tags)
            )
    tags = [tag for tag in (*now.tags, *added) if tag not in removed] if added or removed else None
    return backend.label(campaign, tags=tags, note=note, hidden=hidden)


@click.command()
@click.argument("campaign")
@click.option("--yes", is_flag=True, help="Delete it instead of only listing what that removes.")
@opt.backend_options
@opt.prints(print_deleted)
def delete(campaign: str, backend: Backend, *, yes: bool) -> Deleted:
    """List what belongs to CAMPAIGN, or delete it: its outcomes and events, and its run folders as
    in `store prune`.

    Refused while a driver holds it. Other campaigns keep what they took over from it.
    """
    return backend.delete(campaign, preview=not yes)


@click.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="RECIPE_ID | FILE | CAMPAIGN | CHOICE=VALUE..."
)
@click.option(
    "--to", required=True, metavar="TOOL", help="What to write; the tools are listed above."
)
@click.option("--out", type=opt.FILE, metavar="FILE", help="Where to write it [default: stdout].")
@click.option(
    "--data",
    metavar="FILE",
    help=(
        "For slurm, pbs, kubernetes and recipe: train on FILE, on [data] of FILE.toml, or on"
        " `built-in` text."
    ),
)
@opt.file_option
@click.option(
    "--storage",
    metavar="URL",
    help="With --to optuna: the study's database, as sqlite:///study.db.",
)
@opt.store_option
@opt.server_option
def export(
    words: tuple[str, ...],
    to: str,
    out: Path | None,
    data: str | None,
    campaign: Path | None,
    storage: str | None,
    **where: str | None,
) -> None:
    """Export RECIPE_ID, or a recipe file, as another tool's configuration.

    With --campaign FILE it is a recipe of this file's space, measured or not: by its id, or by
    choices that leave one.

    TOOL is megatron-lm, megatron-deepspeed, deepspeed, nemo, torchtitan, nanotron or accelerate;
    slurm or pbs for a batch script, kubernetes for a JobSet's manifest; recipe for a recipe
    file, which loses nothing. What a tool cannot express is refused with the reason.

    Of a campaign file FILE.toml, slurm or pbs writes a batch script whose driver stops before
    its job's time is up; it submits itself again until the campaign is over.

    With optuna the whole CAMPAIGN becomes a study of --storage; run again, it adds new trials.
    """
    store, server = where["store"], where["server"]
    recipe, name = opt.recipe_from(words, campaign), words[0]
    if (to == "optuna") != (storage is not None):
        raise bad_value("--storage", storage, "a URL with --to optuna, and with nothing else")
    if server is not None and (storage is not None or names_a_file(name)):
        raise bad_value(
            "--server",
            server,
            "a RECIPE_ID with it: files and studies are exported without a service",
        )
    if storage is not None:
        if campaign is not None:
            raise bad_value(
                "--campaign",
                str(campaign),
                "nothing with --to optuna, which exports a stored campaign",
            )
        if out is not None:
            raise bad_value(
                "--out", str(out), "nothing with --to optuna, which writes to --storage"
            )
        found = exchange.mirror(name, storage=storage, store=store)
        waiting = f"; {found.waiting} have not ended yet" if found.waiting else ""
        click.echo(
            f"study {found.study}: {found.added} trials added, {found.trials} in all{waiting}"
        )
        return
    if data is not None and (server is not None or to not in exchange.TRAINED_HERE):
        raise bad_value(
            "--data", data, f"--to {', '.join(exchange.TRAINED_HERE)} with it, and no --server"
        )
    backend = opt.open_backend(store, server)
    if data is None:
        text = backend.export(recipe, to=to, campaign=campaign)
    else:
        text = exchange.exported(LocalStore(store), recipe, to=to, data=data, campaign=campaign)
    if out is None:
        click.echo(text, nl=False)
    else:
        _write(out, text)


def _write(path: Path, text: str) -> None:
    with writing(path):
        write_text(path, text)


@click.command("import-config")
@click.argument("file", type=opt.FILE)
@click.option(
    "--from", "tool", required=True, metavar="TOOL", help="The tool that the configuration is for."
)
@click.option(
    "--campaign",
    required=True,
    type=opt.FILE,
    callback=opt.remember,
    metavar="FILE",
    help="Whose problem it is.",
)
@click.option(
    "--set",
    "stated",
    multiple=True,
    metavar="CHOICE=VALUE",
    help="A choice that the file leaves out.",
)
@click.option("--out", type=opt.FILE, metavar="FILE", help="Write the recipe file there.")
@opt.json_option
def import_config(
    file: Path,
    tool: str,
    campaign: Path,
    stated: tuple[str, ...],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Read FILE, a launch script or configuration of another tool, as a recipe.

    TOOL is megatron-lm, megatron-deepspeed, deepspeed, nemo, torchtitan, nanotron or accelerate.
    Scripts are read, not run. A setting that no recipe has is refused by name, and so is a model
    that is not the campaign file's.
    """
    found = exchange.import_config(file, tool=tool, campaign=campaign, stated=opt.choices(stated))
    what = f"{file} is the recipe {found.recipe.describe()}"
    engines = " or ".join(f"--set engine={engine}" for engine in found.legal_engines)
    for_engine = f"{engines} reads it for an engine that runs it" if engines else None
    way_out = (
        for_engine or f'evaluator = "command" with command.trainer = "{tool}" goes by its rules'
    )
    if found.illegal is not None:
        raise NothingLegal(f"{what}, which cannot be probed: {found.illegal}", hint=for_engine)
    if found.file is None and out is not None:
        raise NothingLegal(
            f"{what}, which this campaign's trainer does not run: {found.illegal_here}",
            hint=way_out,
        )
    if out is not None and found.file is not None:
        _write(out, to_text(found.file))
    if as_json:
        opt.print_json(found)
        return
    click.echo(f"recipe {found.recipe_id}: {found.recipe.describe()}")
    for what, names in {
        "may change speed or memory": found.ignored,
        "assumed harmless": found.harmless,
    }.items():
        if names:
            click.echo(f"not in the recipe, {what}: {' '.join(names)}")
    if found.illegal_here is not None:
        click.echo(f"this campaign's trainer does not run it: {found.illegal_here}; {way_out}")
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    if out is not None:
        named = os.path.relpath(out, campaign.parent)
        click.echo(
            f'written to {out}; to measure it first: [search] baseline = "{named}" in {campaign}'
        )


@click.command("import")
@click.argument("table", type=opt.FILE)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=THEIRS[:UNIT]",
    help="The table's name of a column.",
)
@click.option(
    "--set", "constants", multiple=True, metavar="NAME=VALUE", help="A value of every row."
)
@click.option(
    "--ignore", multiple=True, metavar="THEIRS", help="A column of the table to leave out."
)
@click.option("--cluster", metavar="NAME", help="Preset or cluster file of rows without hardware.")
@click.option("--name", help="The campaigns' name [default: the file's].")
@click.option("--preview", is_flag=True, help="Print what would be stored, and write nothing.")
@opt.store_option
@opt.prints(print_import)
def import_(
    table: Path,
    columns: tuple[str, ...],
    constants: tuple[str, ...],
    ignore: tuple[str, ...],
    **given: Any,
) -> Import:
    """Import the measured configurations of TABLE, a CSV file, as finished campaigns, one per
    problem.

    Later campaigns learn from them. docs/warm-starts.md has the columns' names and units; --column,
    --set and --ignore adapt other tables. Unusable rows are counted with the reason.
    """
    form = TableForm(
        columns=opt.key_values("--column", columns),
        constants=opt.key_values("--set", constants),
        ignore=ignore,
    )
    return exchange.import_table(table, form=form, **given)
