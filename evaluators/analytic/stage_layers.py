"""How many layers of each kind the ranks and stages of a pipeline hold.

The kinds are those of `Model.kinds`, in their order. Layers of multi-token prediction count as
layers of the last kind; they are where the head is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontrunner.evaluators.analytic.training_code import LayerSplit
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import (
    even_layers,
    head_layers,
    layers_of_ranks,
    layers_of_stages,
    leading,
    rank_of_stage,
)

Counts = tuple[int, ...]
"""Layers of each kind."""


def split_layers(split: LayerSplit, layers: int, ranks: int, head: float) -> Sequence[int]:
    """Return the layers of each pipeline rank, where a head costs as much as `head` layers.

    By cost (nanotron's `build_model`) a rank takes layers until the sum so far passes its share of
    the whole. By modules embedding, last norm and head count as layers.
    """
    if split == "even" or ranks == 1:
        return even_layers(layers, ranks)
    if split == "ends":
        cuts = np.cumsum((0, *even_layers(layers + 3, ranks)))
        counts: list[int] = np.diff(np.clip(cuts, 1, layers + 1)).tolist()
        return counts
    share, rank, of_ranks = (layers + head) / ranks, 0, [0] * ranks
    for layer in range(1, layers + 1):
        of_ranks[rank] += 1
        if layer > share * (rank + 1) and rank + 1 < ranks:
            rank += 1
    return of_ranks


def by_kind(layers: Sequence[int], model: Model, last: int = -1) -> list[Counts]:
    """Return the layers of each kind, of neighbors in the pipeline that hold so many layers.

    The one at `last` has the layers of multi-token prediction too.
    """
    counts = _by_kind(layers, leading(layers, model.dense_layers), model)
    return _with_prediction(counts, model, last)


def _with_prediction(counts: list[Counts], model: Model, last: int) -> list[Counts]:
    """Return the counts with the layers of multi-token prediction where the last layers are."""
    *others, final = counts[last]
    counts[last] = (*others, final + model.prediction.layers)
    return counts


def _by_kind(layers: Sequence[int], dense: Sequence[int], model: Model) -> list[Counts]:
    if not model.dense_layers:
        return [(count,) for count in layers]
    return [(first, count - first) for count, first in zip(layers, dense, strict=True)]


def of_ranks(recipe: Recipe, model: Model, split: LayerSplit) -> tuple[Counts, Counts, Counts]:
    """Return the layers of the rank with the embedding, the fullest between, and that with the
    head.
    """
    last = rank_of_stage(recipe, recipe.stages - 1)
    if not _ignores_code_split(recipe, split):
        own = split_layers(split, len(model.layers), recipe.pipeline_parallel, head_layers(model))
        return ends(by_kind(own, model, last), last)
    layers = layers_of_ranks(recipe, len(model.layers))
    dense = layers_of_ranks(recipe, len(model.layers), first=model.dense_layers)
    return ends(_with_prediction(_by_kind(layers, dense, model), model, last), last)


def of_stages(recipe: Recipe, model: Model, split: LayerSplit) -> list[Counts]:
    """Return the layers of each stage."""
    layers: Sequence[int] = layers_of_stages(recipe, len(model.layers))
    if not _ignores_code_split(recipe, split):
        layers = split_layers(
            split, len(model.layers), recipe.pipeline_parallel, head_layers(model)
        )
    return by_kind(layers, model)


def _ignores_code_split(recipe: Recipe, split: LayerSplit) -> bool:
    """Return whether layers are split evenly or as the recipe states, not as the code does."""
    has_own = bool(recipe.layers_per_stage)
    return split == "even" or has_own or recipe.stages != recipe.pipeline_parallel


def ends(ranks: Sequence[Counts], last: int = -1) -> tuple[Counts, Counts, Counts]:
    """Return the layers of the ranks with the embedding, of the fullest between, with the head.

    Of ranks between that are as full it is the one with most experts.
    """
    none = (0,) * len(ranks[0])
    between = [counts for rank, counts in enumerate(ranks) if rank not in (0, last % len(ranks))]
    fullest = max(between, key=lambda counts: (sum(counts), counts[-1]), default=none)
    return ranks[0], fullest, ranks[last]
