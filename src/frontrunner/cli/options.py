"""Options that several commands share, and how answers are printed for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from frontrunner.plain_json import to_json

F = TypeVar("F", bound=Callable[..., Any])


def store_option(function: F) -> F:
    """--store: which store to use."""
    return click.option(
        "--store",
        metavar="URL",
        help="The store: a path or an SQLAlchemy URL [default: $FRONTRUNNER_STORE, else frontrunner.db].",
    )(function)


def json_option(function: F) -> F:
    """--json: the answer as one JSON document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(function)


def print_json(value: object) -> None:
    """Print a value of ours as JSON; numbers that JSON cannot hold become null."""
    click.echo(to_json(value, indent=2))
