"""What the texts of an archive's rows have to hold, beside being texts: what questions to a store read of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from frontrunner.results import stored_json
from frontrunner.results.cells import TIME_COLUMNS
from frontrunner.results.clock import timestamp
from frontrunner.results.codec import measurement_to_columns, recipe_from_json
from frontrunner.results.from_columns import measurement_from_columns
from frontrunner.results.known import provenance_from_json
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem

Row = Mapping[str, Any]

OBJECTS = ("problem_json", "data_json")
"""Columns with a JSON object of which no more is asked."""


def check_texts(table: str, row: Row) -> None:
    """Go through the times and the JSON of a row, whose columns are of the right types.

    Raises ValueError or another error of parsing, which says what is wrong with the first that cannot be read.
    """
    for column in sorted(TIME_COLUMNS):
        _check_time(column, row.get(column))
    for column in OBJECTS:
        if column in row:
            stored_json.table(row[column])
    if table == "provenance":
        provenance_from_json(row["provenance_json"])
    elif table == "measurements":
        measurement_to_columns(measurement_from_columns(SimpleNamespace(**row)))


def check_recipe(row: Row, problem: Problem) -> None:
    """Raise ValueError where a trial's recipe is not the one that its id names."""
    identity = recipe_id(problem, recipe_from_json(row["recipe_json"]))
    if identity != row["recipe_id"]:
        raise ValueError(f"the recipe's id is {identity}, and not {row['recipe_id']}")


def _check_time(column: str, text: str | None) -> None:
    """A time is in UTC with microseconds, so that texts sort by time."""
    if text is not None and timestamp(datetime.fromisoformat(text)) != text:
        raise ValueError(f"{column} = {text!r} is no time in UTC with microseconds")
