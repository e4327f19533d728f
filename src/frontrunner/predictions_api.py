"""The Python API of campaigns that are measured on few nodes and predicted for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontrunner.api import opened
from frontrunner.spaces.errors import NotFound

if TYPE_CHECKING:
    from frontrunner.results.predictions import SmallScale
    from frontrunner.results.store import Store

LEAST_PREFIX = 4


def predictions(campaign: str | None = None, *, store: str | None = None) -> SmallScale | None:
    """What a campaign with `search.probe_nodes` predicts of its cluster, and what was confirmed; None for others."""
    from frontrunner.results.predictions import small_scale

    with opened(store) as found:
        return small_scale(found, found.campaign(campaign))


def predictions_of(recipe_id: str, *, store: str | None = None) -> tuple[SmallScale, ...]:
    """The campaigns that predict a recipe, each with that prediction alone; `recipe_id` may be its beginning.

    Raises `NotFound` where no predicted recipe, or more than one, begins like this.
    """
    with opened(store) as found:
        return scales_of(found, recipe_id)


def scales_of(store: Store, recipe_id: str) -> tuple[SmallScale, ...]:
    """`predictions_of` in a store that is open."""
    from frontrunner.results.predictions import predicted_ids, scales_that_predict

    alike = [known for known in predicted_ids(store) if known.startswith(recipe_id.strip().lower())]
    if len(alike) != 1 or len(recipe_id) < LEAST_PREFIX:
        raise NotFound(f"{len(alike) or 'no'} predicted recipe ids begin with {recipe_id!r}")
    return scales_that_predict(store, alike[0])
