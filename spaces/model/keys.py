"""Keys of the section [model]: each is a field of a part, which declares it with `key`."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any

from frontrunner.spaces.errors import (
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)

KEY = "key"
REQUIRED: Any = object()
"""Default of a key that every model must state."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a key accepts.

    `name` is the key's name where the field is called otherwise. `absent` is the key's value where
    a model does not have the part, for a field that every such part must state.
    """

    name: str | None = None
    absent: Any = REQUIRED
    words: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    is_positive: bool = False


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of [model]: a field of a part, its type, and its default or `REQUIRED`."""

    name: str
    field: str
    part: type
    type: Any
    default: Any
    words: tuple[str, ...]
    """The values of a key that chooses one of several; empty for other keys."""


def key(name: str | None = None, *, default: Any = MISSING, **accepted: Any) -> Any:
    """Return a dataclass field that is a key of [model].

    Args:
        name: The key's name, if the field has another name.
        default: The key's default; without one the key is required.
        accepted: Further fields of `Rule`.
    """
    return field(default=default, metadata={KEY: Rule(name=name, **accepted)})


@cache
def keys_of(part: Any) -> tuple[Key, ...]:
    """Return the keys that a part declares, in the order of its fields."""
    types = typing.get_type_hints(part)
    return tuple(_key(part, f, types[f.name]) for f in _key_fields(part))


def _key_fields(part: Any) -> list[Field[Any]]:
    return [f for f in fields(part) if KEY in f.metadata]


def _key(part: type, declared: Field[Any], kind: Any) -> Key:
    rule: Rule = declared.metadata[KEY]
    default = rule.absent if declared.default is MISSING else declared.default
    return Key(
        name=rule.name or declared.name,
        field=declared.name,
        part=part,
        type=kind | None if default is None else kind,
        default=default,
        words=rule.words,
    )


def values_of(part: Any) -> dict[str, Any]:
    """Return the values of a part's keys, by the key's name."""
    kind: Any = type(part)
    return {one.name: getattr(part, one.field) for one in keys_of(kind)}


def fields_from(part: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a part from the values of keys."""
    return {one.field: values[one.name] for one in keys_of(part)}


def check_keys(part: Any) -> None:
    """Raise `InvalidInput` for the first key of a part whose value its `Rule` does not accept."""
    for declared in _key_fields(part):
        rule: Rule = declared.metadata[KEY]
        name, value = rule.name or declared.name, getattr(part, declared.name)
        if value is None:
            continue
        if rule.least is not None:
            require_at_least("model", rule.least, **{name: value})
        if rule.most is not None and value > rule.most:
            raise bad_value(f"model.{name}", value, f"at most {rule.most:,}")
        if rule.words:
            require_one_of("model", name, value, rule.words)
        if rule.is_positive:
            require_above_zero(f"model.{name}", value, "above 0")


def by_name(parts: Iterable[type]) -> dict[str, Key]:
    """Return the keys of several parts by name, first those that are required.

    Where parts share a key, the first part's declaration counts.
    """
    found: dict[str, Key] = {}
    for part in parts:
        for one in keys_of(part):
            found.setdefault(one.name, one)
    required = {name: one for name, one in found.items() if one.default is REQUIRED}
    return required | found
