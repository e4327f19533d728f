"""The cells of stored rows, each read so that one which no version of frontrunner wrote is refused by its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from frontrunner.spaces.errors import StoreUnusable, shown

if TYPE_CHECKING:  # nodes read outcomes by the same functions, and need no database
    from frontrunner.results.schema import Base

T = TypeVar("T")
WordT = TypeVar("WordT", bound=StrEnum)
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What readers of text raise of text that is not what they read."""
TIME_COLUMNS = frozenset(
    {"at", "created_at", "updated_at", "recorded_at", "started_at", "finished_at", "driven_since", "lease_until"}
)
"""Columns with a time, in whichever table."""


class DamagedCell(StoreUnusable):
    """A cell that cannot be what was stored. `Database` says of which store it is, and names its newest backup."""

    def __init__(self, table: type[Base], row_id: object, column: str, why: str) -> None:
        self.finding = f"{table.__tablename__} row {row_id}, {column}: {why}"
        super().__init__(
            f"the store is damaged: {self.finding}", hint="restore a backup: frontrunner store copy BACKUP NEW.db"
        )


class LaterVersion(StoreUnusable):
    """Text of a later version of frontrunner, which this one does not know all parts of."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="upgrade frontrunner")
        self.finding = message


class Cells:
    """The cells of one row; `row_id` is the value of its table's key, which the row itself may not hold."""

    def __init__(self, table: type[Base], row: Any, row_id: object) -> None:
        self._table = table
        self._row = row
        self._row_id = row_id

    def read(self, column: str, reader: Callable[[Any], T]) -> T:
        """What `reader` makes of a cell; raises `DamagedCell` where it cannot."""
        return self.made(column, getattr(self._row, column), reader)

    def made(self, column: str, held: Any, reader: Callable[[Any], T]) -> T:
        """What `reader` makes of what was read of a cell; raises `DamagedCell` where it cannot."""
        try:
            return reader(held)
        except LaterVersion as error:
            place = f"{self._table.__tablename__} row {self._row_id}, {column}"
            raise LaterVersion(f"{place}: {error.message}") from error
        except UNREADABLE as error:
            raise self.damaged(column, str(error) or type(error).__name__) from error

    def word(self, column: str, words: type[WordT]) -> WordT:
        """A cell that holds one of the words."""
        held = getattr(self._row, column)
        try:
            return words(held)
        except ValueError:
            raise self.damaged(column, f"it holds {shown(held)}, expected one of {', '.join(words)}") from None

    def time(self, column: str) -> datetime:
        """A cell that holds a time with its offset."""
        return self.read(column, stored_time)

    def of_type(self, column: str, kind: type[T]) -> T:
        """A cell that holds a value of this type; SQLite can hold another."""
        held = getattr(self._row, column)
        if not isinstance(held, kind):
            raise self.damaged(column, f"it holds {shown(held)}, a {type(held).__name__}")
        return held

    def damaged(self, column: str, why: str) -> DamagedCell:
        """The error for a cell of this row."""
        return DamagedCell(self._table, self._row_id, column, why)


def whole(table: type[Base], row: Any) -> Cells:
    """The cells of a row with all columns of its table.

    Raises `DamagedCell` for a value of another type than its column's, which SQLite can hold, and for a text that
    should be a time.
    """
    plan = _plan(table)
    cells = Cells(table, row, getattr(row, plan.key))
    for column, value, kinds in zip(plan.columns, plan.values(row), plan.kinds, strict=True):
        if type(value) not in kinds:
            raise cells.damaged(column, f"it holds {shown(value)}, a {type(value).__name__}")
    for column in plan.times:
        if getattr(row, column) is not None:
            cells.time(column)
    return cells


def stored_time(text: str) -> datetime:
    """A time as `frontrunner.results.clock.timestamp` writes it; raises ValueError for other text."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the time {shown(text)} has no offset")
    return found


class _Plan:
    """What is looked at in each row of a table."""

    def __init__(self, table: type[Base]) -> None:
        columns = table.metadata.tables[table.__tablename__].columns
        self.key = next(column.name for column in columns if column.primary_key)
        self.columns = tuple(column.name for column in columns)
        self.values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.columns)
        self.kinds = tuple(_kinds(column.type.python_type, nullable=bool(column.nullable)) for column in columns)
        self.times = tuple(name for name in self.columns if name in TIME_COLUMNS)


def _kinds(kind: type, *, nullable: bool) -> frozenset[type]:
    whole_numbers_too = {kind, int} if kind is float else {kind}
    return frozenset(whole_numbers_too | ({type(None)} if nullable else set()))


@cache
def _plan(table: type[Base]) -> _Plan:
    return _Plan(table)
