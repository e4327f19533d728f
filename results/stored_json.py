"""JSON text of the store, read strictly: it has to hold what was written, whatever the types say in Python.

All of these raise ValueError for text that is no JSON or holds something else.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from frontrunner.results.cells import LaterVersion
from frontrunner.spaces.errors import shown


def table(text: str) -> dict[str, Any]:
    """A table by its keys."""
    found = _parsed(text)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, expected a table")  # noqa: TRY004 - of text, not of a caller
    return found


def figures(text: str) -> tuple[float, ...]:
    """One number or more, each above 0 and finite."""
    found = _list(text)
    for value in found:
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise ValueError(f"it holds {shown(value)}, expected a number above 0")
    return _not_empty(found)


def sizes(text: str) -> tuple[int, ...]:
    """One whole number or more, none below 0."""
    found = _list(text)
    for value in found:
        if type(value) is not int or value < 0:
            raise ValueError(f"it holds {shown(value)}, expected a whole number of at least 0")
    return _not_empty(found)


def figures_or_nothing(text: str) -> tuple[float | None, ...]:
    """Any number of finite numbers and nulls."""
    found = _list(text)
    for value in found:
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise ValueError(f"it holds {shown(value)}, expected a number or nothing")
    return tuple(found)


def fields_of(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a dataclass from a table that holds all of its fields; one with a default may be missing.

    Raises `LaterVersion` for a table that holds them all and others besides, as only a later version writes it.
    """
    hints = _hints(kind)
    missing = [field.name for field in fields(kind) if field.name not in found]
    unknown = [name for name in found if name not in hints]
    if unknown and not missing:
        raise LaterVersion(f"this version does not know {', '.join(map(shown, unknown[:3]))}")
    required = {field.name for field in fields(kind) if field.default is MISSING}
    wrong = unknown or [name for name in missing if name in required]
    if wrong:
        raise ValueError(f"{shown(wrong[0])} is {'not known' if unknown else 'missing'}")
    return {name: _value(hints[name], value, name) for name, value in found.items()}


def _value(kind: Any, value: Any, name: str) -> Any:
    """A value of the annotated type; lists become tuples, and tables the dataclass that they are of."""
    origin = typing.get_origin(kind)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return kind(**fields_of(kind, value))
    if origin is tuple and isinstance(value, list):
        return tuple(_value(typing.get_args(kind)[0], item, name) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _value(typing.get_args(kind)[1], item, name) for key, item in value.items()}
    if origin is types.UnionType:
        inner = next(arm for arm in typing.get_args(kind) if arm is not types.NoneType)
        return None if value is None else _value(inner, value, name)
    if type(value) is not kind:
        raise ValueError(f"{name} = {shown(value)} is a {type(value).__name__}")
    return value


def _list(text: str) -> list[Any]:
    found = _parsed(text)
    if not isinstance(found, list):
        raise ValueError(f"it holds a {type(found).__name__}, expected a list")  # noqa: TRY004 - of text
    return found


def _not_empty(found: list[Any]) -> tuple[Any, ...]:
    if not found:
        raise ValueError("it holds an empty list")
    return tuple(found)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested without end") from None


def _refuse(word: str) -> float:
    raise ValueError(f"it holds {word}, which is no number")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
