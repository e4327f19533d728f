"""Options that several commands share, and how answers are printed for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import click

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
    click.echo(json.dumps(as_plain(value), indent=2, allow_nan=False))


def as_plain(value: Any) -> Any:
    """Dataclasses, with their derived properties, enums and tuples as plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        table = {f.name: as_plain(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
        for name, member in vars(type(value)).items():
            if isinstance(member, property) and not name.startswith("_"):
                table[name] = as_plain(getattr(value, name))
        return table
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(as_plain(key)): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
