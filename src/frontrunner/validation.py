"""Tables to dataclasses and back, by pydantic; its complaints become one `InvalidInput` in our words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from frontrunner.spaces.errors import InvalidInput, bad_value

T = TypeVar("T")

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dataclass_type": "a table of fields",
    "finite_number": "a finite number",
}


def validate(cls: type[T], table: Mapping[str, Any], *, prefix: str) -> T:
    """An instance of the dataclass `cls` from a table of plain values.

    Strict: no text is taken for a number. Raises `InvalidInput` whose message begins with `prefix.key`.
    """
    try:
        return TypeAdapter(cls).validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        raise _in_our_words(error, prefix, table) from None


def _in_our_words(error: ValidationError, prefix: str, table: Mapping[str, Any]) -> InvalidInput:
    first = error.errors()[0]
    key = ".".join([prefix, *(str(part) for part in first["loc"] if isinstance(part, str))])
    original = first.get("ctx", {}).get("error")
    if isinstance(original, InvalidInput):
        return InvalidInput(original.message, hint=original.hint)
    if first["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return InvalidInput(f"{key} is missing from [{prefix}]")
    expected = _EXPECTED.get(first["type"], first["msg"].lower())
    return bad_value(key, first.get("input", table), expected)


def dump_json(value: object) -> str:
    """A dataclass as JSON; `load_json` reads it back to an equal value."""
    return TypeAdapter(type(value)).dump_json(value).decode()


def load_json(cls: type[T], text: str, *, what: str) -> T:
    """The dataclass that `dump_json` wrote; raises `InvalidInput` naming `what` where it does not fit."""
    try:
        return TypeAdapter(cls).validate_json(text)
    except ValidationError as error:
        raise _in_our_words(error, what, {}) from None
