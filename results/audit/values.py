"""What SQL does not see: text that is none, JSON, times and names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from frontrunner.results.audit.limits import OF_ATTEMPT
from frontrunner.spaces.names import CAMPAIGN_NAME

JSON_COLUMNS: dict[str, tuple[str, str, type]] = {
    "campaigns.spec_json": ("id", "id", dict),
    "campaigns.problem_json": ("id", "id", dict),
    "provenance.provenance_json": ("campaign_id", "id", dict),
    "trials.recipe_json": ("campaign_id", "id", dict),
    "events.data_json": ("campaign_id", "id", dict),
    "measurements.step_times_s_json": (OF_ATTEMPT, "attempt_id", list),
    "measurements.peak_memory_bytes_json": (OF_ATTEMPT, "attempt_id", list),
    "measurements.losses_json": (OF_ATTEMPT, "attempt_id", list),
}
"""Table and column -> what its campaign's id is, what its row's, and the type that its text holds."""
NEVER_EMPTY = frozenset({"measurements.step_times_s_json", "measurements.peak_memory_bytes_json"})
"""Columns whose lists hold a figure or more: those that standings are pooled from."""
TIMES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "store": ("NULL", "id", ("created_at",)),
    "campaigns": ("id", "id", ("created_at", "updated_at", "driven_since", "lease_until")),
    "attempts": ("campaign_id", "id", ("started_at", "finished_at")),
    "provenance": ("campaign_id", "id", ("recorded_at",)),
    "events": ("campaign_id", "id", ("at",)),
}
"""Table -> what its campaign's id is, what its row's, and the columns with times."""
UTC = "+00:00"


def broken_json(connection: Connection) -> Iterator[dict[str, Any]]:
    """The rows whose text is no JSON, holds NaN or an infinity, or is of another type."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    for name, (_, row_id, expected) in JSON_COLUMNS.items():
        table, column = name.split(".")
        query = f"SELECT {row_id}, {column} FROM {table}"  # noqa: S608 - the constants above
        for row, held in connection.execute(text(query)):
            wrong = _why_broken(decoder, held, expected, may_be_empty=name not in NEVER_EMPTY)
            if wrong is not None:
                yield {"campaign": _campaign(connection, name, row), "column": name, "row": row, "why": wrong}


def _why_broken(decoder: json.JSONDecoder, held: str, expected: type, *, may_be_empty: bool) -> str | None:
    try:
        found = decoder.decode(held)
    except (ValueError, TypeError, RecursionError) as error:
        return str(error)
    if not isinstance(found, expected):
        return f"it holds a {type(found).__name__}"
    return None if found or may_be_empty else f"it holds an empty {expected.__name__}"


def _refuse(word: str) -> float:
    raise ValueError(f"it holds {word}")


def _campaign(connection: Connection, name: str, row: object) -> object:
    """The campaign of one row; asked only for what is broken, since it costs a look at another table."""
    campaign, row_id, _ = JSON_COLUMNS[name]
    query = f"SELECT {campaign} FROM {name.split('.', maxsplit=1)[0]} WHERE {row_id} = :row"  # noqa: S608 - the constants above
    return connection.execute(text(query), {"row": row}).scalar()


def broken_times(connection: Connection) -> Iterator[dict[str, Any]]:
    """The times that are not UTC text of one shape, with microseconds, so that they would not sort."""
    for table, (campaign, row_id, columns) in TIMES.items():
        query = f"SELECT {campaign}, {row_id}, {', '.join(columns)} FROM {table}"  # noqa: S608 - the constants above
        for of_campaign, row, *times in connection.execute(text(query)):
            for column, held in zip(columns, times, strict=True):
                if held is not None and not _is_time(held):
                    yield {"campaign": of_campaign, "column": f"{table}.{column}", "row": row, "held": held}


def _is_time(held: str) -> bool:
    try:
        return datetime.fromisoformat(held).isoformat(timespec="microseconds") == held and held.endswith(UTC)
    except (ValueError, TypeError):
        return False


def broken_names(connection: Connection) -> Iterator[dict[str, Any]]:
    """The campaigns whose name could not be typed, or would lead out of the folder of their runs."""
    for campaign, name in connection.execute(text("SELECT id, name FROM campaigns")):
        if not isinstance(name, str) or not CAMPAIGN_NAME.fullmatch(name):
            yield {"campaign": campaign, "name": name}
