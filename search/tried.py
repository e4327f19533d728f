"""What a driver remembers of each recipe that it has tried: a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from frontrunner.results.outcome import Measurement
from frontrunner.search.leaders import Cost, cost_of, unconfirmed_leaders
from frontrunner.spaces.columns import RecipeColumns
from frontrunner.spaces.recipe import Recipe

ROWS_KEPT = 512
"""Recipes whose rows are kept at hand: those that are tried at present."""
MORE_ROWS = 64
COLUMNS: dict[str, type[np.generic]] = {
    "is_proposed": np.bool_,  # handed out, or told
    "is_not_to_repeat": np.bool_,  # being repeated, or lost or disturbed when it was
    "is_disturbed": np.bool_,  # by other processes, in each of its measurements
    "is_full": np.bool_,  # in one of its measurements
    "is_confirmed": np.bool_,  # handed out to be measured in full
    "measurements": np.uint16,  # that count; none of a recipe that failed
    "cost": np.float64,
    "least_cost": np.float64,
    "most_cost": np.float64,
}
"""What is remembered of a recipe, and in which form."""


class TriedRecipes:
    """What a driver remembers of the recipes of a campaign.

    The size does not depend on the number of trials: each legal recipe has its row from the
    beginning. Recipes outside of the space, such as a baseline, get further rows.
    """

    def __init__(self, legal: RecipeColumns) -> None:
        self._legal = legal
        self._others: dict[Recipe, int] = {}
        self._columns = {name: np.zeros(len(legal), kind) for name, kind in COLUMNS.items()}
        self._rough = 0  # recipes that were measured, but not in full
        self._row = lru_cache(ROWS_KEPT)(self._find_row)

    def _find_row(self, recipe: Recipe) -> int:
        row = self._legal.row(recipe)
        if row is None:
            row = self._others.setdefault(recipe, len(self._legal) + len(self._others))
        return row

    def _get(self, recipe: Recipe, name: str) -> Any:
        row = self._row(recipe)
        column = self._columns[name]
        return column[row] if row < len(column) else column.dtype.type(0)

    def _set(self, recipe: Recipe, **values: float) -> None:
        row = self._row(recipe)
        for name, value in values.items():
            if row >= len(self._columns[name]):
                room = np.zeros(max(MORE_ROWS, len(self._others)), COLUMNS[name])
                self._columns[name] = np.concatenate([self._columns[name], room])
            self._columns[name][row] = value

    def recipe(self, row: int) -> Recipe:
        """Return the recipe of a row."""
        if row < len(self._legal):
            return self._legal[row]
        return list(self._others)[row - len(self._legal)]

    def measurements(self, recipe: Recipe) -> int:
        """Return how many measurements of a recipe count."""
        return int(self._get(recipe, "measurements"))

    def is_disturbed(self, recipe: Recipe) -> bool:
        """Return whether other processes disturbed each measurement of a recipe that has some."""
        return bool(self._get(recipe, "is_disturbed"))

    def is_proposed(self, recipe: Recipe) -> bool:
        """Return whether a recipe was handed out or told."""
        return bool(self._get(recipe, "is_proposed"))

    def propose(self, recipe: Recipe) -> None:
        """Note that a recipe was handed out or told."""
        self._set(recipe, is_proposed=True)

    def may_repeat(self, recipe: Recipe) -> bool:
        """Return whether a recipe may be measured again."""
        return not self._get(recipe, "is_not_to_repeat")

    def allow_repeat(self, recipe: Recipe, *, allowed: bool) -> None:
        """Note whether a recipe may be measured again."""
        self._set(recipe, is_not_to_repeat=not allowed)

    def confirm(self, recipe: Recipe) -> None:
        """Note that a recipe was handed out to be measured in full."""
        self._set(recipe, is_confirmed=True)

    def measured(self, recipe: Recipe, counting: Sequence[Measurement], divisor: float) -> None:
        """Note the measurements of a recipe that count; `divisor` is that of `cost_of`."""
        cost = cost_of(counting, divisor)
        is_full = any(one.is_full for one in counting)
        self._rough += int(not is_full) - int(self._is_rough(recipe))
        self._set(
            recipe,
            measurements=len(counting),
            is_disturbed=all(one.is_disturbed for one in counting),
            is_full=is_full,
            cost=cost.value,
            least_cost=cost.least,
            most_cost=cost.most,
        )

    def failed(self, recipe: Recipe) -> None:
        """Note that a recipe failed: its measurements no longer count."""
        self._rough -= int(self._is_rough(recipe))
        self._set(recipe, measurements=0, is_disturbed=False, is_full=False)

    def _is_rough(self, recipe: Recipe) -> bool:
        return self.measurements(recipe) > 0 and not self._get(recipe, "is_full")

    def unconfirmed_leaders(self) -> list[Recipe]:
        """Return the leading recipes that lack a full measurement and may still get one."""
        if self._rough == 0:
            return []
        columns = self._columns
        rows = np.flatnonzero(columns["measurements"])
        is_full = columns["is_full"][rows]
        costs = Cost(*(columns[name][rows] for name in ("cost", "least_cost", "most_cost")))
        leaders = rows[unconfirmed_leaders(costs, is_full)]
        found = [self.recipe(row) for row in leaders.tolist()]
        return [
            recipe
            for recipe in found
            if self.may_repeat(recipe) and not self._get(recipe, "is_confirmed")
        ]

    def measured_less_than(self, times: int) -> Recipe | None:
        """Return a recipe with fewer measurements that may be repeated, or None."""
        counts = self._columns["measurements"]
        rows = np.flatnonzero((counts > 0) & (counts < times))
        wanted = (self.recipe(row) for row in rows.tolist())
        return next((recipe for recipe in wanted if self.may_repeat(recipe)), None)
