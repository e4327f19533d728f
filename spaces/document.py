"""Recipes as documents: versioned JSON with a hash, so that a recipe has the same identity everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import STORED_NAMES, Recipe, current_names

DOCUMENT_VERSION = 1
ID_LENGTH = 12


def identity(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """Return what makes two recipes the same: the model's shape, the devices, the batch's form and every choice.

    Names, measured rates and memory sizes stay out, so that calibrating a cluster keeps the identity of what was
    measured. Fields at their default stay out too, so that a later version may add a field.
    """
    return {
        "version": DOCUMENT_VERSION,
        "model": {key: value for key, value in _off_default(problem.model).items() if key != "name"},
        "cluster": {key: getattr(problem.cluster, key) for key in ("device", "backend", "devices_per_node")},
        "sequence_length": problem.sequence_length,
        "precision": problem.precision,
        "recipe": _off_default(recipe),
    }


def _off_default(value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for f in fields(value):
        item = getattr(value, f.name)
        if f.default is MISSING or item != f.default:
            kept[STORED_NAMES.get(f.name, f.name)] = _off_default(item) if is_dataclass(item) else item
    return kept


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file durably and atomically; leave no temporary file if the disk is full."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the rename itself
    os.close(folder)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; NaN and infinities are refused with ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def recipe_id(problem: Problem, recipe: Recipe) -> str:
    """Return the first 12 hexadecimal digits of SHA-256 over the canonical JSON of `identity`."""
    text = canonical_json(identity(problem, recipe))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def read_plain(kind: Any, value: Any, name: str) -> Any:
    """Return a value of plain JSON as the annotated type `kind`, strictly; `name` is the key's full name.

    Ranks of a probe use it, which do not load pydantic. Raises ValueError naming the key.
    """
    arms, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is types.UnionType:
        return None if value is None else read_plain(arms[0], value, name)
    if is_dataclass(kind):
        return _read_dataclass(kind, _required(dict, value, name, "an object"), name)
    if origin is tuple:
        items = _required((list, tuple), value, name, "a list")
        return tuple(read_plain(arms[0], item, f"{name}[{place}]") for place, item in enumerate(items))
    if origin is Literal:
        if value not in arms:
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, arms))}")
        return value
    if isinstance(value, bool) and kind is not bool:  # an int to Python, and never a number to a person
        raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")
    return kind(_required((int, float) if kind is float else kind, value, name, kind.__name__))


def _required(accepted: Any, value: Any, name: str, expected: str) -> Any:
    if not isinstance(value, accepted):
        raise ValueError(f"{name} is {value!r}, expected {expected}")  # noqa: TRY004 - a person's mistake
    return value


def _read_dataclass(kind: Any, table: dict[str, Any], name: str) -> Any:
    table = current_names(table) if kind is Recipe else table
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise ValueError(f"{name}.{key} is not a key; {name} has {', '.join(hints)}")
    for field in fields(kind):
        if field.name not in table and field.default is MISSING:
            raise ValueError(f"{name}.{field.name} is missing")
    return kind(**{key: read_plain(hints[key], item, f"{name}.{key}") for key, item in table.items()})
