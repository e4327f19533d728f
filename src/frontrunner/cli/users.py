"""Commands about the users of a service: invite, list, remove, accept an invitation."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from frontrunner.cli import options as opt
from frontrunner.config.settings import located
from frontrunner.remote import accept, connect
from frontrunner.server.auth import TOKEN_VARIABLE, Role
from frontrunner.server.settings import DEFAULT_PORT
from frontrunner.text import minute
from frontrunner.views.columns import Column, words
from frontrunner.views.terminal import column_table, console

if TYPE_CHECKING:
    from frontrunner.server.requests import UserAnswer

COLUMNS: tuple[Column[UserAnswer], ...] = (
    words("name", "name", attrgetter("name")),
    words("role", "role", attrgetter("role")),
    words("invited_until", "invited until, UTC", attrgetter("invited_until"), minute),
    words("added_at", "added, UTC", attrgetter("added_at"), minute),
    words("added_by", "by", attrgetter("added_by")),
)
server_option = click.option(
    "--server",
    metavar="URL",
    default=f"http://127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    callback=opt.remember,
    help="The service, to which an operator's token is sent.",
)


@click.group(cls=opt.SuggestingGroup)
def users() -> None:
    """Let others use a service by names and tokens of their own."""


@users.command(short_help="Print a link that lets a new user in.")
@click.argument("name")
@click.option(
    "--reader", is_flag=True, help="Let the user read, not launch, stop or change anything."
)
@server_option
def add(name: str, server: str, *, reader: bool) -> None:
    """Print a link that lets the first who opens it in as NAME. It is good once, for seven days.

    Opened in a browser it signs that in and shows a token for programs; `frontrunner users join`
    prints the token.
    """
    click.echo(connect(server).invite(name, role=Role.READER if reader else Role.OPERATOR))
    click.echo(f"send it to {name}: it is good once, for seven days", err=True)


@users.command("list", short_help="List the users of a service.")
@server_option
@opt.json_option
def list_(server: str, *, as_json: bool) -> None:
    """List the users who were invited to a service."""
    found = connect(server).users()
    if as_json:
        opt.print_json([user.model_dump() for user in found])
    else:
        _print_users(found)


def _print_users(found: Sequence[UserAnswer]) -> None:
    out = console()
    if found:
        out.print(column_table(None, COLUMNS, found, width=out.width))
    else:
        out.say(located("nobody was invited yet: frontrunner users add NAME"), whole=True)


@users.command(short_help="End a user's access.")
@click.argument("name")
@server_option
def remove(name: str, server: str) -> None:
    """End the access of NAME at once: token, sessions and invitation. What the user started goes
    on.
    """
    connect(server).remove_user(name)
    click.echo(f"user {name} is removed")


@users.command(short_help="Accept an invitation, and print a token.")
@click.argument("link")
@opt.json_option
def join(link: str, *, as_json: bool) -> None:
    """Accept the invitation of LINK, which is then used up, and print the line that sets the
    token.
    """
    found = accept(link)
    if as_json:
        opt.print_json(found.model_dump())
        return
    click.echo(f"export {TOKEN_VARIABLE}={found.token}")
    click.echo(
        f"you are {found.name}, {found.role} of the service; keep the token like a password",
        err=True,
    )
