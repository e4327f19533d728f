"""Validation of configuration and stored JSON by pydantic; a mistake becomes one `InvalidInput` in
plain words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
)

from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    bad_value,
    did_you_mean,
    shown,
    shown_key,
)

T = TypeVar("T")
C = TypeVar("C", bound="Config")
Table = Mapping[str, Any]

LARGEST_NUMBER = 2**31 - 1
"""For any key: random generators take it as a seed, and SQLite holds the product of two."""
DEEPEST_TABLE = 8
OF_NO_TYPE = [None]  # JSON for a date or time: a value that no key accepts
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
A_TABLE = "a table of keys and values"
EXPECTED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text in quotes",
    "tuple_type": "a list",
    **dict.fromkeys(
        ("dataclass_type", "dict_type", "mapping_type", "model_type", "model_attributes_type"),
        A_TABLE,
    ),
}


class Config(BaseModel):
    """Base of the configuration tree: frozen, strict, without unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True)
class SchemaOf:
    """Annotation that adapts a table's JSON Schema to what its validators accept."""

    adapt: Callable[[dict[str, Any]], None]

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = deepcopy(handler.resolve_ref_schema(handler(core_schema)))
        self.adapt(schema)
        return schema


def parse(tree: type[C], table: Table, *, largest: int = LARGEST_NUMBER, **context: object) -> C:
    """Validate a parsed TOML or JSON table; validators read `context`. Raises `InvalidInput` naming
    the key.
    """
    refuse_unusable_values(table, largest)
    try:
        # As JSON, in which strict validation takes a list for a tuple and a table for a dataclass.
        return tree.model_validate_json(
            json.dumps(table, default=lambda _: OF_NO_TYPE), context=context
        )
    except ValidationError as error:
        raise invalid_input(error.errors(), table, tree) from None


def validate(cls: type[T], table: Table, *, prefix: str, largest: int = LARGEST_NUMBER) -> T:
    """Validate the table of one dataclass; messages begin with `prefix.key`."""
    found: T = getattr(parse(_tree_of(cls, prefix), {prefix: table}, largest=largest), prefix)  # type: ignore[arg-type]
    return found


@cache
def _tree_of(cls: Hashable, key: str) -> type[Config]:
    return create_model(f"{key.title()}Tree", __base__=Config, **{key: (cls, ...)})  # type: ignore[call-overload,no-any-return]


def refuse_unusable_values(table: Table, largest: int = LARGEST_NUMBER) -> None:
    """Raise `InvalidInput` for the first value that no key takes: NaN, infinity, a huge number,
    deep nesting.
    """
    waiting: list[tuple[str, int, Any]] = [("", 0, table)]
    while waiting:
        path, depth, value = waiting.pop()
        if depth > DEEPEST_TABLE:
            raise InvalidInput(f"{path} is nested more than {DEEPEST_TABLE} deep, which no key is")
        if isinstance(value, Mapping):
            dot = f"{path}." if path else ""
            waiting += [
                (dot + shown_key(str(key)), depth + 1, item)
                for key, item in reversed(list(value.items()))
            ]
        elif isinstance(value, list):
            waiting += [(path, depth + 1, item) for item in reversed(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise bad_value(path, value, "a finite number")
        elif isinstance(value, int | float) and abs(value) > largest:
            raise bad_value(path, value, f"a number of at most {largest}")


def invalid_input(
    errors: Sequence[Mapping[str, Any]], given: object = None, tree: type[BaseModel] | None = None
) -> FrontrunnerError:
    """Convert pydantic's errors into ours: of several, the first unknown key, else the first.

    `given` is the validated table, for values as they were written; `tree` is the model, for
    suggestions of keys.
    """
    first = next((error for error in errors if error["type"] in UNKNOWN_KEY), errors[0])
    original = first.get("ctx", {}).get("error")
    if isinstance(original, FrontrunnerError):
        return type(original)(original.message, hint=original.hint)
    place: tuple[str | int, ...] = first["loc"]
    names = [shown_key(part) for part in place if isinstance(part, str)]
    key, value = ".".join(names) or "the body", _value_at(place, given, first.get("input"))
    if first["type"] == "json_invalid":
        return InvalidInput(f"{key} is not JSON: {original}")
    tables = inlined_schema(tree).get("properties", {}) if tree is not None else {}
    sections = [name for name, table in tables.items() if table.get("type") == "object"]
    if first["type"] in UNKNOWN_KEY:
        is_section = len(names) == 1 and isinstance(value, Mapping) and sections
        what = f"section [{key}]" if is_section else f"key {key} = {shown(value)}"
        return InvalidInput(f"unknown {what}", hint=_suggestion(place, tables))
    if first["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
        if key in sections:
            return InvalidInput(
                f"[{key}] is missing", hint="`frontrunner init` writes a file with what is needed"
            )
        return InvalidInput(
            f"{key} is missing" + (f" from [{'.'.join(names[:-1])}]" if names[1:] else "")
        )
    expected = EXPECTED.get(first["type"])
    if expected is None:
        subject, _, rest = str(first["msg"]).partition(" should ")
        is_plain = rest.startswith("be ")
        expected = (
            rest.removeprefix("be ")
            if is_plain
            else f"a {subject.lower()} to {rest}".removesuffix(" to ")
        )
    return bad_value(
        key, value, f"a section: [{key}]" if expected == A_TABLE and key in sections else expected
    )


def _value_at(place: Sequence[str | int], given: object, otherwise: object) -> object:
    """Return the value at a place as it was written, a date included; else what pydantic saw."""
    value: Any = given
    for part in place:
        if not isinstance(value, dict | list):
            break
        try:
            value = value[part]  # type: ignore[index]
        except (LookupError, TypeError):
            return otherwise
    return otherwise if value is None else value


def _suggestion(place: Sequence[str | int], tables: Table) -> str | None:
    """Suggest the nearest key of the same table, else where a key of exactly this name belongs."""
    *path, key = [part for part in place if isinstance(part, str)]
    known: Table = tables
    for part in path:
        known = known.get(part, {}).get("properties", {})
    hint = did_you_mean(key, known)
    owners = [name for name, table in tables.items() if key in table.get("properties", {})]
    is_close = hint is not None and not hint.startswith("known: ")
    if path and not is_close and tables.get(key, {}).get("type", "object") != "object":
        return f"{key} belongs above the first [section]"
    return f"{key} belongs in [{owners[0]}]" if owners and not is_close else hint


@cache
def inlined_schema(tree: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model without references and titles; no table in it takes an
    unknown key.
    """
    found = tree.model_json_schema()
    plain: dict[str, Any] = _plain(found, found.get("$defs", {}))
    return plain


def _plain(node: Any, definitions: dict[str, Any], within: tuple[str, ...] = ()) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions, within) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in within:  # a table that may hold tables of its own kind
            return {"type": "object"}
        node, within = (
            definitions[name] | {key: node[key] for key in node if key != "$ref"},
            (*within, name),
        )
    is_title = isinstance(node.get("title"), str)
    left_out = ("$defs", "title") if is_title else ("$defs",)
    plain = {
        key: _plain(value, definitions, within)
        for key, value in node.items()
        if key not in left_out
    }
    return plain | (
        {"additionalProperties": False} if isinstance(node.get("properties"), dict) else {}
    )


@cache
def _adapter(cls: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cls)  # type: ignore[arg-type]


def dump_json(value: object) -> str:
    """Return a dataclass as JSON; `load_json` reads it back to an equal value."""
    return _adapter(type(value)).dump_json(value).decode()  # type: ignore[arg-type]


def load_json(cls: type[T], text: str, *, what: str) -> T:
    """Return the dataclass that `dump_json` wrote; raises `InvalidInput` naming `what` where it
    does not fit.
    """
    try:
        found: T = _adapter(cls).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        raise invalid_input(
            [{**one, "loc": (what, *one["loc"])} for one in error.errors()]
        ) from None
    return found
