"""Recipes as documents: versioned JSON with a hash, so that a recipe has the same identity everywhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

DOCUMENT_VERSION = 1
ID_LENGTH = 12


def identity(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """What makes two recipes the same: the model's shape, the devices, the batch's form and every choice.

    Names, measured rates and memory sizes stay out, so that renaming a model or calibrating a cluster keeps
    the identity of what was measured before. Fields at their default stay out too, so that a later version
    may add a field without changing the identity of older recipes.
    """
    model = {key: value for key, value in _off_default(problem.model).items() if key != "name"}
    cluster = {
        "device": problem.cluster.device,
        "backend": problem.cluster.backend,
        "devices_per_node": problem.cluster.devices_per_node,
    }
    return {
        "version": DOCUMENT_VERSION,
        "model": model,
        "cluster": cluster,
        "sequence_length": problem.sequence_length,
        "precision": problem.precision,
        "recipe": _off_default(recipe),
    }


def _off_default(value: Any) -> dict[str, Any]:
    """A dataclass's fields that differ from their default, nested ones likewise."""
    kept: dict[str, Any] = {}
    for f in fields(value):
        item = getattr(value, f.name)
        if f.default is MISSING or item != f.default:
            kept[f.name] = _off_default(item) if is_dataclass(item) else item
    return kept


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; NaN and infinities are refused with ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def recipe_id(problem: Problem, recipe: Recipe) -> str:
    """The first 12 hexadecimal digits of SHA-256 over the canonical JSON of `identity`."""
    text = canonical_json(identity(problem, recipe))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
