"""Legal recipes as rows of numbers, strategies that follow a list of them, and the base of those
that learn.

Optuna and DeepHyper propose one value for each dimension. Such a point becomes a legal recipe that
was not tried yet: its own recipe, which other points may share, or the nearest open one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.search.strategy import Told
from frontrunner.spaces.columns import RecipeColumns
from frontrunner.spaces.recipe import Choice, Recipe
from frontrunner.spaces.space import Survey


class Listed:
    """Proposes recipes in the order of a list; outcomes only remove what was told."""

    def __init__(self, recipes: Sequence[Recipe], rows: Iterable[int] | None = None) -> None:
        """Propose these recipes in the order of `rows`, by default their own."""
        self._recipes = RecipeColumns.of(recipes)
        self._is_told = bytearray(len(recipes))  # by row
        ordered = range(len(recipes)) if rows is None else rows
        self._left = (self._recipes[row] for row in ordered if not self._is_told[row])

    def ask(self, count: int) -> list[Recipe]:
        """Return up to `count` recipes that were neither proposed nor told."""
        return list(islice(self._left, count))

    def tell(self, told: Told) -> None:
        """Leave the recipe out from now on."""
        row = self._recipes.row(told.recipe)
        if row is not None:
            self._is_told[row] = True


def exhaustive(survey: Survey, _: int) -> Listed:
    """Propose every legal recipe in the order of the space's choices; the seed plays no part."""
    return Listed(survey.recipes)


def shuffled(survey: Survey, seed: int) -> Listed:
    """Propose every legal recipe in an order that only the seed decides: random search without
    repeats.
    """
    rows = array("q", range(len(survey.recipes)))
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    return Listed(survey.recipes, rows)


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A searched dimension: the values, at least two, that some legal recipe takes; numbers rise
    and `is_ordered`.
    """

    name: str
    values: tuple[Choice, ...]
    is_ordered: bool

    @classmethod
    def of(cls, name: str, choices: Sequence[Choice], taken: Sequence[Choice]) -> Dimension:
        """Keep those of the choices that are taken."""
        values = [value for value in choices if value in set(taken)]
        is_ordered = not any(isinstance(value, str) for value in values)
        return cls(
            name=name, values=tuple(sorted(values) if is_ordered else values), is_ordered=is_ordered
        )


class Candidates:
    """The legal recipes by row, their index in `survey.recipes`. A row is open until it is taken.

    `codes` has one line per row and one column per searched dimension, the index of the row's value
    among the dimension's. Values that no legal recipe takes are left out, and so are dimensions
    with one value left.
    """

    def __init__(self, survey: Survey, seed: int) -> None:
        self.recipes = survey.recipes
        self._survey = survey
        self._constant = survey.choices(0) if len(self.recipes) else {}
        found: list[tuple[Dimension, NDArray[np.int16]]] = []
        for name in survey.dimensions:
            values, codes = survey.places.column(name)
            taken = np.unique(codes)
            dimension = Dimension.of(
                name, survey.dimensions[name], [values[code] for code in taken.tolist()]
            )
            if len(dimension.values) > 1:
                own = np.zeros(len(values), dtype=np.int16)
                own[taken] = [dimension.values.index(values[code]) for code in taken.tolist()]
                found.append((dimension, own[codes]))
        self.dimensions = tuple(dimension for dimension, _ in found)
        self.codes = (
            np.stack([column for _, column in found], axis=1)
            if found
            else np.empty((len(self.recipes), 0))
        )
        self._open = np.ones(len(self.recipes), dtype=bool)
        self.open_count = len(self.recipes)
        self._tie_break = np.random.default_rng(seed)

    def row(self, recipe: Recipe) -> int | None:
        """Return the recipe's row, or None for a recipe that is not of this survey."""
        return self.recipes.row(recipe)

    def parameters(self, row: int) -> dict[str, Choice]:
        """Return a row as Optuna and DeepHyper see it: indices of ordered values, so that a
        doubling is one step.
        """
        named = zip(self.dimensions, self.codes[row].tolist(), strict=True)
        return {
            dimension.name: code if dimension.is_ordered else dimension.values[code]
            for dimension, code in named
        }

    def codes_of(self, parameters: Mapping[str, Choice]) -> list[int]:
        """Return the codes of a point that a library proposes."""
        named = ((dimension, parameters[dimension.name]) for dimension in self.dimensions)
        return [
            int(value) if dimension.is_ordered else dimension.values.index(value)
            for dimension, value in named
        ]

    def open_row_at(self, codes: Sequence[int]) -> int | None:
        """Return the open row of a point's recipe, or None where it is illegal or taken."""
        chosen = {d.name: d.values[code] for d, code in zip(self.dimensions, codes, strict=True)}
        found = self._survey.recipe_at({**self._constant, **chosen})
        row = self.row(found) if isinstance(found, Recipe) else None
        return row if row is not None and self._open[row] else None

    def take(self, row: int) -> None:
        """Close a row; one that is closed stays closed."""
        self.open_count -= int(self._open[row])
        self._open[row] = False

    def open_rows(self) -> NDArray[np.intp]:
        """Return the open rows in rising order."""
        return np.flatnonzero(self._open)

    def nearest_open(self, codes: Sequence[int]) -> int:
        """Return the open row nearest to a point; the seed decides between equally near ones.

        The distance is a sum over the dimensions: for ordered ones the difference of indices over
        that of the first and the last value, for words 0 or 1. At least one row must be open.
        """
        rows = self.open_rows()
        distances = np.zeros(len(rows))
        for place, dimension in enumerate(self.dimensions):
            column = np.abs(self.codes[rows, place] - codes[place])
            distances += (
                column / (len(dimension.values) - 1) if dimension.is_ordered else column > 0
            )
        return int(self._tie_break.choice(rows[distances <= distances.min() + 1e-9]))


class Learner(ABC):
    """Implements the contract of `Strategy`; failures are withheld from a subclass until the first
    measurement.
    """

    def __init__(self, survey: Survey, seed: int) -> None:
        self._candidates = Candidates(survey, seed)
        self._pending: set[int] = set()
        self._withheld: list[tuple[int, Failure]] | None = []  # None after the first measurement

    def ask(self, count: int) -> list[Recipe]:
        """Return up to `count` legal recipes that were neither proposed nor told; empty when none
        is left.
        """
        chosen: list[int] = []
        while len(chosen) < count and (left := self._candidates.open_count):
            # The last ones are proposed whatever a model thinks of them, so the libraries always
            # have a choice.
            wanted = count - len(chosen)
            for row in (
                self._candidates.open_rows().tolist() if left <= wanted else self._choose(wanted)
            ):
                self._candidates.take(row)
                self._pending.add(row)
                self._proposed(row)
                chosen.append(row)
        return [self._candidates.recipes[row] for row in chosen]

    def tell(self, told: Told) -> None:
        """Learn of an outcome. A recipe that is not of the surveyed space teaches nothing."""
        row, outcome = self._candidates.row(told.recipe), told.outcome
        if row is None:
            return
        self._candidates.take(row)
        if row in self._pending:
            self._pending.remove(row)
            self._no_longer_proposed(row)
        if isinstance(outcome, Measurement):
            self._learn_measurement(row, outcome)
            withheld, self._withheld = self._withheld, None
            for failed_row, failure in withheld or ():
                self._learn_failure(failed_row, failure)
        elif outcome.policy.counts_against_recipe and self._withheld is not None:
            self._withheld.append((row, outcome))
        elif outcome.policy.counts_against_recipe:
            self._learn_failure(row, outcome)

    @abstractmethod
    def _choose(self, count: int) -> list[int]:
        """Return between one and `count` different open rows; more than `count` are open."""

    @abstractmethod
    def _learn_measurement(self, row: int, measurement: Measurement) -> None:
        """Take the measurement of a row into account."""

    @abstractmethod
    def _learn_failure(self, row: int, failure: Failure) -> None:
        """Take into account that a row failed for a reason that counts against it. Some row was
        measured.
        """

    def _proposed(self, row: int) -> None:  # noqa: B027 - a hook that may stay empty
        """Handle that a row was proposed and has no outcome yet."""

    def _no_longer_proposed(self, row: int) -> None:  # noqa: B027 - a hook that may stay empty
        """Handle that a proposed row was told."""
