"""Values of annotated dataclasses from JSON, read strictly: unknown keys, missing keys and other types are refused.

Only a key with a default may be missing. This module imports neither torch nor numpy.
"""

import dataclasses
import types
import typing
from typing import Any, Literal


def parsed(kind: Any, value: Any, name: str) -> Any:
    """`value` as the annotated type `kind`; `name` is the key's full name, for errors.

    Raises ValueError where a key is unknown or missing, or a value is not of its type.
    """
    if dataclasses.is_dataclass(kind):
        return _fields_of(kind, value, name)
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {value!r}, expected a list")
        return tuple(parsed(typing.get_args(kind)[0], item, f"{name}[{place}]") for place, item in enumerate(value))
    if origin is types.UnionType:
        (inner,) = (arm for arm in typing.get_args(kind) if arm is not types.NoneType)
        return None if value is None else parsed(inner, value, name)
    accepted = (int, float) if kind is float else kind
    # bool is an int to Python, and never a number to a person.
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")
    return kind(value)


def _fields_of(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r}, expected an object")  # noqa: TRY004 - a person's mistake, not a caller's
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise ValueError(f"{name}.{key} is not a key of a job file; {name} has {', '.join(hints)}")
    for field in dataclasses.fields(kind):
        if field.name not in value and field.default is dataclasses.MISSING:
            raise ValueError(f"{name}.{field.name} is missing")
    return kind(**{key: parsed(hints[key], item, f"{name}.{key}") for key, item in value.items()})
