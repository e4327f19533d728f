"""Which trials have a recipe of certain choices: conditions on the JSON in which recipes are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, cast, func

from frontrunner.results.schema import TrialRow
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.spaces.sharding import Sharding

Filters = Mapping[str, int | str]
"""Fields of a recipe, `data_parallel` or `sharding`, by its common name, with the value that each must have."""
DEFAULTS = {one.name: one.neutral for one in DIMENSIONS.values() if one.kind in ("count", "flag", "choice")}
"""The fields of a recipe that can be filtered by, with what recipes have that were stored before the field was."""
FILTERS = (*DEFAULTS, "data_parallel", "sharding")
_ALL_COPIES = 10**12
"""Stands for the number of copies in a sharding's degrees; no name spells a degree as large."""


def has(connection: Connection, name: str, value: int | str) -> ColumnElement[bool]:
    """Whether a trial's recipe has this value; raises `InvalidInput` for what cannot be filtered by."""
    if name == "data_parallel":
        whole = _count(connection, "tensor_parallel") * _count(connection, "pipeline_parallel")
        return _count(connection, "devices") // (whole * _count(connection, "context_parallel")) == value
    if name == "sharding":
        return _is_sharded(connection, str(value))
    if name not in DEFAULTS:
        raise bad_value("filter", name, f"one of {', '.join(FILTERS)}")
    field = _field(connection, DIMENSIONS[name].stored)
    same = field == _told(connection, value)
    return (same | field.is_(None)) if DEFAULTS[name] == value else same


def _is_sharded(connection: Connection, name: str) -> ColumnElement[bool]:
    """Whether a recipe's degrees are those of the name over its own copies, as `Sharding.named` has them.

    Where there is one copy every sharding is "none".
    """
    try:
        wanted = Sharding.named(name, _ALL_COPIES)
    except InvalidInput as error:  # which calls it as a campaign file does
        raise InvalidInput(error.message.removeprefix("space."), hint=error.hint) from None
    whole = _count(connection, "tensor_parallel") * _count(connection, "pipeline_parallel")
    copies = _count(connection, "devices") // whole
    found: ColumnElement[bool] = copies > (0 if name == "none" else 1)
    for kind in ("parameters", "gradients", "optimizer"):
        degree = getattr(wanted, kind)
        found &= _count(connection, "sharding", kind) == (copies if degree == _ALL_COPIES else degree)
    return found


def _field(connection: Connection, *path: str) -> ColumnElement[Any]:
    """A field of the recipe, as text where the database is not SQLite: databases differ in how they read JSON text."""
    if connection.dialect.name == "sqlite":
        found: ColumnElement[Any] = func.json_extract(TrialRow.recipe_json, f"$.{'.'.join(path)}")
    else:
        found = cast(TrialRow.recipe_json, JSON)[path].as_string()
    return found


def _told(connection: Connection, value: int | str) -> int | str:
    """A value as `_field` tells it."""
    if connection.dialect.name == "sqlite":
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(connection: Connection, *path: str) -> ColumnElement[int]:
    """A field that is a whole number, 1 in a recipe that was stored before the field was."""
    if connection.dialect.name == "sqlite":
        return func.coalesce(_field(connection, *path), 1)
    return func.coalesce(cast(TrialRow.recipe_json, JSON)[path].as_integer(), 1)
