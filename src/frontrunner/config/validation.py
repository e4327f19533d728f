"""Tables to dataclasses and back, by pydantic; its complaints become one `InvalidInput` in our words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.wording import shown_key

T = TypeVar("T")

LARGEST_NUMBER = 2**31 - 1
"""Of any key: random generators take it as a seed, and SQLite holds the product of two, as of tokens a step."""
DEEPEST_TABLE = 8

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dataclass_type": "a table of keys and values",
    "dict_type": "a table of keys and values",
    "model_type": "a table of keys and values",
    "model_attributes_type": "a table of keys and values",
}
"""What was expected of a value, by pydantic's name of the complaint."""
OF_NO_TYPE = [None]
"""What dates and times become in JSON: nothing that any key accepts."""

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def validate(cls: type[T], table: Mapping[str, Any], *, prefix: str) -> T:
    """An instance of the dataclass `cls` from a table of plain values.

    Strict: no text is taken for a number, no true for 1. Raises `InvalidInput` whose message begins with
    `prefix.key`.
    """
    try:
        found: T = _adapter(cls).validate_json(json.dumps(table, default=lambda _: OF_NO_TYPE), strict=True)
    except ValidationError as error:
        raise _in_our_words(error, prefix, table) from None
    return found


def refuse_unusable_values(table: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for the first value that no key takes: NaN, an infinity, a huge number, deep nesting."""
    waiting: list[tuple[str, int, Any]] = [("", 0, table)]
    while waiting:
        path, depth, value = waiting.pop()
        if depth > DEEPEST_TABLE:
            raise InvalidInput(f"{path} is nested more than {DEEPEST_TABLE} deep, which no key is")
        if isinstance(value, Mapping):
            dot = f"{path}." if path else ""
            waiting += [(dot + shown_key(str(key)), depth + 1, item) for key, item in reversed(list(value.items()))]
        elif isinstance(value, list):
            waiting += [(path, depth + 1, item) for item in reversed(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise bad_value(path, value, "a finite number")
        elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            raise bad_value(path, value, f"a number of at most {LARGEST_NUMBER}")


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """What reads and writes a class. It is made once: of a campaign's specification that takes 10 ms."""
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def _in_our_words(error: ValidationError, prefix: str, table: Mapping[str, Any]) -> InvalidInput:
    first = error.errors()[0]
    key = ".".join([prefix, *(shown_key(part) for part in first["loc"] if isinstance(part, str))])
    original = first.get("ctx", {}).get("error")
    if isinstance(original, InvalidInput):
        return InvalidInput(original.message, hint=original.hint)
    if first["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return InvalidInput(f"{key} is missing from [{key.rpartition('.')[0]}]")
    expected = EXPECTED.get(first["type"], "a value of another kind")
    return bad_value(key, _given(first, table), expected)


def _given(complaint: Any, table: Mapping[str, Any]) -> object:
    """The value that a complaint is about, as it was given; what pydantic saw where it cannot be found."""
    value: Any = table
    for part in complaint["loc"]:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return complaint.get("input", table)
    return value


def dump_json(value: object) -> str:
    """A dataclass as JSON; `load_json` reads it back to an equal value."""
    return _adapter(type(value)).dump_json(value).decode()


def load_json(cls: type[T], text: str, *, what: str) -> T:
    """The dataclass that `dump_json` wrote; raises `InvalidInput` naming `what` where it does not fit."""
    try:
        found: T = _adapter(cls).validate_json(text)
    except ValidationError as error:
        raise _in_our_words(error, what, {}) from None
    return found
