"""Recipes as columns of integers: millions of them in the memory of a few thousand objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from frontrunner.spaces.recipe import Recipe

Rows = npt.NDArray[np.intp]
Codes = npt.NDArray[np.integer[Any]]
FIELDS = tuple(one.name for one in fields(Recipe))
AT_ONCE = 4096
"""Recipes that are made at a time while all are walked through."""
_FACTORS: list[int] = (
    np.random.default_rng(0).integers(1, 2**63, size=len(FIELDS), dtype=np.uint64).tolist()
)
"""Factors of a row's hash, one for each column."""


class Column(NamedTuple):
    """Values, each once, and for every row the place of its own among them."""

    values: Sequence[Any]
    codes: Codes

    @classmethod
    def of(cls, values: Iterable[Any]) -> Column:
        """Return the column of these values, one for each row."""
        places: dict[Any, int] = {}
        codes = np.array(
            [places.setdefault(value, len(places)) for value in values], dtype=np.int32
        )
        return cls(tuple(places), smallest(codes, len(places)))

    @classmethod
    def joined(cls, parts: Sequence[Column]) -> Column:
        """Return the rows of all parts."""
        places: dict[Any, int] = {}
        codes: list[Codes] = [np.empty(0, dtype=np.uint8)]
        for values, own in parts:
            new = np.array(
                [places.setdefault(value, len(places)) for value in values], dtype=np.int32
            )
            codes.append(smallest(new, len(places))[own] if len(own) else codes[0])
        return cls(tuple(places), np.concatenate(codes))


def smallest(codes: Codes, values: int) -> Codes:
    """Return the codes of so many values in as few bytes as they need."""
    return codes.astype(
        np.uint8 if values <= 2**8 else np.uint16 if values <= 2**16 else np.int32, copy=False
    )


class Reader:
    """A recipe that notes which of its fields were read, in the order of the first time."""

    __slots__ = ("_read", "_recipe")

    def __init__(self, recipe: Recipe, read: dict[str, None]) -> None:
        self._recipe, self._read = recipe, read

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS:
            self._read[name] = None
            return getattr(self._recipe, name)
        found: Any = getattr(Recipe, name)  # a derived value, which reads fields in turn
        read = found.fget if isinstance(found, property) else None
        return found.__get__(self) if read is None else read(self)


@dataclass
class _Node:
    """What a function of a recipe reads next, given what it has read; `value` is what it returns
    where it is `done`.
    """

    reads: str = ""
    next: dict[int, _Node] = field(default_factory=dict)
    done: bool = False
    value: Any = None


class RecipeColumns(Sequence[Recipe]):
    """Recipes by row, which are made when they are looked at.

    `each` evaluates a function of one recipe for all rows: once for each combination of the values
    that it reads, so that rules and formulas are written for one recipe and hold for millions.
    """

    def __init__(self, columns: Mapping[str, Column], length: int) -> None:
        self.columns, self._length = columns, length

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> RecipeColumns:
        """Return these recipes as columns."""
        if isinstance(recipes, RecipeColumns):
            return recipes
        return cls(
            {name: Column.of(getattr(one, name) for one in recipes) for name in FIELDS},
            len(recipes),
        )

    @classmethod
    def joined(cls, parts: Sequence[RecipeColumns]) -> RecipeColumns:
        """Return the recipes of all parts."""
        columns = {name: Column.joined([part.columns[name] for part in parts]) for name in FIELDS}
        return cls(columns, sum(map(len, parts)))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<{len(self):,} recipes>"

    @overload
    def __getitem__(self, row: int) -> Recipe: ...
    @overload
    def __getitem__(self, row: slice) -> RecipeColumns: ...
    def __getitem__(self, row: int | slice) -> Recipe | RecipeColumns:
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return Recipe(
            **{name: values[codes[row]] for name, (values, codes) in self.columns.items()}
        )

    def __iter__(self) -> Iterator[Recipe]:
        for start in range(0, len(self), AT_ONCE):
            cells = (
                [values[code] for code in codes[start : start + AT_ONCE].tolist()]
                for values, codes in self.columns.values()
            )
            for row in zip(*cells, strict=True):
                yield Recipe(**dict(zip(self.columns, row, strict=True)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(map(Recipe.__eq__, self, other))
        )

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Rows | npt.NDArray[np.bool_]) -> RecipeColumns:
        """Return the recipes of these rows."""
        columns = {
            name: Column(values, codes[rows]) for name, (values, codes) in self.columns.items()
        }
        return RecipeColumns(columns, len(next(iter(columns.values())).codes))

    def each(self, function: Callable[[Recipe], Any], kind: Any = object) -> npt.NDArray[Any]:
        """Return a pure function's value for each row, as an array of a numpy type.

        It may read the recipe's fields, and call properties and methods that do.
        """
        found = np.empty(len(self), dtype=kind)
        waiting: list[tuple[Rows, _Node, int]] = (
            [(np.arange(len(self)), _Node(), 0)] if len(self) else []
        )
        while waiting:
            rows, node, depth = waiting.pop()
            if not node.done and not node.reads:
                self._follow(function, int(rows[0]), node, depth)
            if node.done:
                if kind is object:
                    found[rows] = np.array([node.value, None], dtype=object)[:1]
                else:
                    found[rows] = node.value
                continue
            codes = self.columns[node.reads].codes[rows]
            if (codes == codes[0]).all():
                waiting.append((rows, node.next.setdefault(int(codes[0]), _Node()), depth + 1))
                continue
            order = np.argsort(codes, kind="stable")
            cuts = np.flatnonzero(np.diff(codes[order])) + 1
            for part in np.split(rows[order], cuts):
                code = int(self.columns[node.reads].codes[part[0]])
                waiting.append((part, node.next.setdefault(code, _Node()), depth + 1))
        return found

    def _follow(self, function: Callable[[Recipe], Any], row: int, node: _Node, depth: int) -> None:
        """Evaluate the function for one row, and note from a node on what it reads and returns."""
        read: dict[str, None] = {}
        value = function(Reader(self[row], read))  # type: ignore[arg-type]
        for name in list(read)[depth:]:
            node.reads = name
            node = node.next.setdefault(int(self.columns[name].codes[row]), _Node())
        node.done, node.value = True, value

    def row(self, recipe: Recipe) -> int | None:
        """Return the first row of a recipe, or None."""
        codes = {}
        for name, places in self._places.items():
            code = places.get(getattr(recipe, name))
            if code is None:
                return None
            codes[name] = code
        hashes, order = self._hashes
        wanted = _hash_of_one(codes.values())
        first, last = (
            int(np.searchsorted(hashes, wanted, side=side)) for side in ("left", "right")
        )
        rows = (int(row) for row in order[first:last])
        columns = self.columns
        return min(
            (
                row
                for row in rows
                if all(columns[name].codes[row] == code for name, code in codes.items())
            ),
            default=None,
        )

    def __contains__(self, recipe: object) -> bool:
        return isinstance(recipe, Recipe) and self.row(recipe) is not None

    @cached_property
    def _places(self) -> Mapping[str, Mapping[Any, int]]:
        return {
            name: {value: at for at, value in enumerate(column.values)}
            for name, column in self.columns.items()
        }

    @cached_property
    def _hashes(self) -> tuple[npt.NDArray[np.uint64], Rows]:
        found = _hash({name: column.codes for name, column in self.columns.items()})
        order = np.argsort(found, kind="stable")
        return found[order], order


def each(
    recipes: Sequence[Recipe], function: Callable[[Recipe], Any], kind: Any = object
) -> npt.NDArray[Any]:
    """Return a pure function's value for each recipe; see `RecipeColumns.each`."""
    if isinstance(recipes, RecipeColumns):
        return recipes.each(function, kind)
    return np.fromiter(map(function, recipes), dtype=kind, count=len(recipes))


def chosen(recipes: Sequence[Recipe], rows: Rows) -> Sequence[Recipe]:
    """Return the recipes of these rows."""
    return (
        recipes.take(rows)
        if isinstance(recipes, RecipeColumns)
        else [recipes[row] for row in rows.tolist()]
    )


def _hash(codes: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """Return a number for each row that is the same for equal codes, and nearly always another for
    others.
    """
    found = np.zeros(len(next(iter(codes.values()))), dtype=np.uint64)
    for column, factor in zip(codes.values(), _FACTORS, strict=False):
        found += (column.astype(np.uint64) + np.uint64(1)) * np.uint64(factor)
    return found


def _hash_of_one(codes: Iterable[int]) -> np.uint64:
    """Return what `_hash` does for one row, without an array for each code."""
    products = ((code + 1) * factor for code, factor in zip(codes, _FACTORS, strict=False))
    return np.uint64(sum(products) % 2**64)


class Places:
    """For each row of some recipes a point of a space: a column of choices for each dimension.

    They are kept as `numbers` of points, counted through the `dimensions` with the last one
    fastest, or as `columns`.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Sequence[Any]],
        numbers: Rows | None = None,
        columns: Mapping[str, Column] | None = None,
    ) -> None:
        self._dimensions, self._numbers, self._columns = dimensions, numbers, columns or {}

    @classmethod
    def of(
        cls, dimensions: Mapping[str, Sequence[Any]], points: Sequence[Mapping[str, Any]]
    ) -> Places:
        """Return these points, whose choices need not be among those of the dimensions."""
        columns = {name: Column.of(point[name] for point in points) for name in dimensions}
        return cls(dimensions, columns=columns)

    def __eq__(self, other: object) -> bool:
        def points(of: Places) -> list[list[Any]]:
            columns = (of.column(name) for name in of._dimensions)
            return [[values[code] for code in codes.tolist()] for values, codes in columns]

        if not isinstance(other, Places) or self._dimensions != other._dimensions:
            return False
        return points(self) == points(other)

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> Column:
        """Return the choices of one dimension."""
        if self._numbers is None:
            return self._columns[name]
        names = list(self._dimensions)
        after = math.prod(len(self._dimensions[other]) for other in names[names.index(name) + 1 :])
        size = len(self._dimensions[name])
        return Column(self._dimensions[name], smallest(self._numbers // after % size, size))

    def take(self, rows: Rows | npt.NDArray[np.bool_]) -> Places:
        """Return the points of these rows."""
        if self._numbers is not None:
            return Places(self._dimensions, self._numbers[rows])
        columns = {
            name: Column(values, codes[rows]) for name, (values, codes) in self._columns.items()
        }
        return Places(self._dimensions, columns=columns)
