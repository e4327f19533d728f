"""The legal recipes of a survey as rows of numbers, and which of them are still open.

Optuna and DeepHyper propose one value for each dimension. Here such a proposal is turned into a legal recipe
that was not tried yet: itself, the recipe that it is another name of, or the nearest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frontrunner.spaces.recipe import Choice, Recipe
from frontrunner.spaces.space import Survey, recipe_at

Codes = tuple[int, ...]
"""For each searched dimension, the place of the chosen value among the dimension's values."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One searched dimension: the values that some legal recipe takes, at least two.

    `is_ordered` numbers rise and have near and far; words have only equal and different.
    """

    name: str
    values: tuple[Choice, ...]
    is_ordered: bool


class Candidates:
    """The legal recipes, each with a row: its place in `survey.recipes`. A row is open until it is taken.

    `codes` has one line a row and one column a searched dimension. Values that no legal recipe takes are
    left out, and so are dimensions with one value left.
    """

    def __init__(self, survey: Survey, seed: int) -> None:
        self.recipes = survey.recipes
        self._problem = survey.problem
        self._row = {recipe: row for row, recipe in enumerate(self.recipes)}
        columns = dict(zip(survey.dimensions, zip(*survey.legal, strict=True), strict=False))
        self._constant = {name: column[0] for name, column in columns.items()}
        found = (_dimension(name, survey.dimensions[name], column) for name, column in columns.items())
        self.dimensions = tuple(dimension for dimension in found if len(dimension.values) > 1)
        self.codes = self._encode([columns[dimension.name] for dimension in self.dimensions])
        self._open = np.ones(len(self.recipes), dtype=bool)
        self.open_count = len(self.recipes)
        self._tie_break = np.random.default_rng(seed)

    def _encode(self, columns: list[tuple[Choice, ...]]) -> NDArray[np.int16]:
        codes = np.empty((len(self.recipes), len(columns)), dtype=np.int16)
        for place, (dimension, column) in enumerate(zip(self.dimensions, columns, strict=True)):
            code = {value: number for number, value in enumerate(dimension.values)}
            codes[:, place] = [code[value] for value in column]
        return codes

    def row(self, recipe: Recipe) -> int | None:
        """The recipe's row, or None for a recipe that is not of this survey."""
        return self._row.get(recipe)

    def row_at(self, codes: Sequence[int]) -> int | None:
        """The row of the recipe that a point stands for, or None where the point is illegal.

        Several points may stand for one recipe: a schedule, say, plays no part without a pipeline.
        """
        chosen = {d.name: d.values[code] for d, code in zip(self.dimensions, codes, strict=True)}
        answer = recipe_at({**self._constant, **chosen}, self._problem)
        return self._row.get(answer) if isinstance(answer, Recipe) else None

    def is_open(self, row: int) -> bool:
        """Whether the row was not taken."""
        return bool(self._open[row])

    def take(self, row: int) -> None:
        """Close a row; one that is closed stays closed."""
        self.open_count -= int(self._open[row])
        self._open[row] = False

    def give_back(self, row: int) -> None:
        """Open a row again."""
        self.open_count += int(not self._open[row])
        self._open[row] = True

    def open_rows(self) -> NDArray[np.intp]:
        """The open rows, in rising order."""
        return np.flatnonzero(self._open)

    def nearest_open(self, codes: Sequence[int]) -> int:
        """The open row nearest to a point; of several equally near ones the seed decides.

        The distance is a sum over the dimensions: for ordered ones the places between the two values over
        the places between the first and the last, for words 0 or 1. At least one row must be open.
        """
        rows = self.open_rows()
        steps = np.abs(self.codes[rows].astype(np.float64) - np.asarray(codes, dtype=np.float64))
        for place, dimension in enumerate(self.dimensions):
            column = steps[:, place]
            steps[:, place] = column / (len(dimension.values) - 1) if dimension.is_ordered else column > 0
        distances = steps.sum(axis=1)
        nearest = rows[distances <= distances.min() + 1e-9]
        return int(self._tie_break.choice(nearest))


def _dimension(name: str, choices: tuple[Choice, ...], taken: tuple[Choice, ...]) -> Dimension:
    used = set(taken)
    values = [value for value in choices if value in used]
    is_ordered = not any(isinstance(value, str) for value in values)
    return Dimension(name=name, values=tuple(sorted(values) if is_ordered else values), is_ordered=is_ordered)
