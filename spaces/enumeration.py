"""The points of a space as arrays: which recipes they give, which of these are legal, and why the
others are not.

The first dimensions, a recipe's frame, are looked at one combination at a time; all combinations of
the others with the frames that are left, in chunks of columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from frontrunner.spaces.columns import FIELDS, Codes, Column, Places, RecipeColumns, Rows, smallest
from frontrunner.spaces.custom import CustomKnob
from frontrunner.spaces.legality import (
    ENGINE_RULES,
    Reason,
    rules_of,
    why_illegal,
    why_no_frame,
)
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Dimension, Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.space import FRAME, Point, Survey, order_that_matters, own_layers, recipe_at
from frontrunner.spaces.trainers import Rules

POINTS_AT_ONCE = 1 << 20
Dimensions = Mapping[str, tuple[Choice, ...]]


@dataclass
class _Counts:
    """Points refused by reason, each with the example that comes first."""

    refusals: dict[str, int] = field(default_factory=dict)
    first: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, reason: Reason, points: int, at: int) -> None:
        self.refusals[reason.code] = self.refusals.get(reason.code, 0) + points
        self.first[reason.code] = min(
            self.first.get(reason.code, (at, reason.text)), (at, reason.text)
        )

    @property
    def examples(self) -> dict[str, str]:
        return {code: text for code, (_, text) in self.first.items()}


def survey_of(problem: Problem, dimensions: Dimensions, custom: Mapping[str, CustomKnob]) -> Survey:
    """Look at every point of a space with these dimensions."""
    framing = sum(name in FRAME for name in dimensions)
    values, counts = tuple(dimensions.values()), _Counts()
    rest = {name: dimensions[name] for name in list(dimensions)[framing:]}
    points = math.prod(map(len, rest.values()))
    frames = _Frames(dimensions, problem, custom, [first for first, *_ in values[framing:]], points)
    frames.look(itertools.product(*values[:framing]), counts)
    walk = _Walk(problem, rest, custom, counts)
    at_once = max(1, POINTS_AT_ONCE // points)
    found = [
        walk.legal(frames.kept[start : start + at_once])
        for start in range(0, len(frames.kept), at_once)
    ]
    recipes = RecipeColumns.joined([columns for columns, _ in found])
    numbers = (
        np.concatenate([numbers for _, numbers in found]) if found else np.empty(0, dtype=np.intp)
    )
    return Survey(
        problem=problem,
        dimensions=dimensions,
        recipes=recipes,
        places=Places(dimensions, numbers),
        repeats=walk.repeats,
        refusals=counts.refusals,
        examples=counts.examples,
        custom=custom,
    )


def look_at(survey: Survey, points: Iterable[Mapping[str, Choice]]) -> Survey:
    """Return the survey with some more points, each a value of every dimension, looked at one by
    one.
    """
    recipes, at = list(survey.recipes), [survey.choices(row) for row in range(len(survey.recipes))]
    counts = _Counts(
        dict(survey.refusals), {code: (-1, text) for code, text in survey.examples.items()}
    )
    repeats = survey.repeats
    for number, choice in enumerate(points):
        found = survey.recipe_at(choice)
        reason = found if isinstance(found, Reason) else why_illegal(found, survey.problem)
        if reason is not None:
            counts.add(reason, 1, number)
        elif found in recipes:
            repeats += 1
        elif isinstance(found, Recipe):
            recipes.append(found)
            at.append({name: choice[name] for name in survey.dimensions})
    return replace(
        survey,
        recipes=RecipeColumns.of(recipes),
        places=Places.of(survey.dimensions, at),
        repeats=repeats,
        refusals=counts.refusals,
        examples=counts.examples,
    )


@dataclass
class _Frame:
    """The first legal choice of the first dimensions that gives a frame: its number, and how many
    give the same.
    """

    recipe: Recipe
    number: int
    times: int = 1


class _Frames:
    """The frames that are left once the choices are refused that no other dimension makes legal."""

    def __init__(
        self,
        dimensions: Dimensions,
        problem: Problem,
        custom: Mapping[str, CustomKnob],
        first: Sequence[Choice],
        points: int,
    ) -> None:
        self._names, self._problem, self._custom = list(dimensions), problem, custom
        self._first, self._points = first, points
        self.kept: list[_Frame] = []

    def look(self, frames: Iterable[Point], counts: _Counts) -> None:
        known: dict[Recipe, _Frame] = {}
        for number, frame in enumerate(frames):
            found = recipe_at(
                dict(zip(self._names, (*frame, *self._first), strict=True)),
                self._problem,
                self._custom,
            )
            reason = found if isinstance(found, Reason) else why_no_frame(found, self._problem)
            if reason is not None:
                counts.add(reason, self._points, number * self._points)
            elif isinstance(found, Recipe) and (earlier := known.get(found)) is not None:
                earlier.times += 1
            elif isinstance(found, Recipe):
                known[found] = _Frame(found, number)
        self.kept = list(known.values())


class _Table:
    """Values of a field in the order of their first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._place: dict[Any, int] = {}

    def code(self, value: Any) -> int:
        place = self._place.setdefault(value, len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place

    def codes(self, values: Iterable[Any]) -> Codes:
        return np.array([self.code(value) for value in values], dtype=np.int32)


class _Walk:
    """All points of some frames at a time."""

    def __init__(
        self, problem: Problem, rest: Dimensions, custom: Mapping[str, CustomKnob], counts: _Counts
    ) -> None:
        self._problem, self._rest, self._custom, self._counts = problem, rest, custom, counts
        self._points = math.prod(map(len, rest.values()))
        self._tables = {name: _Table() for name in FIELDS}
        self._own = [
            one
            for one in DIMENSIONS.values()
            if one.name in rest and one.kind in ("count", "flag", "choice")
        ]
        of_rest = {*(one.field for one in self._own), "sharding", "layers_per_stage", "custom"}
        self._of_frame = [name for name in FIELDS if name not in of_rest]
        numbers, after, self._codes = np.arange(self._points), self._points, dict[str, Codes]()
        for name, values in rest.items():
            after //= len(values)
            self._codes[name] = smallest(numbers // after % len(values), len(values))
        self.repeats = 0

    def legal(self, frames: Sequence[_Frame]) -> tuple[RecipeColumns, Rows]:
        """Return the legal recipes of these frames and the numbers of their points, and count the
        others.
        """
        found = self._recipes(frames)
        of_frame = np.repeat(np.arange(len(frames)), self._points)
        times = np.array([frame.times for frame in frames])[of_frame]
        first = np.array([frame.number for frame in frames]) * self._points
        numbers = first[of_frame] + np.tile(np.arange(self._points), len(frames))
        places, same_as = _distinct(found, of_frame)
        distinct = found.take(places)
        reasons = self._reasons(distinct)
        is_legal = reasons == None  # noqa: E711 - of each row
        times_of = np.bincount(same_as, weights=times).astype(np.intp)
        for row in np.flatnonzero(~is_legal).tolist() if not is_legal.all() else ():
            self._counts.add(reasons[row], int(times_of[row]), int(numbers[places[row]]))
        self.repeats += int(times_of[is_legal].sum()) - int(np.count_nonzero(is_legal))
        rows = np.sort(places[is_legal])
        return found.take(rows), numbers[rows]

    def _recipes(self, frames: Sequence[_Frame]) -> RecipeColumns:
        count, recipes = len(frames), [frame.recipe for frame in frames]
        columns: dict[str, Codes] = {}
        for name in self._of_frame:
            columns[name] = np.repeat(
                self._tables[name].codes(map(attrgetter(name), recipes)), self._points
            )
        for one in self._own:
            columns[one.field] = self._of_rest(one, recipes).ravel()
        copies = sorted({recipe.copies for recipe in recipes})
        named = np.array(
            [
                [
                    self._tables["sharding"].code(Sharding.named(str(name), n))
                    for name in self._rest["sharding"]
                ]
                for n in copies
            ]
        )
        of_copies = np.searchsorted(copies, [recipe.copies for recipe in recipes])
        columns["sharding"] = named[of_copies][:, self._codes["sharding"]].ravel()
        columns["custom"] = np.tile(self._custom_codes(), count)
        none = self._tables["layers_per_stage"].code(())
        columns["layers_per_stage"] = np.full(count * self._points, none)
        found = RecipeColumns(self._columns(columns), count * self._points)
        if "balanced" in self._rest["layer_split"]:
            balanced = np.tile(self._codes["layer_split"], count) == self._rest[
                "layer_split"
            ].index("balanced")
            rows = np.flatnonzero(balanced)
            layers = found.take(rows).each(partial(own_layers, problem=self._problem))
            columns["layers_per_stage"][rows] = self._tables["layers_per_stage"].codes(
                layers.tolist()
            )
            found = RecipeColumns(self._columns(columns), count * self._points)
        return found

    def _columns(self, codes: Mapping[str, Codes]) -> dict[str, Column]:
        # The values are lists that grow with later frames: codes stay what they are, in a type that
        # will do.
        return {
            name: Column(self._tables[name].values, codes[name].astype(np.int32, copy=False))
            for name in FIELDS
        }

    def _of_rest(self, one: Dimension, recipes: Sequence[Recipe]) -> Codes:
        """Return the codes of a dimension, a line for each frame: the neutral value where it does
        not matter.
        """
        table = self._tables[one.field]
        values = [one.type(value) for value in self._rest[one.name]]
        codes, neutral = table.codes(values)[self._codes[one.name]], table.code(one.neutral)
        matters = np.array([one.matters(recipe) for recipe in recipes])
        found = np.where(matters[:, None], codes[None, :], neutral)
        if one.name == "rank_order":
            for row, recipe in enumerate(recipes):
                kept = table.codes(order_that_matters(value, recipe) for value in values)
                found[row] = kept[self._codes[one.name]]
        return found

    def _custom_codes(self) -> Codes:
        """Return the codes of the user's own knobs for each combination of the other dimensions."""
        names = sorted(self._custom)
        combined, size = np.zeros(self._points, dtype=np.intp), 1
        for name in names:
            combined = combined * len(self._rest[name]) + self._codes[name]
            size *= len(self._rest[name])
        listed: Iterator[tuple[Choice, ...]] = itertools.product(
            *(self._rest[name] for name in names)
        )
        tuples = (
            tuple(
                own
                for name, value in zip(names, values, strict=True)
                for own in self._custom[name].at(name, value)
            )
            for values in listed
        )
        return self._tables["custom"].codes(tuples)[combined]

    def _reasons(self, recipes: RecipeColumns) -> Any:
        """Return the first reason against each recipe, or None."""
        found = np.full(len(recipes), None, dtype=object)
        engines = recipes.each(attrgetter("engine"))
        for engine in ENGINE_RULES:
            left = np.flatnonzero(engines == engine)
            for rule in rules_of(engine, self._problem.trainer):
                if not len(left):
                    break
                reasons = recipes.take(left).each(partial(_first, rule, self._problem))
                found[left] = reasons
                left = left[reasons == None]  # noqa: E711 - of each row
        return found


def _first(rule: Rules, problem: Problem, recipe: Recipe) -> Reason | None:
    return next(itertools.starmap(Reason, rule(recipe, problem)), None)


def _distinct(recipes: RecipeColumns, frames: Rows) -> tuple[Rows, Rows]:
    """Return the first row of each recipe, and for each row the place of its recipe among these."""
    key = frames.astype(np.int64)
    for name in FIELDS:
        values, codes = recipes.columns[name]
        if len(values) > 1:
            key = key * len(values) + codes
    _, first, same_as = np.unique(key, return_index=True, return_inverse=True)
    return first, same_as
