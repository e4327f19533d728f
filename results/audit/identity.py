"""Whose outcome it is: a recipe's id is a hash of the problem and the recipe, taken here once more.

The fields that are at their default are left out of it, so the defaults are written here a second time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from sqlalchemy import Connection, text

from frontrunner.spaces.recipe import DIMENSIONS

MODEL = {
    "vocabulary_multiple": 128,
    "positions": "rotary",
    "max_positions": None,
    "activation": "gelu",
    "norm": "layernorm",
    "tied_embeddings": False,
    "attention": "flash",
}
SHARDING = {"parameters": 1, "gradients": 1, "optimizer": 1}
RECIPE = {one.stored: one.neutral for one in DIMENSIONS.values() if one.neutral is not None}
RECIPE |= {"sharding": SHARDING, "layers_per_stage": []}
"""Field -> the default at which it is no part of an identity."""
MODEL_KNOWN = {*MODEL, "name", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary"}
RECIPE_KNOWN = {*RECIPE, "devices", "micro_batch_seqs", "accumulation"}
"""Every field of an identity; a later version may have more."""
VERSION = 1
LENGTH = 12
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Ends = tuple[str, str]
"""The text of an identity before and after its recipe."""


def misattributed(connection: Connection) -> Iterator[dict[str, Any]]:
    """The trials whose recipe, in their campaign's problem, has another id than theirs.

    Campaigns whose specification states no problem are passed over, and text that is no JSON is another rule's.
    """
    problems: dict[int, Mapping[str, Any]] = {}
    for campaign, spec in connection.execute(text("SELECT id, spec_json FROM campaigns")):
        problem = _object(spec).get("problem")
        if isinstance(problem, dict):
            problems[campaign] = problem
    ends: dict[int, Ends] = {}
    for campaign, problem in problems.items():
        try:
            ends[campaign] = _ends(problem)
        except (KeyError, TypeError, AttributeError) as error:
            yield {"campaign": campaign, "why": f"its problem has no identity: {error!r}"}
    query = "SELECT campaign_id, id, recipe_id, recipe_json FROM trials"
    for campaign, trial, recipe_id, held in connection.execute(text(query)):
        if campaign not in ends:
            continue
        recipe = _object(held)
        its_own = _hash(ends[campaign], _chosen(recipe))
        if its_own != recipe_id and recipe_id not in _of_later_versions(problems[campaign], recipe):
            yield {"campaign": campaign, "trial": trial, "recipe_id": recipe_id, "its_recipe_has": its_own}


def _of_later_versions(problem: Mapping[str, Any], recipe: Mapping[str, Any]) -> Iterator[str]:
    """The ids that the recipe may have where fields that are not known here are at their defaults, or are not."""
    model = problem["model"]
    if MODEL_KNOWN.issuperset(model) and RECIPE_KNOWN.issuperset(recipe):
        return
    models = (model, {key: value for key, value in model.items() if key in MODEL_KNOWN})
    recipes = (recipe, {key: value for key, value in recipe.items() if key in RECIPE_KNOWN})
    for one, other in product(models, recipes):
        yield _hash(_ends({**problem, "model": one}), _chosen(other))


def _object(held: str) -> dict[str, Any]:
    """The object of a JSON text; an empty one for any other text."""
    try:
        found = json.loads(held)
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _ends(problem: Mapping[str, Any]) -> Ends:
    cluster = {name: problem["cluster"][name] for name in ("device", "backend", "devices_per_node")}
    model = {key: value for key, value in _off_default(problem["model"], MODEL).items() if key != "name"}
    before = {"cluster": cluster, "model": model, "precision": problem.get("precision", "bf16")}
    after = {"sequence_length": problem["sequence_length"], "version": VERSION}
    return f'{CANONICAL.encode(before)[:-1]},"recipe":', f",{CANONICAL.encode(after)[1:]}"


def _chosen(recipe: Mapping[str, Any]) -> dict[str, Any]:
    chosen = _off_default(recipe, RECIPE)
    sharding = chosen.get("sharding")
    if isinstance(sharding, dict):
        chosen["sharding"] = _off_default(sharding, SHARDING)
    return chosen


def _off_default(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}


def _hash(ends: Ends, chosen: Mapping[str, Any]) -> str:
    said = f"{ends[0]}{CANONICAL.encode(chosen)}{ends[1]}"
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()[:LENGTH]
