"""A global batch that more of a space's recipes can share."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frontrunner.spaces.space import Survey

GLOBAL_BATCH = "global-batch"
"""Reason of points whose micro-batches and replicas do not divide the global batch."""
USEFUL_SHARE = 0.75
"""Share of the space's products of micro-batch and replicas that a useful batch is a multiple of,
of the most that any batch nearby is.
"""
FARTHEST = 4096


def useful_batch(survey: Survey) -> int | None:
    """Return the nearest global batch that many more recipes can share.

    None where the batch is a range, or refuses no more points than there are legal recipes, or
    where none from half of it to twice it, at most `FARTHEST` away, is better.
    """
    batch = survey.problem.global_batch
    if not batch.is_fixed or survey.refusals.get(GLOBAL_BATCH, 0) <= len(survey.recipes):
        return None
    stated = batch.maximum
    products = _products(survey)

    def divisors(candidate: int) -> int:
        return sum(candidate % product == 0 for product in products)

    below, above = min(stated // 2, FARTHEST), min(stated, FARTHEST)
    candidates = range(stated - below, stated + above + 1)
    most = max(map(divisors, candidates))
    useful = [one for one in candidates if divisors(one) >= USEFUL_SHARE * most]
    found = min(useful, key=lambda one: (abs(one - stated), -one))
    return found if divisors(found) > divisors(stated) else None


def _products(survey: Survey) -> set[int]:
    """Return the products of micro-batch and replicas that the space's choices give."""
    choices = survey.dimensions
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    degrees_of_models = itertools.product(*(choices[name] for name in degrees))
    models = {math.prod(map(int, point)) for point in degrees_of_models}
    replicas = {
        int(devices) // model
        for devices, model in itertools.product(choices["devices"], models)
        if int(devices) % model == 0
    }
    return {int(micro) * count for micro in choices["micro_batch_seqs"] for count in replicas}
