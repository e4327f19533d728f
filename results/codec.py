"""Values to columns and back: recipes, outcomes, and the pooling of repeated measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from frontrunner.results import stored_json
from frontrunner.results.cells import whole
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.records import Standing
from frontrunner.results.schema import FailureRow, MeasurementRow, StandingRow
from frontrunner.results.secret_values import without_secrets
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.recipe import Recipe

Columns = dict[str, Any]
RECIPES_KEPT = 8192
"""Recipes that are not read again from the same text: about 1 KiB each."""
LARGEST = 2**63 - 1
"""The largest whole number of a column."""
RANKED = ("step_time_s_median", "tokens_per_s")
"""Columns of a standing that other figures are divided by."""


def recipe_to_json(recipe: Recipe) -> str:
    """Every field of the recipe, as canonical JSON."""
    return canonical_json(asdict(recipe))


@lru_cache(maxsize=RECIPES_KEPT)
def recipe_from_json(text: str) -> Recipe:
    """The recipe that `recipe_to_json` wrote.

    Raises ValueError for other text, and `StoreUnusable` where a later version wrote fields unknown here.
    """
    return Recipe(**stored_json.fields_of(Recipe, stored_json.table(text)))


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


def measurement_from_columns(row: Any) -> Measurement:
    """The measurement of a row with `MeasurementRow`'s columns; NULL losses and times read as NaN."""
    cells = whole(MeasurementRow, row)
    losses = cells.read("losses_json", stored_json.figures_or_nothing)
    return Measurement(
        step_times_s=cells.read("step_times_s_json", stored_json.figures),
        tokens_per_step=row.tokens_per_step,
        tokens_per_s=row.tokens_per_s,
        model_tflops_per_device=row.model_tflops_per_device,
        hardware_tflops_per_device=row.hardware_tflops_per_device,
        mfu=row.mfu,
        peak_memory_bytes=cells.read("peak_memory_bytes_json", stored_json.sizes),
        losses=tuple(_nan_if_none(value) for value in losses),
        node_seconds=row.node_seconds,
        build_time_s=_nan_if_none(row.build_time_s),
        first_step_time_s=_nan_if_none(row.first_step_time_s),
    )


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


def failure_from_columns(row: Any) -> Failure:
    """The failure of a row with `FailureRow`'s columns."""
    return Failure(
        kind=whole(FailureRow, row).word("kind", FailureKind),
        message=row.message,
        log_tail=row.log_tail,
        log_path=row.log_path,
        node_seconds=row.node_seconds,
    )


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


def standing_from_columns(row: Any) -> Standing:
    """The standing of a row with `StandingRow`'s columns."""
    cells = whole(StandingRow, row)
    for column in RANKED:
        cells.read(column, _above_zero)
    return Standing(**{name: getattr(row, name) for name in Standing.__dataclass_fields__})


def finite_or_none(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def storable(text: str) -> str:
    """The text without what PostgreSQL, or UTF-8, cannot hold: NUL characters and halves of surrogate pairs."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _above_zero(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"it holds {value!r}, expected a number above 0")
    return value


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{name} = {value!r}: expected a finite number")
    return value
