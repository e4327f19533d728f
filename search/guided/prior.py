"""The analytic model's predictions of all recipes that a search considers, as arrays with one row per recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.estimates import blocks, not_modelled
from frontrunner.evaluators.analytic.memory import PeakMemory, peak_memory
from frontrunner.evaluators.analytic.software import Software
from frontrunner.evaluators.analytic.step import StepTime, step_time
from frontrunner.search.guided.features import features
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

Rows = npt.NDArray[np.float64]

STEP_PARTS = tuple(field.name for field in fields(StepTime) if field.name != "compute")
"""Parts of a step beside computing; their shares of it and computing's add up to 1."""
MEMORY_PARTS = tuple(field.name for field in fields(PeakMemory) if field.name != "runtime")


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """Predictions of recipes, one row each.

    `log_speed` is the natural logarithm of tokens/s, `step_shares` a step's parts over the whole (one column for each
    of `STEP_PARTS`), `log_fill` the logarithm of peak memory over a device's memory, `memory_shares` likewise for
    `MEMORY_PARTS`, `step_time_s` seconds. Rows of which the formulas know nothing hold the medians of the others.
    """

    log_speed: Rows
    step_shares: Rows
    log_fill: Rows
    memory_shares: Rows
    step_time_s: Rows

    def reversed(self) -> Prior:
        """The same speeds in the opposite order, the slowest for the fastest recipe: a wrong model, for benchmarks."""
        order = np.argsort(self.log_speed, kind="stable")
        turned = np.empty_like(self.log_speed)
        turned[order] = self.log_speed[order[::-1]]
        return replace(self, log_speed=turned)


def prior_of(recipes: Sequence[Recipe], problem: Problem, software: Software | None = None) -> Prior:
    """Judge legal recipes; `software` is the training code where it is not the project's own engines."""
    rows = len(recipes)
    known = np.fromiter((not_modelled(recipe) is None for recipe in recipes), dtype=bool, count=rows)
    step = np.full((rows, len(STEP_PARTS) + 1), np.nan)
    memory = np.full((rows, len(MEMORY_PARTS) + 1), np.nan)
    places = np.flatnonzero(known)
    for rows_of, machine, work in blocks([recipes[place] for place in places.tolist()], problem, software):
        block = places[rows_of]
        step[block] = _columns(step_time(machine, work), ("compute", *STEP_PARTS), len(block))
        memory[block] = _columns(peak_memory(machine, work), ("runtime", *MEMORY_PARTS), len(block))
    return _prior(recipes, problem, step, memory)


def _columns(parts: StepTime | PeakMemory, names: Sequence[str], rows: int) -> Rows:
    return np.stack([np.broadcast_to(getattr(parts, name), rows) for name in names], axis=1)


def _prior(recipes: Sequence[Recipe], problem: Problem, step: Rows, memory: Rows) -> Prior:
    step_time_s, memory_bytes = step.sum(axis=1), memory.sum(axis=1)
    known = np.isfinite(step_time_s) & (step_time_s > 0) & np.isfinite(memory_bytes) & (memory_bytes > 0)
    step, memory = _filled(step, known), _filled(memory, known)
    step_time_s, memory_bytes = step.sum(axis=1), memory.sum(axis=1)
    sequences = np.fromiter((recipe.global_batch_seqs for recipe in recipes), dtype=np.float64, count=len(recipes))
    speed = np.log(sequences * problem.sequence_length) - np.log(step_time_s)
    return Prior(
        log_speed=speed,
        step_shares=step[:, 1:] / step_time_s[:, None],
        log_fill=np.log(memory_bytes / problem.cluster.memory_bytes_per_device),
        memory_shares=memory[:, 1:] / memory_bytes[:, None],
        step_time_s=step_time_s,
    )


def _filled(parts: Rows, known: npt.NDArray[np.bool_]) -> Rows:
    """Replace unknown rows by the medians of the known ones, or by ones where nothing is known."""
    if known.all():
        return parts
    middle = np.median(parts[known], axis=0) if known.any() else np.ones(parts.shape[1])
    return np.where(known[:, None], parts, np.maximum(middle, 1e-9))


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateTable:
    """One row per recipe: the legal ones of the campaign first, in their order, then remembered ones of any problem.

    `problem` numbers the problem of each row, 0 is the campaign's own. The other columns are as in `Prior` and
    `features`.
    """

    log_speed: Rows
    step_shares: Rows
    log_fill: Rows
    memory_shares: Rows
    step_time_s: Rows
    features: Rows
    problem: npt.NDArray[np.intp]

    @classmethod
    def of(cls, recipes: Sequence[Recipe], prior: Prior) -> CandidateTable:
        """Make the table of a campaign's legal recipes."""
        return cls(
            log_speed=prior.log_speed,
            step_shares=prior.step_shares,
            log_fill=prior.log_fill,
            memory_shares=prior.memory_shares,
            step_time_s=prior.step_time_s,
            features=features(recipes),
            problem=np.zeros(len(recipes), dtype=np.intp),
        )

    def with_rows(self, recipes: Sequence[Recipe], problem: Problem, number: int) -> CandidateTable:
        """Append recipes of a problem under its number."""
        other = CandidateTable.of(recipes, prior_of(recipes, problem))
        names = ("log_speed", "step_shares", "log_fill", "memory_shares", "step_time_s", "features")
        joined = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        return CandidateTable(
            **joined, problem=np.concatenate([self.problem, np.full(len(recipes), number, dtype=np.intp)])
        )

    def __len__(self) -> int:
        return len(self.log_speed)


def middle(columns: Rows) -> Rows:
    """Return the columns' medians; zeros where there are no rows."""
    return np.asarray(np.median(columns, axis=0), dtype=np.float64) if len(columns) else np.zeros(columns.shape[1:])
