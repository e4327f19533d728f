"""What SQL does not see: the text columns that hold JSON, and the pooled figures of repeated measurements."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, text

OF_ATTEMPT = "(SELECT campaign_id FROM attempts a WHERE a.id = attempt_id)"
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

POOLED = """
SELECT s.*, m.step_times_s_json, m.peak_memory_bytes_json, m.tokens_per_s AS measured_tokens_per_s,
       m.model_tflops_per_device AS measured_tflops
FROM standings s JOIN attempts a ON a.trial_id = s.trial_id JOIN measurements m ON m.attempt_id = a.id
ORDER BY s.trial_id, a.id
"""
TOLERANCE = 1e-9


def broken_json(connection: Connection) -> Iterator[dict[str, Any]]:
    """The rows whose text is no JSON, holds NaN or an infinity, or is of another type."""
    for name, (campaign, row_id, expected) in JSON_COLUMNS.items():
        table, column = name.split(".")
        query = f"SELECT {campaign} AS campaign, {row_id} AS row, {column} AS held FROM {table}"  # noqa: S608 - constants
        for row in connection.execute(text(query)).mappings():
            wrong = _why_broken(row["held"], expected, may_be_empty=name not in NEVER_EMPTY)
            if wrong is not None:
                yield {"campaign": row["campaign"], "column": name, "row": row["row"], "why": wrong}


def _why_broken(held: str, expected: type, *, may_be_empty: bool) -> str | None:
    try:
        found = json.loads(held, parse_constant=_refuse)
    except (ValueError, TypeError, RecursionError) as error:
        return str(error)
    if not isinstance(found, expected):
        return f"it holds a {type(found).__name__}"
    return None if found or may_be_empty else f"it holds an empty {expected.__name__}"


def _refuse(word: str) -> float:
    raise ValueError(f"it holds {word}")


def broken_standings(connection: Connection) -> Iterator[dict[str, Any]]:
    """The standings that are not the median, or the largest memory, of their trial's measurements.

    Those of measurements that cannot be pooled, since their text is broken, are among them.
    """
    by_trial: dict[int, list[Any]] = {}
    for row in connection.execute(text(POOLED)).mappings():
        by_trial.setdefault(row["trial_id"], []).append(row)
    for trial_id, rows in by_trial.items():
        about = {"campaign": rows[0]["campaign_id"], "trial": trial_id}
        try:
            yield from [about | found for found in _differences(rows)]
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            yield about | {"why": f"its measurements cannot be pooled: {error}"}


def _differences(rows: list[Any]) -> Iterator[dict[str, Any]]:
    """The columns of one trial's standing that are not what its measurements, one a row, say together."""
    for column, expected in _pooled(rows).items():
        held = float(rows[0][column])
        if not math.isclose(held, expected, rel_tol=TOLERANCE):
            yield {"column": column, "held": held, "should_be": expected}


def _pooled(rows: list[Any]) -> dict[str, float]:
    times = [statistics.median(json.loads(row["step_times_s_json"])) for row in rows]
    return {
        "step_time_s_median": statistics.median(times),
        "tokens_per_s": statistics.median(row["measured_tokens_per_s"] for row in rows),
        "model_tflops_per_device": statistics.median(row["measured_tflops"] for row in rows),
        "peak_memory_bytes_max_rank": max(max(json.loads(row["peak_memory_bytes_json"])) for row in rows),
    }
