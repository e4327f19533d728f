"""The commands that keep stores: store (check, backup, upgrade, copy, prune), archive and unarchive."""

from __future__ import annotations

from pathlib import Path

import click

from frontrunner import store_api
from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.spaces.errors import InvalidInput, StoreUnusable, did_you_mean
from frontrunner.text import plain


class StoreCommands(click.Group):
    """A group that names the nearest command for one that is unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for one that is unknown."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise InvalidInput(f"no command 'store {args[0]}'", hint=did_you_mean(args[0], self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=StoreCommands)
def store() -> None:
    """Check, back up, upgrade, copy and prune stores.

    \b
    Examples:
      frontrunner store check
      frontrunner store backup --store sweeps.db
      frontrunner store copy sweeps.db postgresql+psycopg://me@host/sweeps
    """


@store.command(short_help="Print what does not hold in a store, with the rows.")
@store_option
@json_option
def check(store: str | None, *, as_json: bool) -> None:
    """Go through everything that must hold in a store, and print what does not, with the rows.

    Exit code 4 where something is broken. It reads the store as plain tables, past the code that writes it.

    \b
    Examples:
      frontrunner store check
      frontrunner store check --store sweeps.db --json
    """
    found = store_api.check_store(store)
    if as_json:
        print_json(found)
    else:
        from frontrunner.views.campaigns import print_check

        print_check(found)
    if not found.is_sound:
        broken = sum(finding.is_fault for finding in found.findings)
        raise StoreUnusable(
            f"{found.store}: {broken} of {found.rules} rules do not hold", hint="restore a backup, or report this"
        )


@store.command(short_help="Write what a store holds now to a new file.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@store_option
def backup(file: Path | None, store: str | None) -> None:
    """Write what the store holds now to FILE (default: beside it, called after the time). Drivers may go on.

    A backup of an SQLite store is a store; one of a PostgreSQL store is made by pg_dump, for pg_restore.

    \b
    Examples:
      frontrunner store backup
      frontrunner store backup /safe/place/sweeps.db --store sweeps.db
    """
    made = store_api.backup_store(file, store=store)
    click.echo(f"{made} ({made.stat().st_size:,} bytes)")


@store.command(short_help="Bring an earlier version's store up to this one.")
@store_option
def upgrade(store: str | None) -> None:
    """Bring a store of an earlier frontrunner up to this one, after a backup beside it.

    \b
    Examples:
      frontrunner store upgrade
      frontrunner store upgrade --store sweeps.db
    """
    done = store_api.upgrade_store(store)
    if done.backup is None:
        click.echo(f"{plain(done.store)} is up to date: revision {done.now}")
        return
    click.echo(f"{plain(done.store)}: revision {done.before} -> {done.now}; before that it is in {done.backup}")


@store.command(short_help="Copy every campaign into a new store.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def copy(source: str, target: str, *, as_json: bool) -> None:
    """Copy every campaign of the store FROM into TO, a new store in the same or another kind of database.

    It is also how a backup is restored: to a new name.

    \b
    Examples:
      frontrunner store copy sweeps.db postgresql+psycopg://me@host/sweeps
      frontrunner store copy sweeps.db.backup-20260301T120000Z restored.db
    """
    done = store_api.copy_store(source, target)
    if as_json:
        print_json(done)
        return
    rows = sum(done.rows.values())
    click.echo(f"{plain(done.source)} -> {plain(done.target)}: {done.campaigns} campaigns, {rows:,} rows")


@store.command(short_help="Show or remove run folders that nothing needs.")
@click.argument("campaign", required=False)
@click.option("--yes", is_flag=True, help="Remove them; without it they are only shown.")
@store_option
@json_option
def prune(campaign: str | None, store: str | None, *, yes: bool, as_json: bool) -> None:
    """Show the run folders of CAMPAIGN (default: every finished one) that nothing needs, or remove them.

    Outcomes stay in the store, with the end of each failure's log. Folders of outcomes that the store does not hold,
    of replays and of campaigns that are not finished stay as well.

    \b
    Examples:
      frontrunner store prune
      frontrunner store prune laptop --yes
    """
    found = store_api.prune_store(campaign, store=store) if yes else store_api.prunable(campaign, store=store)
    if as_json:
        print_json({"removed": yes, "campaigns": found})
        return
    from frontrunner.views.campaigns import print_prunable

    print_prunable(found, removed=yes)


@click.command()
@click.argument("campaign")
@click.argument("file", type=click.Path(path_type=Path))
@store_option
@json_option
def archive(campaign: str, file: Path, store: str | None, *, as_json: bool) -> None:
    """Write CAMPAIGN, with every outcome and event, to FILE: one portable file that `unarchive` reads elsewhere.

    \b
    Examples:
      frontrunner archive laptop laptop.jsonl
      frontrunner archive 22b-first 22b.jsonl --store sweeps.db
    """
    done = store_api.archive(campaign, file, store=store)
    if as_json:
        print_json(done)
        return
    click.echo(f"{done.file}: campaign {done.campaign}, {done.rows:,} rows, sha256 {done.sha256[:12]}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="The campaign's name here [default: its own].")
@store_option
@json_option
def unarchive(file: Path, name: str | None, store: str | None, *, as_json: bool) -> None:
    """Add the campaign in FILE, which `archive` wrote, to the store.

    A file that is damaged, cut short or no archive is refused with the line named, and nothing is written.

    \b
    Examples:
      frontrunner unarchive laptop.jsonl
      frontrunner unarchive 22b.jsonl --name 22b-frontier --store sweeps.db
    """
    done = store_api.unarchive(file, name=name, store=store)
    if as_json:
        print_json(done)
        return
    click.echo(f"{plain(done.store)}: campaign {done.campaign}, {done.rows:,} rows from {done.file}")
