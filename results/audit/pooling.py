"""The figures of each measurement against its own steps, and of each standing against its measurements."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, text

TOLERANCE = 1e-9
RATE_TOLERANCE = 1e-6
SPREAD = "step_time_spread"
"""It is a difference of near numbers, and so as exact as those, not as itself."""
STANDING = (
    *("step_time_s_median", "step_time_spread", "tokens_per_s", "model_tflops_per_device"),
    *("hardware_tflops_per_device", "mfu", "peak_memory_bytes_max_rank"),
)
MEASURED = (
    *("tokens_per_step", "tokens_per_s", "model_tflops_per_device", "hardware_tflops_per_device", "mfu"),
    *("step_times_s_json", "peak_memory_bytes_json"),
)
QUERY = f"""
SELECT a.trial_id AS trial, a.campaign_id AS campaign, m.attempt_id AS attempt, s.trial_id AS standing,
       {", ".join(f"s.{name} AS pooled_{name}" for name in STANDING)}, {", ".join(f"m.{name}" for name in MEASURED)}
FROM measurements m JOIN attempts a ON a.id = m.attempt_id LEFT JOIN standings s ON s.trial_id = a.trial_id
ORDER BY a.trial_id, a.id
"""  # noqa: S608 - the constants above


def contradictions(connection: Connection) -> Iterator[dict[str, Any]]:
    """The measurements whose figures cannot be of their steps, and the standings that are not of their measurements.

    Those that cannot be computed with, since their text is broken, are among them.
    """
    rows = connection.execute(text(QUERY))
    for trial, measured in groupby(rows, key=lambda row: row.trial):
        yield from _of_trial(trial, list(measured))


def _of_trial(trial: int, rows: list[Any]) -> Iterator[dict[str, Any]]:
    about = {"campaign": rows[0].campaign, "trial": trial}
    try:
        times = [json.loads(row.step_times_s_json) for row in rows]
        peaks = [json.loads(row.peak_memory_bytes_json) for row in rows]
        for row, steps, memory in zip(rows, times, peaks, strict=True):
            yield from [about | {"attempt": row.attempt} | found for found in _impossible(row, steps, memory)]
        if rows[0].standing is not None:
            yield from [about | found for found in _differences(rows[0], _pooled(rows, times, peaks))]
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        yield about | {"why": f"its measurements cannot be pooled: {error}"}


def _impossible(row: Any, times: list[float], peaks: list[int]) -> Iterator[dict[str, Any]]:
    """What of one measurement cannot be: its steps, its memory, and the rate that follows from its steps.

    A rank's memory is 0 where a table or another trainer's log does not state it. Of an even number of steps the rate
    may be that of either middle one, as a rehearsal's is.
    """
    if not 0 < min(times) <= max(times) < math.inf:
        yield {"column": "step_times_s_json", "held": times, "should_be": "times above 0"}
        return
    if not 0 <= min(peaks) <= max(peaks) < math.inf:
        yield {"column": "peak_memory_bytes_json", "held": peaks, "should_be": "0 bytes or more"}
    tokens, rate = row.tokens_per_step, row.tokens_per_s
    fastest, slowest = tokens / statistics.median_low(times), tokens / statistics.median_high(times)
    if not slowest * (1 - RATE_TOLERANCE) <= rate <= fastest * (1 + RATE_TOLERANCE):
        yield {"column": "tokens_per_s", "held": rate, "should_be": tokens / statistics.median(times)}


def _pooled(rows: list[Any], times: list[list[float]], peaks: list[list[int]]) -> dict[str, float | None]:
    median = statistics.median(map(statistics.median, times))
    steps = [time for some in times for time in some]
    shares = [row.mfu for row in rows if row.mfu is not None]
    return {
        "step_time_s_median": median,
        "step_time_spread": _deviation(steps) / median if len(steps) > 1 else 0.0,
        "tokens_per_s": statistics.median([row.tokens_per_s for row in rows]),
        "model_tflops_per_device": statistics.median([row.model_tflops_per_device for row in rows]),
        "hardware_tflops_per_device": statistics.median([row.hardware_tflops_per_device for row in rows]),
        "mfu": statistics.median(shares) if shares else None,
        "peak_memory_bytes_max_rank": max(map(max, peaks)),
    }


def _deviation(values: list[float]) -> float:
    """The standard deviation of a sample; `statistics.stdev` computes with fractions, which takes ten times as long."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _differences(row: Any, pooled: dict[str, float | None]) -> Iterator[dict[str, Any]]:
    """The columns of one trial's standing that are not what its measurements say together."""
    for column, expected in pooled.items():
        held = getattr(row, f"pooled_{column}")
        if held is None or expected is None:
            differs = held is not expected
        else:
            differs = not math.isclose(float(held), expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE * (column == SPREAD))
        if differs:
            yield {"column": column, "held": held, "should_be": expected}
