"""Recipes as arrays with one row each: their features, and what the analytic model predicts of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.accuracy_bounds import prior_deviations
from frontrunner.evaluators.analytic.codes import KNOWN
from frontrunner.evaluators.analytic.estimates import blocks, estimate_many, not_modelled
from frontrunner.evaluators.analytic.machine import fit_of
from frontrunner.evaluators.analytic.memory import PeakMemory, between_codes, peak_memory
from frontrunner.evaluators.analytic.priors import LEARNED, directions, slopes
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.spaces.columns import chosen, each
from frontrunner.spaces.custom import CustomKnob
from frontrunner.spaces.pareto import RATES
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import (
    DIMENSIONS,
    RANK_ORDERS,
    Choice,
    Dimension,
    Recipe,
    custom_dimension,
)

Rows = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

_PLAIN = [one for one in DIMENSIONS.values() if not one.is_one_hot and one.kind != "sharding"]
COUNTS = (*(one.name for one in _PLAIN if one.kind == "count"), "data_parallel")
PLACES = tuple(one for one in _PLAIN if one.kind != "count")
"""Flags and choices, a step apart where their values are neighbors."""
ONE_HOT = tuple(
    (one, value) for one in DIMENSIONS.values() if one.is_one_hot for value in one.values[1:]
)
SHARDINGS = ("sharding_parameters", "sharding_gradients", "sharding_optimizer")
NAMES = (*COUNTS, *SHARDINGS, *(one.name for one in PLACES), *(value for _, value in ONE_HOT))


def features(recipes: Sequence[Recipe]) -> Rows:
    """Return one row per recipe and one column for each of `NAMES`; a doubling of a degree is one
    step.
    """
    if not recipes:
        return np.empty((0, len(NAMES)))
    found = np.empty((len(recipes), len(NAMES)))
    for place, name in enumerate(COUNTS):
        found[:, place] = np.log2(each(recipes, attrgetter(name), np.float64))
    for place, feature in enumerate(_OTHERS, start=len(COUNTS)):
        found[:, place] = each(recipes, feature, np.float64)
    return found


def _share(recipe: Recipe, kind: str) -> float:
    """Return 0 for no sharding, 1 for over all copies, in between by the logarithm."""
    copies = recipe.copies
    return float(np.log(getattr(recipe.sharding, kind)) / np.log(copies)) if copies > 1 else 0.0


def _place(recipe: Recipe, one: Dimension) -> float:
    value = one.of(recipe)
    return float(one.values.index(str(value)) if one.values else value)


def _has(recipe: Recipe, one: Dimension, value: Choice) -> float:
    return float(one.of(recipe) == value)


_OTHERS: tuple[Callable[[Recipe], float], ...] = (
    *(partial(_share, kind=name.removeprefix("sharding_")) for name in SHARDINGS),
    *(partial(_place, one=one) for one in PLACES),
    *(partial(_has, one=one, value=value) for one, value in ONE_HOT),
)
"""The features behind the counts, each of one recipe."""


def custom_features(recipes: Sequence[Recipe], custom: Mapping[str, CustomKnob]) -> Rows:
    """Return a column for each knob of numbers or true and false, and for each text but a knob's
    first.
    """
    columns: list[Rows] = []
    for name, knob in custom.items():
        dimension = DIMENSIONS.get(name) or custom_dimension(name, knob)
        if any(isinstance(value, str) for value in knob.values):
            columns += [
                each(recipes, partial(_has, one=dimension, value=one), np.float64)
                for one in knob.values[1:]
            ]
            continue
        places = {value: float(place) for place, value in enumerate(sorted(knob.values))}
        columns.append(
            each(recipes, lambda recipe: places.get(dimension.of(recipe), 0.0), np.float64)  # noqa: B023
        )
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(recipes)).T


MORE = ("micro_batch_seqs",)
LESS = (
    *SHARDINGS, "recompute", "sequence_parallel", "loss_chunks", "feed_forward_tiles",
    "optimizer_state",
    "activation_offload", "offload",
)  # fmt: skip
_MORE, _LESS = ([NAMES.index(name) for name in names] for names in (MORE, LESS))
_ACCUMULATION = NAMES.index("accumulation")
_BATCH = [NAMES.index("micro_batch_seqs"), _ACCUMULATION]
_SAME = [
    place
    for place, name in enumerate(NAMES)
    if name not in (*MORE, *LESS, "accumulation", *RANK_ORDERS)
]


def needs_as_much(rows: Rows, failed: Rows) -> npt.NDArray[np.bool_]:
    """Of rows of `features`, return those that need at least the memory of the one row `failed`.

    They are cut over the devices as it is and hold no fewer sequences at once. A single micro-batch
    may need less than several: its activations go when gradients come.
    """
    same = (rows[:, _SAME] == failed[_SAME]).all(axis=1)
    more = (rows[:, _MORE] >= failed[_MORE]).all(axis=1) & (rows[:, _LESS] <= failed[_LESS]).all(
        axis=1
    )
    sequences = rows[:, _BATCH].sum(axis=1) >= failed[_BATCH].sum() - 1e-9
    beside_gradients = (rows[:, _ACCUMULATION] > 0) | (failed[_ACCUMULATION] == 0)
    own = (rows[:, len(NAMES) :] == failed[len(NAMES) :]).all(
        axis=1
    )  # what another value does to memory is unknown
    found: npt.NDArray[np.bool_] = same & own & more & sequences & beside_gradients
    return found


def cuts(rows: Rows) -> list[bytes]:
    """Return a key for each of these rows of `features`: of rows with different ones none needs as
    much as another.
    """
    compared = np.ascontiguousarray(rows[:, [*_SAME, *range(len(NAMES), rows.shape[1])]])
    return [row.tobytes() for row in compared]


MEMORY_PARTS = tuple(field.name for field in fields(PeakMemory) if field.name != "runtime")


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """Predictions of recipes, one row each, as natural logarithms and shares; unknown rows hold
    medians.

    `log_fill` is what a device must hold over its memory, `log_allocated` the part of it that
    tensors hold, which measured peaks state; on CPUs these state all of it. `slopes` are those of
    the logarithm of the step time, a column for each constant (`priors.LEARNED`). `memory_of_codes`
    is how far the known codes that an unknown one may be are from that.
    """

    log_speed: Rows
    slopes: Rows
    log_fill: Rows
    log_allocated: Rows
    memory_shares: Rows
    memory_of_codes: Rows
    step_time_s: Rows


def prior_of(recipes: Sequence[Recipe], problem: Problem) -> Prior:
    """Judge legal recipes by the formulas."""
    rows = len(recipes)
    step_time_s, felt = np.full(rows, np.nan), np.zeros((rows, len(LEARNED)))
    memory = np.full((rows, len(MEMORY_PARTS) + 1), np.nan)
    of_codes = np.zeros((rows, len(KNOWN)))
    deviations = prior_deviations(problem.cluster, problem.precision)
    deviations["exchange_s"] = deviations["network_latency_s"]
    places = np.flatnonzero(each(recipes, not_modelled) == None)  # noqa: E711 - of each row
    for rows_of, machine, work in blocks(chosen(recipes, places), problem):
        block, peak = places[rows_of], peak_memory(machine, work)
        unknown = directions(
            deviations, fit_of(problem.cluster, problem.precision, machine.code), LEARNED
        )
        step_time_s[block] = step_time(machine, work).total
        felt[block] = slopes(problem.cluster, problem.precision, machine.code, work, unknown)
        for column, name in enumerate(("runtime", *MEMORY_PARTS)):
            memory[block, column] = getattr(peak, name)
        of_codes[block] = between_codes(machine, work, peak, "allocated")
    memory_bytes = memory.sum(axis=1)
    known = (
        np.isfinite(step_time_s)
        & (step_time_s > 0)
        & np.isfinite(memory_bytes)
        & (memory_bytes > 0)
    )
    if not known.all():
        step_time_s, felt, memory = (_filled(one, known) for one in (step_time_s, felt, memory))
        memory_bytes = memory.sum(axis=1)
    sequences = each(recipes, attrgetter("global_batch_seqs"), np.float64)
    states_all = problem.cluster.backend == "cpu"
    return Prior(
        log_speed=np.log(sequences * problem.sequence_length) - np.log(step_time_s),
        slopes=felt,
        log_fill=np.log(memory_bytes / problem.cluster.memory_bytes_per_device),
        log_allocated=np.log(
            (memory_bytes if states_all else memory[:, 1:].sum(axis=1))
            / problem.cluster.memory_bytes_per_device
        ),
        memory_shares=memory[:, 1:] / memory_bytes[:, None],
        memory_of_codes=of_codes,
        step_time_s=step_time_s,
    )


def most_promising(
    recipes: Sequence[Recipe], problem: Problem, objective: str, most: int
) -> Places:
    """Return rows in rising order: of the best by the formulas, and as many evenly from the others.

    The formulas may be wrong by more than good recipes differ, so that none of their parts of a
    space is left out.
    """
    known = each(recipes, not_modelled) == None  # noqa: E711 - of each row
    places = np.flatnonzero(known)
    rate = objective if objective in RATES else RATES[0]
    table = replace(estimate_many(chosen(recipes, places), problem), rate=rate)
    order = np.concatenate([places[table.order], np.flatnonzero(~known)])
    best, others = np.split(order, [most // 2])
    even = others[np.linspace(0, len(others) - 1, most - len(best)).astype(np.intp)]
    return np.unique(np.concatenate([best, even]))


def _filled(parts: Rows, known: npt.NDArray[np.bool_]) -> Rows:
    """Replace unknown rows by the medians of the known ones, or by ones where nothing is known."""
    found = parts.copy()
    found[~known] = np.median(parts[known], axis=0) if known.any() else 1.0
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateTable(Prior):
    """One row per recipe: the campaign's legal ones first, then remembered ones; `problem` 0 is the
    campaign's own.
    """

    features: Rows
    problem: npt.NDArray[np.intp]

    @classmethod
    def of(
        cls,
        recipes: Sequence[Recipe],
        prior: Prior,
        number: int = 0,
        custom: Mapping[str, CustomKnob] = MappingProxyType({}),
    ) -> CandidateTable:
        """Make the table of recipes of one problem, with columns for these knobs of the user's
        own.
        """
        columns = np.hstack([features(recipes), custom_features(recipes, custom)])
        return cls(
            **vars(prior), features=columns, problem=np.full(len(recipes), number, dtype=np.intp)
        )

    def with_rows(
        self,
        recipes: Sequence[Recipe],
        problem: Problem,
        number: int,
        custom: Mapping[str, CustomKnob] = MappingProxyType({}),
    ) -> CandidateTable:
        """Append recipes of a problem under its number."""
        other = vars(CandidateTable.of(recipes, prior_of(recipes, problem), number, custom))
        return CandidateTable(
            **{name: np.concatenate([rows, other[name]]) for name, rows in vars(self).items()}
        )

    def __len__(self) -> int:
        return len(self.log_speed)


def middle(columns: Rows) -> Rows:
    """Return the columns' medians; zeros where there are no rows."""
    return (
        np.asarray(np.median(columns, axis=0), dtype=np.float64)
        if len(columns)
        else np.zeros(columns.shape[1:])
    )
