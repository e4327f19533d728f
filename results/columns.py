"""Types of the store's columns: what each holds beyond its SQL type, and the JSON documents in some.

A column's type is declared with the column, in `frontrunner.results.schema`, and checked by `frontrunner.results.rows`.
"""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, Field, Json, PlainValidator, TypeAdapter
from sqlalchemy import BigInteger
from sqlalchemy.orm import MappedColumn, mapped_column

from frontrunner.results.outcome import LARGEST
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import timestamp
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import CAMPAIGN_NAME, StoreUnusable, shown
from frontrunner.spaces.recipe import Recipe, current_names, stored_recipe

T = TypeVar("T")
RECIPES_KEPT = 8192
"""Size of the cache of recipes by their text: about 1 KiB each."""


class LaterVersion(StoreUnusable):
    """A document that a later version of frontrunner wrote, with fields that this one does not know."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="upgrade frontrunner")
        self.finding = message


def recipe_to_json(recipe: Recipe) -> str:
    """Return every field of the recipe, as canonical JSON."""
    return canonical_json(stored_recipe(recipe))


@lru_cache(maxsize=RECIPES_KEPT)
def recipe_from_json(text: str) -> Recipe:
    """Read what `recipe_to_json` wrote; raises ValueError for other text, and `LaterVersion`."""
    return document(Recipe, text, names=current_names)


def provenance_from_json(text: str) -> Provenance:
    """Read the provenance that a driver recorded; raises ValueError for other text, and `LaterVersion`."""
    return document(Provenance, text)


def document(kind: type[T], text: str, *, names: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> T:
    """Read a dataclass from its JSON text, strictly; fields with a default may be missing.

    `names` replaces keys of earlier versions. Raises ValueError for other text, and `LaterVersion` where it has all
    fields and others as well.
    """
    table = names(_TABLE.validate_json(text, strict=True))
    _refuse_unknown(kind, table)
    found: T = _adapter(cast(Any, kind)).validate_json(json.dumps(table), strict=True)
    return found


def _refuse_unknown(kind: type, found: object) -> None:
    if not isinstance(found, Mapping):
        return
    names = {field.name for field in fields(kind)}
    unknown = [name for name in found if name not in names]
    if unknown and names <= found.keys():
        raise LaterVersion(f"this version does not know {', '.join(map(shown, unknown[:3]))}")
    if unknown:
        raise ValueError(f"{shown(unknown[0])} is not known")
    for name, hint in typing.get_type_hints(kind).items() if any(map(_is_table, found.values())) else ():
        if is_dataclass(hint) and isinstance(hint, type):
            _refuse_unknown(hint, found.get(name))


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def holds(kind: Any, *arguments: Any) -> MappedColumn[Any]:
    """Return a column whose values are of a pydantic type."""
    return mapped_column(*arguments, info={"holds": kind})


def one_of(words: type[StrEnum]) -> MappedColumn[Any]:
    """Return a column that holds one of an enum's values."""
    return holds(Annotated[words, Field(strict=False)])


def _time(value: str) -> str:
    if timestamp(datetime.fromisoformat(value)) != value:
        raise ValueError("expected a time in UTC, with offset and microseconds")
    return value


def _table(value: str) -> str:
    _TABLE.validate_json(value, strict=True)
    return value


def _nan_if_null(value: float | None) -> float:
    return math.nan if value is None else value


def _parsed(reader: Callable[[str], T]) -> PlainValidator:
    return PlainValidator(reader)


_TABLE = TypeAdapter(dict[str, Any])
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_AboveZero = Annotated[_Finite, Field(gt=0)]
_NotNegative = Annotated[_Finite, Field(ge=0)]
_Size = Annotated[int, Field(ge=0, le=LARGEST)]

CampaignName = Annotated[str, holds(Annotated[str, Field(pattern=f"^{CAMPAIGN_NAME.pattern}$")])]
Time = Annotated[str, holds(Annotated[str, AfterValidator(_time)])]
Count = Annotated[int, holds(_Size)]
BigCount = Annotated[int, holds(_Size, BigInteger)]
Ordinal = Annotated[int, holds(Annotated[int, Field(ge=1, le=LARGEST)])]
"""Of what is counted from 1."""
Figure = Annotated[float, holds(_NotNegative)]
Rate = Annotated[float, holds(_AboveZero)]
"""Of figures that others are divided by."""
SideFigure = Annotated[float, holds(Annotated[_NotNegative | None, AfterValidator(_nan_if_null)])]
"""Stored as NULL where it is not finite."""
TableText = Annotated[str, holds(Annotated[str, AfterValidator(_table)])]
"""A JSON object that is kept as text."""
TableOf = Annotated[str, holds(Json[dict[str, Any]])]
StepTimes = Annotated[str, holds(Json[Annotated[tuple[_AboveZero, ...], Field(min_length=1)]])]
Sizes = Annotated[str, holds(Json[Annotated[tuple[_Size, ...], Field(min_length=1)]])]
Losses = Annotated[str, holds(Json[tuple[Annotated[_Finite | None, AfterValidator(_nan_if_null)], ...]])]
RecipeText = Annotated[str, holds(Annotated[Recipe, _parsed(recipe_from_json)])]
ProvenanceText = Annotated[str, holds(Annotated[Provenance, _parsed(provenance_from_json)])]
