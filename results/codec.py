"""Values to columns, recipes back from them, and the pooling of repeated measurements.

Nodes use this for outcome files, and have no database's library: rows are read in `from_columns`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from frontrunner.results import stored_json
from frontrunner.results.outcome import Failure, Measurement, Outcome
from frontrunner.results.records import Standing
from frontrunner.results.secret_values import without_secrets
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.recipe import Recipe, current_names, stored_recipe

Columns = dict[str, Any]
RECIPES_KEPT = 8192
"""Recipes that are not read again from the same text: about 1 KiB each."""
LARGEST = 2**63 - 1
"""The largest whole number of a column."""


def recipe_to_json(recipe: Recipe) -> str:
    """Every field of the recipe, as canonical JSON."""
    return canonical_json(stored_recipe(recipe))


@lru_cache(maxsize=RECIPES_KEPT)
def recipe_from_json(text: str) -> Recipe:
    """The recipe that `recipe_to_json` wrote.

    Raises ValueError for other text, and `StoreUnusable` where a later version wrote fields unknown here.
    """
    return Recipe(**stored_json.fields_of(Recipe, current_names(stored_json.table(text))))


def measurement_to_columns(measurement: Measurement) -> Columns:
    """The columns of `MeasurementRow`. Losses and side figures that are not finite become NULL.

    Raises ValueError where a number that recipes are ranked by is missing or not finite: such numbers are
    an implausible measurement, which is stored as a failure.
    """
    if not measurement.peak_memory_bytes or not measurement.step_times_s or min(measurement.step_times_s) <= 0:
        raise ValueError(f"expected positive step times and the memory of at least one rank, not {measurement}")
    ranked = ("tokens_per_s", "model_tflops_per_device", "hardware_tflops_per_device", "node_seconds")
    times = [_finite("step_times_s", value) for value in measurement.step_times_s]
    return {
        "step_times_s_json": canonical_json(times),
        "tokens_per_step": measurement.tokens_per_step,
        "peak_memory_bytes_json": canonical_json(list(measurement.peak_memory_bytes)),
        "losses_json": canonical_json([finite_or_none(value) for value in measurement.losses]),
        "mfu": finite_or_none(measurement.mfu),
        "build_time_s": finite_or_none(measurement.build_time_s),
        "first_step_time_s": finite_or_none(measurement.first_step_time_s),
        **{name: _finite(name, getattr(measurement, name)) for name in ranked},
    }


def refuse_unstorable(outcome: Outcome) -> None:
    """Raise ValueError for an outcome that the store would not hold, or not as it is."""
    if isinstance(outcome, Failure):
        failure_to_columns(outcome)
        return
    measurement_to_columns(outcome)
    figures = (*outcome.losses, outcome.build_time_s, outcome.first_step_time_s, outcome.mfu or 0.0)
    if not all(map(math.isfinite, figures)):
        raise ValueError("a loss, a time or the MFU is not finite")
    if max(outcome.tokens_per_step, *outcome.peak_memory_bytes) > LARGEST or min(outcome.peak_memory_bytes) < 0:
        raise ValueError(f"tokens of a step or a rank's memory are not in 0..{LARGEST}")


def failure_to_columns(failure: Failure) -> Columns:
    """The columns of `FailureRow`; raises ValueError where the node-seconds are not finite."""
    return {
        "kind": failure.kind.value,
        "message": storable(without_secrets(failure.message)),
        "log_tail": storable(without_secrets(failure.log_tail)),
        "log_path": failure.log_path,
        "node_seconds": _finite("node_seconds", failure.node_seconds),
    }


def pool(measurements: Sequence[Measurement]) -> Standing:
    """What one or more measurements of one recipe say together; see `Standing` for the formulas."""
    steps = [time for measurement in measurements for time in measurement.step_times_s]
    median = statistics.median(m.step_time_s_median for m in measurements)
    utilisations = [m.mfu for m in measurements if m.mfu is not None and math.isfinite(m.mfu)]
    return Standing(
        repeats=len(measurements),
        step_time_s_median=median,
        step_time_spread=statistics.stdev(steps) / median if len(steps) > 1 else 0.0,
        tokens_per_s=statistics.median(m.tokens_per_s for m in measurements),
        model_tflops_per_device=statistics.median(m.model_tflops_per_device for m in measurements),
        hardware_tflops_per_device=statistics.median(m.hardware_tflops_per_device for m in measurements),
        mfu=statistics.median(utilisations) if utilisations else None,
        peak_memory_bytes_max_rank=max(m.peak_memory_bytes_max_rank for m in measurements),
    )


def finite_or_none(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def storable(text: str) -> str:
    """The text without what PostgreSQL, or UTF-8, cannot hold: NUL characters and halves of surrogate pairs."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{name} = {value!r}: expected a finite number")
    return value
