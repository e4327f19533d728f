"""All recipes that a search reasons about, as arrays: those it may choose, and those that are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from frontrunner.search.guided.features import features
from frontrunner.search.guided.prior import Prior, prior_of
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Field:
    """A row a recipe: the legal ones of the campaign first, in their order, then remembered ones of any problem.

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
    def of(cls, recipes: Sequence[Recipe], prior: Prior) -> Field:
        """The legal recipes of a campaign."""
        return cls(
            log_speed=prior.log_speed,
            step_shares=prior.step_shares,
            log_fill=prior.log_fill,
            memory_shares=prior.memory_shares,
            step_time_s=prior.step_time_s,
            features=features(recipes),
            problem=np.zeros(len(recipes), dtype=np.intp),
        )

    def with_rows(self, recipes: Sequence[Recipe], problem: Problem, number: int) -> Field:
        """This field and, after it, recipes of a problem under its number."""
        other = Field.of(recipes, prior_of(recipes, problem))
        names = ("log_speed", "step_shares", "log_fill", "memory_shares", "step_time_s", "features")
        joined = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        return Field(**joined, problem=np.concatenate([self.problem, np.full(len(recipes), number, dtype=np.intp)]))

    def __len__(self) -> int:
        return len(self.log_speed)


def middle(columns: Rows) -> Rows:
    """The columns' medians; zeros where there are no rows."""
    return np.asarray(np.median(columns, axis=0), dtype=np.float64) if len(columns) else np.zeros(columns.shape[1:])
