"""What a guided search was told: measurements and failures by row of its table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from frontrunner.results.outcome import FailureKind, Measurement, Outcome
from frontrunner.search.guided.prior import CandidateTable

MEDIAN_OVER_MEAN = 1.25
"""The standard error of a median over that of a mean, of many normal values: sqrt(pi / 2)."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A logarithm of measured over predicted speed at a row; `spread` is its own noise beside the learned one."""

    row: int
    log_ratio: float
    spread: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of a row: it ran (with its peak over a device's memory, as a logarithm, where known) or failed."""

    row: int
    ran: bool
    log_peak: float | None = None
    out_of_memory: bool = False


@dataclass(kw_only=True)
class Observations:
    """Outcomes by row.

    `log_speeds` holds the logarithms of tokens/s of the campaign's own measurements, of rows that never failed since.
    `log_peaks` holds the highest measured peak of such a row over a device's memory, as a logarithm, where known.
    """

    memory_bytes: int
    log_speeds: dict[int, list[float]] = field(default_factory=dict)
    log_peaks: dict[int, float] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def add(self, row: int, outcome: Outcome, table: CandidateTable) -> None:
        """Take in an outcome of this campaign; one that the machine is to blame for teaches nothing."""
        if isinstance(outcome, Measurement):
            self.log_speeds.setdefault(row, []).append(math.log(outcome.tokens_per_s))
            if (peak := outcome.peak_memory_bytes_max_rank) > 0:
                self.log_peaks[row] = max(math.log(peak / self.memory_bytes), self.log_peaks.get(row, -math.inf))
        elif outcome.policy.counts_against_recipe:
            self.log_speeds.pop(row, None)
            self.log_peaks.pop(row, None)
        self.learn(row, outcome, table, spread=own_noise(outcome) if isinstance(outcome, Measurement) else 0.0)

    def learn(
        self, row: int, outcome: Outcome, table: CandidateTable, *, spread: float, memory_bytes: int | None = None
    ) -> None:
        """Take in an outcome of whatever origin; `memory_bytes` is a device's where it is another's."""
        if isinstance(outcome, Measurement):
            ratio = math.log(outcome.tokens_per_s) - float(table.log_speed[row])
            self.observations.append(Observation(row=row, log_ratio=ratio, spread=spread))
            peak = outcome.peak_memory_bytes_max_rank
            limit = memory_bytes or self.memory_bytes
            self.trials.append(Trial(row=row, ran=True, log_peak=math.log(peak / limit) if peak > 0 else None))
        elif outcome.policy.counts_against_recipe:
            self.trials.append(Trial(row=row, ran=False, out_of_memory=outcome.kind is FailureKind.OUT_OF_MEMORY))

    def forget(self, rows: Collection[int]) -> None:
        """Unlearn what was learned of these rows."""
        self.observations = [seen for seen in self.observations if seen.row not in rows]
        self.trials = [trial for trial in self.trials if trial.row not in rows]

    def noise(self) -> float:
        """The standard deviation of a measured logarithm: from repeats, else what probes say of themselves."""
        repeated = [values for values in self.log_speeds.values() if len(values) > 1]
        if repeated:
            squares = sum(statistics.variance(values) * (len(values) - 1) for values in repeated)
            return math.sqrt(squares / sum(len(values) - 1 for values in repeated))
        spreads = [seen.spread for seen in self.observations if seen.row in self.log_speeds]
        return float(np.median(spreads)) if spreads else 0.0


def own_noise(measurement: Measurement) -> float:
    """The standard error of a measurement's median step, as a share, from the spread of its steps."""
    return MEDIAN_OVER_MEAN * measurement.step_time_spread / math.sqrt(len(measurement.step_times_s))
