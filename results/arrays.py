"""Trials and attempts of a campaign as arrays: recipes by column, figures, ranks, and what filters
leave.

`frontrunner.results.snapshot` reads them. Explorer, figures and fronts are computed from them,
since 100,000 objects take seconds each time.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from frontrunner.results.outcome import FailureKind, ProbeEnding
from frontrunner.results.records import Campaign
from frontrunner.results.schema import recipe_from_json
from frontrunner.results.states import TrialState
from frontrunner.spaces.columns import Codes, smallest
from frontrunner.spaces.custom import CustomKnob
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe, custom_dimension
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.validation import load_json

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]

OUTCOME, DATA_PARALLEL, CUSTOM = "outcome", "data_parallel", "custom."
"""Columns besides the dimensions: how a trial ended, the derived degree, and knobs of the user's
own by their names.
"""
FIGURES = (
    "tokens_per_s",
    "step_time_s_median",
    "step_time_spread",
    "model_tflops_per_device",
    "mfu",
    "peak_memory_bytes_max_rank",
    "repeats",
)
"""Numbers of a standing, not a number where the recipe has none."""
RANK, NUMBER = "rank", "number"
KINDS, ENDINGS = tuple(FailureKind), tuple(ProbeEnding)
DEGREES = [one.name for one in fields(Sharding)]
COPIES = ("devices", "tensor_parallel", "pipeline_parallel", "context_parallel")
ABSENT = object()


@dataclass(frozen=True)
class Axis:
    """The values that trials have of one choice, in order, and the place of each trial's value
    among them.
    """

    values: tuple[Choice, ...]
    places: Codes

    @property
    def varies(self) -> bool:
        """Whether trials differ in it."""
        return len(self.values) > 1


class StoredRecipes:
    """Recipes as they are stored, by row: for each key its values, and the place of each recipe's
    among them.
    """

    def __init__(self) -> None:
        self._length = 0
        self._known: dict[str, dict[Any, int]] = {}
        self._values: dict[str, list[Any]] = {}
        self._codes: dict[str, Codes] = {}

    def copy(self) -> StoredRecipes:
        """Return these recipes, to which none is added later."""
        found = StoredRecipes()
        found._length, found._values, found._codes = self._length, self._values, dict(self._codes)
        return found

    def extend(self, tables: Sequence[Mapping[str, Any]]) -> None:
        """Add recipes."""
        shapes = {tuple(one) for one in tables}
        keys = dict.fromkeys(itertools.chain(*shapes, self._codes))
        if len(shapes) == 1 and len(keys) == len(min(shapes)) > 1:  # a third of the time
            columns = dict(
                zip(keys, zip(*map(itemgetter(*keys), tables), strict=True), strict=True)
            )
        else:
            columns = {key: tuple(one.get(key, ABSENT) for one in tables) for key in keys}
        for key, cells in columns.items():
            try:
                marks, of_mark = list(cells), dict(zip(cells, cells, strict=True))
            except TypeError:  # lists and tables
                marks = list(map(repr, cells))
                of_mark = dict(zip(marks, cells, strict=True))
            known, values = self._known.setdefault(key, {}), self._values.setdefault(key, [])
            if key not in self._codes:
                if self._length:
                    known[ABSENT] = 0
                    values.append(ABSENT)
                self._codes[key] = np.zeros(self._length, dtype=np.uint8)
            for mark, value in of_mark.items():
                if mark not in known:
                    known[mark] = len(known)
                    values.append(value)
            codes = np.fromiter(map(known.__getitem__, marks), dtype=np.int32, count=len(marks))
            self._codes[key] = np.concatenate([self._codes[key], smallest(codes, len(values))])
        self._length += len(tables)

    def __getitem__(self, row: int) -> Recipe:
        cells = ((key, self._values[key][codes[row]]) for key, codes in self._codes.items())
        found: Recipe = recipe_from_json(
            canonical_json({key: value for key, value in cells if value is not ABSENT})
        )
        return found

    def each(
        self, keys: Sequence[str], function: Callable[[Mapping[str, Any]], Any]
    ) -> tuple[list[Any], Rows]:
        """Return a function of these keys' values for each combination that occurs, and that of
        each recipe.
        """
        held = [key for key in keys if key in self._codes]
        packed = np.zeros(self._length, dtype=np.int64)
        for key in held:
            packed = packed * len(self._values[key]) + self._codes[key]
        present, inverse = np.unique(packed, return_inverse=True)
        found = []
        for number in present.tolist():
            table, left = {}, number
            for key in reversed(held):
                left, place = divmod(left, len(self._values[key]))
                if self._values[key][place] is not ABSENT:
                    table[key] = self._values[key][place]
            found.append(function(table))
        return found, inverse

    def each_recipe(self, keys: Sequence[str], function: Callable[[Recipe], float]) -> Numbers:
        """Return a number for each recipe, which depends on these keys alone."""
        found, inverse = self.each(keys, lambda _: None)
        first = np.full(len(found), 0, dtype=np.intp)
        first[inverse[::-1]] = np.arange(len(inverse))[::-1]
        return np.array([function(self[row]) for row in first.tolist()], dtype=np.float64)[inverse]

    def axis(
        self, keys: Sequence[str], function: Callable[[Mapping[str, Any]], Choice], name: str
    ) -> Axis:
        """Return a function of these keys' values as an axis."""
        found, inverse = self.each(keys, function)
        known: dict[Choice, int] = {}
        places = np.array([known.setdefault(value, len(known)) for value in found], dtype=np.int32)
        return ordered_axis(known, places[inverse] if len(places) else places, _order(name))


def ordered_axis(
    known: Mapping[Choice, int], places: npt.NDArray[np.int32], listed: Sequence[Choice]
) -> Axis:
    """Return an axis with its values in order: words as they are listed, then others; numbers by
    size.
    """

    def order(value: Choice) -> tuple[int, float, str]:
        if isinstance(value, str):
            return (listed.index(value), 0.0, "") if value in listed else (len(listed), 0.0, value)
        return 0, float(value), ""

    values = sorted(known, key=order)
    moved = np.empty(len(known), dtype=np.int32)
    for place, value in enumerate(values):
        moved[known[value]] = place
    return Axis(tuple(values), smallest(moved[places], len(known)))


def _order(name: str) -> tuple[Choice, ...]:
    return DIMENSIONS[name].values if name in DIMENSIONS else ()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What trials are wanted: of these values in some choices, and with figures in these ranges,
    both ends included.
    """

    values: Mapping[str, frozenset[Choice]]
    ranges: Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """A campaign's trials at one moment, in the order of their numbers. Ranks count from 1, 0 for
    trials without.
    """

    campaign: Campaign
    trial_ids: Rows
    recipe_ids: npt.NDArray[np.str_]
    recipes: StoredRecipes
    figures: Mapping[str, Numbers]
    outcomes: Axis
    ranks: Rows
    rates: Numbers

    def __len__(self) -> int:
        """Return the number of trials."""
        return len(self.trial_ids)

    @cached_property
    def axes(self) -> Mapping[str, Axis]:
        """Every dimension, the derived degree, the user's own knobs, and the outcome."""
        own = own_knobs(self.campaign)
        return {
            **{name: self.axis(name) for name in (*DIMENSIONS, DATA_PARALLEL)},
            **{CUSTOM + name: self._own(name, neutral) for name, neutral in own.items()},
            OUTCOME: self.outcomes,
        }

    def axis(self, name: str) -> Axis:
        """Return one dimension, or the derived degree."""
        if name == DATA_PARALLEL:
            return self.recipes.axis(COPIES, _data_parallel, name)
        if name == "layer_split":
            return self.recipes.axis(
                ("layers_per_stage",),
                lambda one: "balanced" if one.get("layers_per_stage") else "even",
                name,
            )
        if name == "sharding":
            return self.recipes.axis((*COPIES, "sharding"), _sharding, name)
        one = DIMENSIONS[name]
        return self.recipes.axis(
            tuple(dict.fromkeys((one.stored, one.field))),
            lambda table: table.get(one.stored, table.get(one.field, one.neutral)),
            name,
        )

    def _own(self, name: str, neutral: Choice) -> Axis:
        def value(table: Mapping[str, Any]) -> Choice:
            own: dict[str, Choice] = {one["name"]: one["value"] for one in table.get("custom", ())}
            return own.get(name, neutral)

        return self.recipes.axis(("custom",), value, CUSTOM + name)

    @cached_property
    def has_failed(self) -> Mask:
        """Whether each trial's final outcome is a failure."""
        failed = np.array(
            [value in [kind.value for kind in KINDS] for value in self.outcomes.values],
            dtype=np.bool_,
        )
        return failed[self.outcomes.places]

    def outcome(self, row: int) -> str:
        """Return how a trial ended, else its state."""
        return str(self.outcomes.values[self.outcomes.places[row]])

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """The row of each recipe, by its id."""
        return {name: row for row, name in enumerate(self.recipe_ids.tolist())}

    @cached_property
    def varied(self) -> dict[str, Axis]:
        """The dimensions in which trials differ, in the order of a recipe's, the user's own
        last.
        """
        return {name: axis for name, axis in self.axes.items() if axis.varies and name != OUTCOME}

    def masks(self, wanted: Wanted) -> dict[str, Mask]:
        """Return which trials meet each condition, by the name of its choice or figure."""
        found = {}
        for name, values in wanted.values.items():
            axis = self.axes[name]
            found[name] = np.array([value in values for value in axis.values], dtype=np.bool_)[
                axis.places
            ]
        for name, (least, most) in wanted.ranges.items():
            with np.errstate(invalid="ignore"):
                numbers, met = self.figures[name], np.isfinite(self.figures[name])
                met &= numbers >= (-math.inf if least is None else least)
                found[name] = met & (numbers <= (math.inf if most is None else most))
        return found

    def both(self, masks: Iterable[Mask]) -> Mask:
        """Return which trials meet all of these conditions."""
        found = np.ones(len(self), dtype=np.bool_)
        for mask in masks:
            found &= mask
        return found

    def counts(self, masks: Mapping[str, Mask]) -> dict[str, list[int]]:
        """Count the trials of each value of each choice that meet the conditions on all other
        choices.
        """
        met = self.both(masks.values())
        found = {}
        for name, axis in self.axes.items():
            others = (
                met
                if name not in masks
                else self.both(mask for own, mask in masks.items() if own != name)
            )
            found[name] = np.bincount(axis.places[others], minlength=len(axis.values)).tolist()
        return found

    def ordered(self, met: Mask, by: str, *, descending: bool = False) -> Rows:
        """Return the rows that are met in the order of a column, then of ranks; those without a
        value come last.
        """
        rows = np.flatnonzero(met)
        last = len(self) + 1
        places = np.where(self.ranks[rows] > 0, self.ranks[rows], last + rows)
        if by == RANK:
            key = np.where(self.ranks[rows] > 0, places, math.nan)
        elif by == NUMBER:
            key = rows.astype(np.float64)
        else:
            key = (
                self.figures[by][rows]
                if by in self.figures
                else self.axes[by].places[rows].astype(np.float64)
            )
        key = -key if descending else key
        return rows[np.lexsort((places, np.where(np.isfinite(key), key, math.inf)))]

    def sample(self, rows: Rows, most: int) -> Rows:
        """Return up to `most` of the rows: a fifth of them the best ranked, the others an even
        selection of all.
        """
        if len(rows) <= most:
            return rows
        best = self.ordered(np.isin(np.arange(len(self)), rows), RANK)
        even = rows[np.linspace(0, len(rows) - 1, most - most // 5).astype(np.intp)]
        return np.unique(np.concatenate([best[: most // 5], even]))


@dataclass(frozen=True)
class Ended:
    """A finished attempt."""

    attempts: Attempts
    place: int

    @property
    def row(self) -> int:
        """The row of its trial."""
        return int(self.attempts.rows[self.place])

    @property
    def recipe_id(self) -> str:
        """The recipe's id."""
        return str(self.attempts.trials.recipe_ids[self.row])

    @property
    def recipe(self) -> Recipe:
        """The recipe, which takes as long to read as all else of ten attempts."""
        return self.attempts.trials.recipes[self.row]

    @property
    def state(self) -> TrialState:
        """The state of its trial."""
        trials = self.attempts.trials
        return (
            TrialState.FAILED
            if trials.has_failed[self.row]
            else TrialState(trials.outcome(self.row))
        )

    @property
    def standing(self) -> float | None:
        """The pooled tokens/s of the recipe, None where it does not rank."""
        return _known(self.attempts.trials.figures["tokens_per_s"][self.row])

    @property
    def peak_memory_bytes(self) -> int | None:
        """The recipe's peak, None where it is unknown."""
        found = _known(self.attempts.trials.figures["peak_memory_bytes_max_rank"][self.row])
        return None if found is None else int(found)

    @property
    def kind(self) -> FailureKind | None:
        """The kind of its failure, None for a measurement."""
        place = self.attempts.kinds[self.place]
        return None if place < 0 else KINDS[place]

    @property
    def outcome(self) -> str:
        """`measured`, or the failure's kind."""
        return TrialState.MEASURED.value if self.kind is None else self.kind.value


@dataclass(frozen=True, kw_only=True)
class Attempts(Sequence[Ended]):
    """Every finished attempt of a campaign, in the order in which they ended.

    `rows` are those of their trials; `kinds` and `endings` are places in `KINDS` and `ENDINGS`, -1
    for none.
    """

    trials: Trials
    rows: Rows
    kinds: npt.NDArray[np.int8]
    endings: npt.NDArray[np.int8]
    tokens_per_s: Numbers
    node_seconds: Numbers

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Ended: ...
    @overload
    def __getitem__(self, place: slice) -> list[Ended]: ...
    def __getitem__(self, place: int | slice) -> Ended | list[Ended]:
        if isinstance(place, slice):
            return [Ended(self, one) for one in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return Ended(self, place % len(self))

    @cached_property
    def last(self) -> Rows:
        """The place of the last attempt at each trial, -1 where none has ended."""
        found = np.full(len(self.trials), -1, dtype=np.intp)
        found[self.rows] = np.arange(len(self))  # of several the last counts
        return found

    @property
    def final_failures(self) -> list[Ended]:
        """The last attempt at each recipe that ended with a failure."""
        return [
            Ended(self, int(place)) for place in self.last[self.trials.has_failed] if place >= 0
        ]


class LastAttempts(Mapping[str, Ended]):
    """The last attempt at each recipe, by its id."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts

    def __getitem__(self, recipe_id: str) -> Ended:
        place = int(self._attempts.last[self._attempts.trials.row_of[recipe_id]])
        if place < 0:
            raise KeyError(recipe_id)
        return Ended(self._attempts, place)

    def __iter__(self) -> Iterator[str]:
        trials = self._attempts.trials
        return (
            str(name)
            for name, place in zip(trials.recipe_ids, self._attempts.last, strict=True)
            if place >= 0
        )

    def __len__(self) -> int:
        return int((self._attempts.last >= 0).sum())


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _data_parallel(table: Mapping[str, Any]) -> int:
    per_replica = (
        table["tensor_parallel"] * table["pipeline_parallel"] * table.get("context_parallel", 1)
    )
    found: int = table["devices"] // per_replica
    return found


def _sharding(table: Mapping[str, Any]) -> str:
    copies = _data_parallel(table) * table.get("context_parallel", 1)
    return _sharding_name(copies, *(table["sharding"][key] for key in DEGREES))


@cache
def _sharding_name(copies: int, *degrees: int) -> str:
    return Sharding(**dict(zip(DEGREES, degrees, strict=True))).name(copies)


def own_knobs(campaign: Campaign) -> dict[str, Choice]:
    """Return the user's own knobs, each with its value in a recipe that says nothing of it."""
    try:
        stated = json.loads(campaign.spec_json)["space"]["custom"]
        knobs = {
            name: load_json(CustomKnob, json.dumps(one), what="space.custom")
            for name, one in stated.items()
        }
    except (InvalidInput, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: custom_dimension(name, knob).neutral for name, knob in knobs.items()}
