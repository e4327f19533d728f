"""The cells of a table in the table form: text to numbers, and rows that hold what cannot be used."""

from __future__ import annotations

import pandas as pd

from frontrunner.evaluators.analytic.tables import PRECISION_NAMES
from frontrunner.evaluators.tables.columns import FORM, NUMERIC, Columns, in_base_units
from frontrunner.evaluators.tables.judged import LeftOut
from frontrunner.spaces.cluster import PRECISIONS

FLAGS = {"true": "1", "false": "0", "yes": "1", "no": "0"}
"""What `seq_parallel` may say besides 1 and 0."""


def usable(form: pd.DataFrame, columns: Columns, *, default_hardware: str | None) -> tuple[pd.DataFrame, list[LeftOut]]:
    """The rows whose cells can be used, numbers in the form's units, and what was left out.

    Rows that name no hardware are of `default_hardware`, or left out. Precisions other than those of a campaign are
    left out: a step in fp8 says nothing of one in bf16.
    """
    found = form.copy()
    left_out: list[LeftOut] = []
    if "seq_parallel" in found:
        words = found["seq_parallel"].astype(str).str.strip().str.lower()
        found["seq_parallel"] = words.map(FLAGS).fillna(found["seq_parallel"])
    for name in [name for name in FORM if name in found and name in NUMERIC]:
        given = _is_given(found[name])
        numbers = in_base_units(pd.to_numeric(found[name], errors="coerce"), name, columns)
        found[name] = numbers
        found = _without(given & numbers.isna(), f"{name} is not a number", found, left_out)
        found = _without(numbers.loc[found.index] < 0, f"{name} is negative", found, left_out)
    return _with_words(found, left_out, default_hardware), left_out


def _with_words(found: pd.DataFrame, left_out: list[LeftOut], default_hardware: str | None) -> pd.DataFrame:
    """The rows whose machine and precision are known."""
    if default_hardware is not None:
        own = found["hardware"] if "hardware" in found else pd.Series("", index=found.index, dtype=object)
        found["hardware"] = own.where(_is_given(own), default_hardware)
    found = _without(~_is_given(found["hardware"]), "no hardware", found, left_out)
    if "precision" not in found:
        return found
    named = found["precision"].fillna("").astype(str).str.strip().str.lower().str.removeprefix("amp_")
    named = named.replace(PRECISION_NAMES)
    for precision in sorted(set(named) - {"", *PRECISIONS}):
        rows = (named == precision).loc[found.index]
        found = _without(rows, f"precision {precision} is none of {', '.join(PRECISIONS)}", found, left_out)
    return found


def _is_given(cells: pd.Series) -> pd.Series:
    """Whether each cell holds anything."""
    return cells.notna() & (cells.astype(str).str.strip() != "")


def _without(rows: pd.Series, reason: str, found: pd.DataFrame, left_out: list[LeftOut]) -> pd.DataFrame:
    """The table without these rows, which are counted; rows are counted from 1."""
    if not rows.any():
        return found
    first = int(str(rows.idxmax())) + 1
    left_out.append(LeftOut(reason=reason, rows=int(rows.sum()), first_row=first))
    return found[~rows].copy()
