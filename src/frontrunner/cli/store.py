"""Commands that maintain stores: store (check, backup, upgrade, copy, prune), archive and unarchive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner import maintenance
from frontrunner.cli.options import FILE, SuggestingGroup, json_option, print_json, prints, show, store_option
from frontrunner.spaces.errors import StoreUnusable
from frontrunner.text import plain
from frontrunner.views.campaigns import print_check, print_prunable

if TYPE_CHECKING:
    from frontrunner.results.transfer import Archived, Copied, Unarchived


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Check, back up, upgrade, copy and prune stores.

    \b
    Examples:
      frontrunner store check
      frontrunner store backup --store sweeps.db
      frontrunner store copy sweeps.db postgresql+psycopg://me@host/sweeps
    """


@store.command(short_help="Check a store's integrity, and print what is broken.")
@store_option
@json_option
def check(store: str | None, *, as_json: bool) -> None:
    """Check a store's integrity, and print what is broken, with the rows.

    Exit code 4 where something is broken.

    \b
    Examples:
      frontrunner store check
      frontrunner store check --store sweeps.db --json
    """
    found = maintenance.check_store(store)
    show(found, print_check, as_json=as_json)
    if not found.is_sound:
        broken = sum(finding.is_fault for finding in found.findings)
        raise StoreUnusable(
            f"{found.store}: {broken} of {found.rules} rules do not hold", hint="restore a backup, or report this"
        )


@store.command(short_help="Back a store up to a new file.")
@click.argument("file", type=FILE, required=False)
@store_option
def backup(file: Path | None, store: str | None) -> None:
    """Back the store up to FILE (default: next to it, named after the time). Drivers may keep running.

    The backup is a store in an SQLite file, also that of a PostgreSQL store.

    \b
    Examples:
      frontrunner store backup
      frontrunner store backup /safe/place/sweeps.db --store sweeps.db
    """
    made = maintenance.backup_store(file, store=store)
    click.echo(f"{made} ({made.stat().st_size:,} bytes)")


@store.command(short_help="Upgrade an earlier version's store.")
@store_option
def upgrade(store: str | None) -> None:
    """Upgrade a store of an earlier frontrunner, after a backup next to it.

    \b
    Examples:
      frontrunner store upgrade
      frontrunner store upgrade --store sweeps.db
    """
    done = maintenance.upgrade_store(store)
    if done.backup is None:
        click.echo(f"{plain(done.store)} is up to date: revision {done.now}")
        return
    click.echo(f"{plain(done.store)}: revision {done.before} -> {done.now}; the backup is {done.backup}")


def _print_copied(done: Copied) -> None:
    rows = sum(done.rows.values())
    click.echo(f"{plain(done.source)} -> {plain(done.target)}: {done.campaigns} campaigns, {rows:,} rows")


@store.command(short_help="Copy every campaign into a new store.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@prints(_print_copied)
def copy(source: str, target: str) -> Copied:
    """Copy every campaign of the store FROM into TO, a new store in the same or another kind of database.

    It also restores a backup, to a new name.

    \b
    Examples:
      frontrunner store copy sweeps.db postgresql+psycopg://me@host/sweeps
      frontrunner store copy sweeps.db.backup-20260301T120000Z restored.db
    """
    return maintenance.copy_store(source, target)


@store.command(short_help="List or remove run folders that nothing needs.")
@click.argument("campaign", required=False)
@click.option("--yes", is_flag=True, help="Remove them instead of only listing them.")
@store_option
@json_option
def prune(campaign: str | None, store: str | None, *, yes: bool, as_json: bool) -> None:
    """List or remove the run folders of CAMPAIGN (default: every finished one) that nothing needs.

    Outcomes stay in the store, with the log tails of failures. Folders of outcomes that the store lacks, of replays
    and of unfinished campaigns stay too.

    \b
    Examples:
      frontrunner store prune
      frontrunner store prune laptop --yes
    """
    found = maintenance.prune_store(campaign, store=store) if yes else maintenance.prunable(campaign, store=store)
    if as_json:
        print_json({"removed": yes, "campaigns": found})
    else:
        print_prunable(found, removed=yes)


@click.command()
@click.argument("campaign")
@click.argument("file", type=FILE)
@store_option
@prints(
    lambda done: click.echo(f"{done.file}: campaign {done.campaign}, {done.rows:,} rows, sha256 {done.sha256[:12]}")
)
def archive(campaign: str, file: Path, store: str | None) -> Archived:
    """Write CAMPAIGN, with every outcome and event, to FILE, one portable file that `unarchive` reads elsewhere.

    \b
    Examples:
      frontrunner archive laptop laptop.jsonl
      frontrunner archive 22b-first 22b.jsonl --store sweeps.db
    """
    return maintenance.archive(campaign, file, store=store)


@click.command()
@click.argument("file", type=FILE)
@click.option("--name", help="The campaign's name here [default: its own].")
@store_option
@prints(lambda it: click.echo(f"{plain(it.store)}: campaign {it.campaign}, {it.rows:,} rows from {it.file}"))
def unarchive(file: Path, name: str | None, store: str | None) -> Unarchived:
    """Add the campaign in FILE, which `archive` wrote, to the store.

    A damaged or truncated file is refused with the line named, and nothing is written.

    \b
    Examples:
      frontrunner unarchive laptop.jsonl
      frontrunner unarchive 22b.jsonl --name 22b-frontier --store sweeps.db
    """
    return maintenance.unarchive(file, name=name, store=store)
