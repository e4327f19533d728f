"""The constants that ship, fitted to published tables of measured step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.least_errors import BOUNDS, OF_ACCELERATORS, least_errors, shipped
from frontrunner.evaluators.analytic.machine import FITTED, SOFTWARE_CONSTANTS
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.tables import Table, groups
from frontrunner.evaluators.analytic.workload import Rows


def predicted(table: Table, constants: Mapping[str, float]) -> np.ndarray:
    """Step times in seconds, with these constants in place of the shipped ones."""
    of_machine = {name: value for name, value in constants.items() if name not in SOFTWARE_CONSTANTS}
    software: dict[str, Any] = {name: value for name, value in constants.items() if name in SOFTWARE_CONSTANTS}
    times = np.full(len(table.rows), np.nan)
    for index, machine, work in groups(table, dataclasses.replace(FITTED, **of_machine)):
        changed = dataclasses.replace(machine, software=dataclasses.replace(machine.software, **software))
        times[index] = step_time(changed, work).total
    return times


def fitted(tables: Sequence[Table], start: Mapping[str, float] | None = None) -> dict[str, float]:
    """The constants that tell these tables best: every table weighs the same.

    They are pulled to `start`, which is what ships unless it is given.
    """

    def log_errors(constants: Mapping[str, float]) -> Rows:
        found = []
        for table in tables:
            error = np.log(predicted(table, constants) / table.rows.step_time_s.to_numpy())
            error = error[np.isfinite(error)]
            found.append(error / np.sqrt(max(len(error), 1)))
        return np.concatenate(found)

    return least_errors(log_errors, start or {name: shipped(name) for name in BOUNDS}, OF_ACCELERATORS)
