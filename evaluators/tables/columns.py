"""Whose column is which: a table's own names and units to those of the table form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from frontrunner.evaluators.analytic.tables import NUMBERS, WORDS
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, shown_key

UNITS: dict[str, dict[str, float]] = {
    "step_time_s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0},
    "peak_mem_gb": {"GiB": 1.0, "GB": 1e9 / 2**30, "MiB": 2**-10, "MB": 1e6 / 2**30, "bytes": 2.0**-30},
}
"""The columns that may be in another unit -> what one of it is in seconds, and in GiB, in which a peak is read."""
BESIDE = ("tflops_per_gpu", "mfu")
"""Columns of the form that say what follows from others; they are not read."""
FORM = tuple(dict.fromkeys((*NUMBERS, *WORDS, *BESIDE)))
NUMERIC = frozenset(NUMBERS)


@dataclass(frozen=True, kw_only=True)
class Given:
    """One column of the form: the table's own name for it, and its unit, None where it was not said."""

    theirs: str
    unit: str | None


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What a person said of a table's columns.

    `mapped` has columns by their name in the form, `constants` what holds for every row, `ignored` what is left out.
    """

    mapped: Mapping[str, Given]
    constants: Mapping[str, str]
    ignored: frozenset[str]

    def unit(self, name: str) -> str | None:
        """The unit that was said of a column of the form; None where none was."""
        return self.mapped[name].unit if name in self.mapped else None

    def source(self, name: str) -> str:
        """The table's own name for a column of the form."""
        return self.mapped[name].theirs if name in self.mapped else name


def parse_columns(mapped: Sequence[str], constants: Sequence[str], ignored: Sequence[str]) -> Columns:
    """`NAME=THEIRS[:unit]`, `NAME=VALUE` and `THEIRS`, as they stand on the command line.

    Raises `InvalidInput` for a name that is not of the form, a unit that its column does not take, and for a column
    that is named twice.
    """
    found: dict[str, Given] = {}
    fixed: dict[str, str] = {}
    for text in mapped:
        name, value = _named("--column", text, "NAME=THEIRS or NAME=THEIRS:unit, as step_time_s=iter_ms:ms")
        _refuse_twice(name, found, fixed)
        found[name] = _given(name, value)
    for text in constants:
        name, value = _named("--set", text, "NAME=VALUE, as hardware=h100")
        _refuse_twice(name, found, fixed)
        fixed[name] = value
    return Columns(mapped=found, constants=fixed, ignored=frozenset(ignored))


def _named(flag: str, text: str, expected: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise bad_value(flag, text, expected)
    if name not in FORM:
        raise bad_value(flag, text, "a column of the table form before the =", hint=did_you_mean(name, FORM))
    return name, value


def _refuse_twice(name: str, *before: Mapping[str, object]) -> None:
    if any(name in table for table in before):
        raise InvalidInput(f"column {name} is given twice: expected one --column or --set for it")


def _given(name: str, value: str) -> Given:
    theirs, colon, unit = value.rpartition(":")
    units = UNITS.get(name, {})
    if colon and unit in units:
        return Given(theirs=theirs, unit=unit)
    if colon and units and theirs:
        raise bad_value("--column", f"{name}={value}", f"a unit of {', '.join(units)}", hint=did_you_mean(unit, units))
    return Given(theirs=value, unit=None)  # a colon may be part of their name


def in_form(table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """The table, all text, with the names of the form and with the constants.

    Raises `InvalidInput` for a column that is not there, and for columns of the table that nothing was said of.
    """
    theirs = [str(column) for column in table.columns]
    for name, given in columns.mapped.items():
        if given.theirs not in theirs:
            hint = did_you_mean(given.theirs, theirs)
            raise bad_value("--column", f"{name}={given.theirs}", "a column of the table after the =", hint=hint)
    for ignored in sorted(columns.ignored.difference(theirs)):
        raise bad_value("--ignore", ignored, "a column of the table", hint=did_you_mean(ignored, theirs))
    taken = {given.theirs for given in columns.mapped.values()} | columns.ignored
    own = [name for name in theirs if name not in taken and name not in columns.mapped]
    _refuse_unknown(own, columns)
    found = {name: table[name] for name in own if name in FORM}
    found |= {name: table[given.theirs] for name, given in columns.mapped.items()}
    found |= {name: pd.Series(value, index=table.index, dtype=object) for name, value in columns.constants.items()}
    return pd.DataFrame({name: column for name, column in found.items() if name not in BESIDE}, index=table.index)


def _refuse_unknown(own: Sequence[str], columns: Columns) -> None:
    unknown = [name for name in own if name not in FORM]
    if not unknown:
        twice = [name for name in own if name in columns.constants]
        if twice:
            raise InvalidInput(f"--set {twice[0]}: the table has a column {twice[0]}", hint=f"add --ignore {twice[0]}")
        return
    shown = ", ".join(map(shown_key, unknown[:6])) + (f" and {len(unknown) - 6} more" if len(unknown) > 6 else "")
    first = shown_key(unknown[0])
    near = did_you_mean(unknown[0], [name for name in FORM if name not in own])
    alike = near.removeprefix("did you mean ").strip("'?") if near and near.startswith("did") else "NAME"
    raise InvalidInput(
        f"the table has columns that are not of the table form: {shown}",
        hint=f"say what each is: --column {alike}={first}, or leave it out: --ignore {first}",
    )


def in_base_units(numbers: pd.Series, name: str, columns: Columns) -> pd.Series:
    """A column's numbers in the form's unit."""
    unit = columns.unit(name)
    return numbers if unit is None else numbers * UNITS[name][unit]
