"""How a table differs from the schema: names, units and constants that a person gives, and what they make of cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from frontrunner.evaluators.tables.schema import (
    COLUMNS,
    EMPTY,
    NOT_READ,
    NUMBERS,
    UNITS,
    CsvTable,
    Refusals,
    Row,
    precision_of,
    row_of,
)
from frontrunner.spaces.cluster import PRECISIONS
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, shown_key

NEEDED = (("gpus",), ("seq",), ("mbs",), ("gbs", "gas"), ("hidden", "n_params_b"), ("step_time_s", "status"))
"""Columns without which no row becomes a recipe with an outcome; of several any one is enough."""


class Source(NamedTuple):
    """The table's own name of a column of the schema, and its unit, None where it was not given."""

    theirs: str
    unit: str | None


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """What a person said of a table's columns.

    `columns` are by their name in the schema, `constants` hold for every row, `ignored` are the table's to leave out.
    """

    columns: Mapping[str, Source]
    constants: Mapping[str, str]
    ignored: frozenset[str]

    def unit(self, name: str) -> str | None:
        """Return the unit that was given for a column of the schema, or None."""
        return self.columns[name].unit if name in self.columns else None

    def source(self, name: str) -> str:
        """Return the table's own name for a column of the schema."""
        return self.columns[name].theirs if name in self.columns else name


def parse_mapping(columns: Sequence[str], constants: Sequence[str], ignored: Sequence[str]) -> Mapped:
    """Parse `NAME=THEIRS[:unit]`, `NAME=VALUE` and `THEIRS`, as they are given on the command line.

    Raises `InvalidInput` for a name that is not in the schema, a unit that its column does not take, and for a column
    that is named twice.
    """
    found: dict[str, Source] = {}
    fixed: dict[str, str] = {}
    expected = {
        "--column": "NAME=THEIRS or NAME=THEIRS:unit, as step_time_s=iter_ms:ms",
        "--set": "NAME=VALUE, as hardware=h100",
    }
    for flag, text in [("--column", text) for text in columns] + [("--set", text) for text in constants]:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise bad_value(flag, text, expected[flag])
        if name not in COLUMNS:
            raise bad_value(flag, text, "a column of the table form before the =", hint=did_you_mean(name, COLUMNS))
        if name in found or name in fixed:
            raise InvalidInput(f"column {name} is given twice: expected one --column or --set for it")
        if flag == "--set":
            fixed[name] = value
        else:
            found[name] = _source(name, value)
    return Mapped(columns=found, constants=fixed, ignored=frozenset(ignored))


def _source(name: str, value: str) -> Source:
    theirs, colon, unit = value.rpartition(":")
    units = UNITS.get(name, {})
    if colon and unit in units:
        return Source(theirs, unit)
    if colon and units and theirs:
        raise bad_value("--column", f"{name}={value}", f"a unit of {', '.join(units)}", hint=did_you_mean(unit, units))
    return Source(value, None)  # a colon may be part of their name


def mapped_rows(table: CsvTable, mapped: Mapped, *, default_hardware: str | None, left_out: Refusals) -> list[Row]:
    """Return the rows whose cells can be used, in the schema's units; count the others in `left_out`.

    Rows that name no hardware are of `default_hardware`. Raises `InvalidInput` for columns that are unknown, explained
    twice or missing.
    """
    places = _places(table, mapped)
    _require_columns({*places, *mapped.constants}, needs_hardware=default_hardware is None)
    rows = []
    for number, cells in enumerate(table.cells):
        given = {name: cells[place] for name, place in places.items()} | dict(mapped.constants)
        row = row_of(number, given)
        row.hardware = row.hardware or default_hardware or ""
        bad = _bad_number(row, given)
        for name, units in UNITS.items():
            setattr(row, name, getattr(row, name) * units.get(mapped.unit(name) or "", 1.0))
        reason = bad or _why_not(row)
        if reason:
            left_out.add(reason, row.number)
        else:
            rows.append(row)
    return rows


def _bad_number(row: Row, given: Mapping[str, str]) -> str | None:
    for name in NUMBERS:
        value = getattr(row, name)
        if math.isnan(value) and given.get(name, "").strip() not in EMPTY:
            return f"{name} is not a number"
        if value < 0:
            return f"{name} is negative"
    return None


def _why_not(row: Row) -> str | None:
    """Return why nothing can be learned from a row, or None: a step in fp8 says nothing of one in bf16."""
    if not row.hardware:
        return "no hardware"
    precision = precision_of(row.precision)
    if precision not in ("", *PRECISIONS):
        return f"precision {precision} is none of {', '.join(PRECISIONS)}"
    return None


def _places(table: CsvTable, mapped: Mapped) -> dict[str, int]:
    """Return the place in the table of each column of the schema that is read."""
    theirs = table.columns
    for name, source in mapped.columns.items():
        if source.theirs not in theirs:
            hint = did_you_mean(source.theirs, theirs)
            raise bad_value("--column", f"{name}={source.theirs}", "a column of the table after the =", hint=hint)
    for ignored in sorted(mapped.ignored.difference(theirs)):
        raise bad_value("--ignore", ignored, "a column of the table", hint=did_you_mean(ignored, theirs))
    taken = {source.theirs for source in mapped.columns.values()} | mapped.ignored
    own = [name for name in theirs if name not in taken and name not in mapped.columns]
    _refuse_unknown(own, mapped)
    found = {name: theirs.index(name) for name in own}
    found |= {name: theirs.index(source.theirs) for name, source in mapped.columns.items()}
    return {name: place for name, place in found.items() if name not in NOT_READ}


def _refuse_unknown(own: Sequence[str], mapped: Mapped) -> None:
    unknown = [name for name in own if name not in COLUMNS]
    if not unknown:
        twice = next((name for name in own if name in mapped.constants), None)
        if twice:
            raise InvalidInput(f"--set {twice}: the table has a column {twice}", hint=f"add --ignore {twice}")
        return
    shown = ", ".join(map(shown_key, unknown[:6])) + (f" and {len(unknown) - 6} more" if len(unknown) > 6 else "")
    first = shown_key(unknown[0])
    near = did_you_mean(unknown[0], [name for name in COLUMNS if name not in own])
    alike = near.removeprefix("did you mean ").strip("'?") if near and near.startswith("did") else "NAME"
    raise InvalidInput(
        f"the table has columns that are not of the table form: {shown}",
        hint=f"say what each is: --column {alike}={first}, or leave it out: --ignore {first}",
    )


def _require_columns(names: set[str], *, needs_hardware: bool) -> None:
    for wanted in NEEDED:
        if names.isdisjoint(wanted):
            raise InvalidInput(
                f"the table has no column {' or '.join(wanted)}",
                hint=f"name yours: --column {wanted[0]}=THEIRS"
                + (f", or --set {wanted[0]}=NUMBER" * (len(wanted) == 1)),
            )
    if needs_hardware and "hardware" not in names:
        raise InvalidInput("the table has no column hardware", hint="--set hardware=h100, or --cluster NAME or FILE")
