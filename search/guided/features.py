"""Recipes as rows of numbers, and which rows need at least as much memory as another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from frontrunner.spaces.recipe import DIMENSIONS, RANK_ORDERS, Recipe

Rows = npt.NDArray[np.float64]

_PLAIN = [one for one in DIMENSIONS.values() if not one.is_one_hot and one.kind != "sharding"]
COUNTS = (*(one.name for one in _PLAIN if one.kind == "count"), "data_parallel")
"""Taken as logarithms to the base 2."""
SHARDINGS = ("sharding_parameters", "sharding_gradients", "sharding_optimizer")
PLACES = tuple(one for one in _PLAIN if one.kind != "count")
"""Flags and choices, a step apart where their values are neighbors."""
ONE_HOT = tuple((one, value) for one in DIMENSIONS.values() if one.is_one_hot for value in one.values[1:])
NAMES = (*COUNTS, *SHARDINGS, *(one.name for one in PLACES), *(value for _, value in ONE_HOT))


def features(recipes: Sequence[Recipe]) -> Rows:
    """Return one row per recipe and one column for each of `NAMES`; a doubling of a degree is one step."""
    if not recipes:
        return np.empty((0, len(NAMES)))
    counts = np.array([[getattr(recipe, name) for name in COUNTS] for recipe in recipes], dtype=np.float64)
    others = np.array([_others(recipe) for recipe in recipes], dtype=np.float64)
    return np.hstack([np.log2(counts), others])


def _others(recipe: Recipe) -> list[float]:
    values = ((one, one.of(recipe)) for one in PLACES)
    return [
        *(_share(degree, recipe.copies) for degree in recipe.sharding.degrees),
        *(float(one.values.index(str(value)) if one.values else value) for one, value in values),
        *(float(one.of(recipe) == value) for one, value in ONE_HOT),
    ]


def _share(degree: int, copies: int) -> float:
    """How far something is spread: 0 not at all, 1 over all copies, in between by the logarithm."""
    return float(np.log(degree) / np.log(copies)) if copies > 1 else 0.0


MORE = ("micro_batch_seqs",)
"""More of it needs more memory."""
LESS = (
    "sharding_parameters",
    "sharding_gradients",
    "sharding_optimizer",
    "recompute",
    "sequence_parallel",
    "loss_chunks",
    "feed_forward_tiles",
    "optimizer_state",
    "activation_offload",
    "offload",
)
"""Less of it needs more memory."""
_MORE = [NAMES.index(name) for name in MORE]
_LESS = [NAMES.index(name) for name in LESS]
_BATCH = [NAMES.index("micro_batch_seqs"), NAMES.index("accumulation")]
_ACCUMULATION = NAMES.index("accumulation")
_SAME = [place for place, name in enumerate(NAMES) if name not in (*MORE, *LESS, "accumulation", *RANK_ORDERS)]


def needs_as_much(rows: Rows, failed: Rows) -> npt.NDArray[np.bool_]:
    """Of rows of `features`, those that need at least the memory of the one row `failed`.

    They are cut over the devices as it is, by the same schedule, and hold no fewer sequences at once: a rank holds as
    many micro-batches as its depth or all there are, so that larger micro-batches that are as many sequences in all
    never need less. A single micro-batch may, where the failed recipe has several: its activations are going when
    gradients come, while later ones are held beside the gradients of those before.
    """
    same = (rows[:, _SAME] == failed[_SAME]).all(axis=1)
    more = (rows[:, _MORE] >= failed[_MORE]).all(axis=1) & (rows[:, _LESS] <= failed[_LESS]).all(axis=1)
    sequences = rows[:, _BATCH].sum(axis=1) >= failed[_BATCH].sum() - 1e-9
    beside_gradients = (rows[:, _ACCUMULATION] > 0) | (failed[_ACCUMULATION] == 0)
    found: npt.NDArray[np.bool_] = same & more & sequences & beside_gradients
    return found
