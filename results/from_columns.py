"""Outcomes and standings from the columns that `frontrunner.results.codec` makes of them."""

from __future__ import annotations

import math
from typing import Any

from frontrunner.results import stored_json
from frontrunner.results.cells import whole
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.records import Standing
from frontrunner.results.schema import FailureRow, MeasurementRow, StandingRow

RANKED = ("step_time_s_median", "tokens_per_s")
"""Columns of a standing that other figures are divided by."""


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


def failure_from_columns(row: Any) -> Failure:
    """The failure of a row with `FailureRow`'s columns."""
    return Failure(
        kind=whole(FailureRow, row).word("kind", FailureKind),
        message=row.message,
        log_tail=row.log_tail,
        log_path=row.log_path,
        node_seconds=row.node_seconds,
    )


def standing_from_columns(row: Any) -> Standing:
    """The standing of a row with `StandingRow`'s columns."""
    cells = whole(StandingRow, row)
    for column in RANKED:
        cells.read(column, _above_zero)
    return Standing(**{name: getattr(row, name) for name in Standing.__dataclass_fields__})


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _above_zero(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"it holds {value!r}, expected a number above 0")
    return value
