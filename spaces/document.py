"""Recipes as documents: versioned JSON with a hash, so that a recipe has the same identity
everywhere.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.spaces.model.keys import REQUIRED
from frontrunner.spaces.model.model import KEYS, Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import STORED_NAMES, Recipe, current_fields

if TYPE_CHECKING:
    from frontrunner.spaces.columns import RecipeColumns

DOCUMENT_VERSION = 1
ID_LENGTH = 12
IDS_AT_ONCE = 10_000


def identity(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """Return what makes two recipes the same: the model's shape, the devices, the batch's form and
    every choice.

    Names, measured rates and memory sizes stay out, so that calibrating a cluster keeps the
    identity of what was measured. Fields at their default stay out too, so that a later version may
    add a field.
    """
    cluster = problem.cluster
    return {
        "version": DOCUMENT_VERSION,
        "model": {
            key: _plain(value)
            for key, value in problem.model.stated_keys().items()
            if key != "name"
        },
        "cluster": {
            key: getattr(cluster, key) for key in ("device", "backend", "devices_per_node")
        },
        "sequence_length": problem.sequence_length,
        "precision": problem.precision,
        "recipe": _off_default(recipe),
    }


def _off_default(value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for f in fields(value):
        item = getattr(value, f.name)
        if f.default is MISSING or item != f.default:
            kept[STORED_NAMES.get(f.name, f.name)] = _plain(item)
    return kept


def _plain(item: Any) -> Any:
    if isinstance(item, tuple):
        return [_plain(one) for one in item]
    return _off_default(item) if is_dataclass(item) else item


def as_table(value: Any) -> Any:
    """Return a value with every dataclass in it as a dictionary, as `dataclasses.asdict` does, and
    every model as its keys.
    """
    if isinstance(value, Model):
        return value.plain_keys()
    if is_dataclass(value):
        return {f.name: as_table(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return type(value)(as_table(item) for item in value)
    if isinstance(value, dict):
        return {key: as_table(item) for key, item in value.items()}
    return value


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None where it is missing, NaN or infinite, for which JSON has no
    word.
    """
    return value if value is not None and math.isfinite(value) else None


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


def recipe_ids(problem: Problem, recipes: RecipeColumns) -> Iterator[str]:
    """Yield the `recipe_id` of each recipe, in a tenth of the time: text is made per value, not per
    recipe.
    """
    if not len(recipes):
        return
    stated = {one.name: one.default for one in fields(Recipe)}
    columns = sorted(
        (STORED_NAMES.get(name, name), name, column) for name, column in recipes.columns.items()
    )
    runs: list[tuple[list[str], Any]] = [([""], None)]
    for key, name, (values, codes) in columns:
        texts = [
            ""
            if stated[name] is not MISSING and value == stated[name]
            else f',"{key}":{canonical_json(_plain(value))}'
            for value in values
        ]
        present = set(codes.tolist()) if len(values) > 1 else {0}
        if len(present) == 1:
            before, last = runs[-1]
            constant = texts[present.pop()]
            runs[-1] = [text + constant for text in before], last
        else:
            runs.append((texts, codes))
    (always,), _ = runs.pop(0)
    whole = canonical_json(identity(problem, recipes[0]) | {"recipe": {}})
    before_text, after = whole.split('"recipe":{}')
    begun, after_text = hashlib.sha256(f'{before_text}"recipe":{{'.encode()), f"}}{after}".encode()
    for start in range(0, len(recipes), IDS_AT_ONCE):
        rows = slice(start, start + IDS_AT_ONCE)
        parts = [[texts[code] for code in codes[rows].tolist()] for texts, codes in runs]
        count = min(IDS_AT_ONCE, len(recipes) - start)
        varied = zip(*parts, strict=True) if parts else itertools.repeat((), count)
        for own in varied:
            found = begun.copy()
            found.update((always + "".join(own))[1:].encode() + after_text)
            yield found.hexdigest()[:ID_LENGTH]


def _read_table(
    kinds: Mapping[str, Any], required: Set[str], table: Mapping[str, Any], name: str
) -> dict[str, Any]:
    if unknown := set(table) - set(kinds):
        raise ValueError(f"{name}.{min(unknown)} is not a key; {name} has {', '.join(kinds)}")
    if missing := required - set(table):
        raise ValueError(f"{name}.{min(missing)} is missing")
    return {key: read_plain(kinds[key], item, f"{name}.{key}") for key, item in table.items()}


def read_plain(kind: Any, value: Any, name: str) -> Any:
    """Return a value of plain JSON as the annotated type `kind`, strictly; `name` is the key's full
    name.

    Ranks of a probe use it, which do not load pydantic. Raises ValueError naming the key.
    """
    arms, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is types.UnionType and type(None) not in arms:
        if type(value) not in arms:
            known = " or ".join(arm.__name__ for arm in arms)
            raise ValueError(f"{name} is {value!r}, expected {known}")
        return value
    if origin is types.UnionType:
        return None if value is None else read_plain(arms[0], value, name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(
            read_plain(arms[0], item, f"{name}[{place}]") for place, item in enumerate(value)
        )
    is_table = is_dataclass(kind)
    if kind is Model and isinstance(value, dict):
        kinds = {key: one.type for key, one in KEYS.items()}
        needed = {key for key, one in KEYS.items() if one.default is REQUIRED}
        return Model.from_keys(**_read_table(kinds, needed, value, name))
    if is_table and isinstance(value, dict):
        table, hints = (
            current_fields(value) if kind is Recipe else value,
            typing.get_type_hints(kind),
        )
        required = {f.name for f in fields(kind) if f.default is MISSING}
        return kind(**_read_table(hints, required, table, name))
    accepted = (int, float) if kind is float else kind
    if (
        value not in arms
        if arms
        else not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool)
    ):
        known = f"one of {', '.join(map(repr, arms))}" if arms else kind.__name__
        raise ValueError(f"{name} is {value!r}, expected {'an object' if is_table else known}")
    return float(value) if kind is float else value
