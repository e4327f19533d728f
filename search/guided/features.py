"""Recipes as rows of numbers in which a doubling of a degree is one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from frontrunner.spaces.recipe import OFFLOADS, RANK_ORDERS, RECOMPUTES, SCHEDULES, Recipe

Rows = npt.NDArray[np.float64]

COUNTS = (
    "devices",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "data_parallel",
    "virtual_stages",
    "micro_batch_seqs",
    "accumulation",
    "loss_chunks",
    "feed_forward_tiles",
    "secondary_partition",
)
"""Taken as logarithms to the base 2."""
WORDS: dict[str, Callable[[Recipe], float]] = {
    "sharding_parameters": lambda recipe: _share(recipe.sharding.parameters, recipe.copies),
    "sharding_gradients": lambda recipe: _share(recipe.sharding.gradients, recipe.copies),
    "sharding_optimizer": lambda recipe: _share(recipe.sharding.optimizer, recipe.copies),
    "recompute": lambda recipe: float(RECOMPUTES.index(recipe.recompute)),
    "sequence_parallel": lambda recipe: float(recipe.sequence_parallel),
    "replication": lambda recipe: float(recipe.replication == "ddp"),
    "compile": lambda recipe: float(recipe.compile),
    "optimizer_state": lambda recipe: float(recipe.optimizer_state != "fp32"),
    "activation_offload": lambda recipe: float(recipe.activation_offload),
    "offload": lambda recipe: float(OFFLOADS.index(recipe.offload)),
    "synchronise": lambda recipe: float(recipe.synchronise != "last"),
    "engine": lambda recipe: float(recipe.engine != "torch"),
    "layer_split": lambda recipe: float(bool(recipe.layers_per_stage)),
}
"""What else a recipe says, a step apart where its values are neighbours."""
NAMES = (*COUNTS, *WORDS, *SCHEDULES[1:], *RANK_ORDERS[1:])


def features(recipes: Sequence[Recipe]) -> Rows:
    """One row a recipe, one column for each of `NAMES`; schedules and orders of ranks have one each that is 0 or 1."""
    counts = np.array([[getattr(recipe, name) for name in COUNTS] for recipe in recipes], dtype=np.float64)
    words = np.array([[of(recipe) for of in WORDS.values()] for recipe in recipes], dtype=np.float64)
    schedules = np.array([[recipe.schedule == name for name in SCHEDULES[1:]] for recipe in recipes], dtype=np.float64)
    orders = np.array([[recipe.rank_order == name for name in RANK_ORDERS[1:]] for recipe in recipes], dtype=np.float64)
    if not recipes:
        return np.empty((0, len(NAMES)))
    return np.hstack([np.log2(counts), words, schedules, orders])


def _share(degree: int, copies: int) -> float:
    """How far something is spread: 0 not at all, 1 over all copies, in between by the logarithm."""
    return float(np.log(degree) / np.log(copies)) if copies > 1 else 0.0
