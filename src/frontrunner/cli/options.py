"""Options that several commands share, the store that they choose, and JSON output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from frontrunner.plain_json import to_json
from frontrunner.spaces.errors import InvalidInput
from frontrunner.store import LocalStore

if TYPE_CHECKING:
    from frontrunner.remote import RemoteStore

F = TypeVar("F", bound=Callable[..., Any])


def store_option(function: F) -> F:
    """Add --store, which chooses the store."""
    return click.option(
        "--store",
        metavar="URL",
        help="The store: a path or an SQLAlchemy URL [default: $FRONTRUNNER_STORE, else frontrunner.db].",
    )(function)


def server_option(function: F) -> F:
    """Add --server, which queries a service instead of a store."""
    return click.option(
        "--server",
        metavar="URL",
        help="Query this service, with the token of $FRONTRUNNER_TOKEN or, on this machine, of the token file.",
    )(function)


def open_backend(store: str | None, server: str | None) -> LocalStore | RemoteStore:
    """Return the store that --store and --server choose; raise `InvalidInput` where both are given."""
    if server is None:
        return LocalStore(store)
    if store is not None:
        raise InvalidInput(f"--store {store} and --server {server} are both given: expected one of them")
    from frontrunner.remote import connect

    return connect(server)


def json_option(function: F) -> F:
    """Add --json, which prints the result as one JSON document."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(function)


def print_json(value: object) -> None:
    """Print a value as JSON; numbers that JSON cannot hold become null."""
    click.echo(to_json(value, indent=2))
