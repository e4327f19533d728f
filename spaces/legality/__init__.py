"""Which recipes are legal for a problem, and why the others are not.

A search checks every point of a space, so a refusal is a value. Rules are in the order in which a person would check
them; the first that refuses gives the reason. Those of one engine were found by running every combination against one
process on torch 2.13 and DeepSpeed 0.19.8; `tests/system/test_numerics*.py` run the legal ones. Reasons that begin
with "wrong" name combinations that run at full speed with other weights than one process would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frontrunner.spaces.legality import deepspeed, torch
from frontrunner.spaces.legality.common import FRAME_RULES, LATER_RULES, Reason, Rule
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

__all__ = ["ENGINE_RULES", "FRAME_RULES", "LATER_RULES", "Mark", "Reason", "Rule", "marks", "why_illegal"]

ENGINE_RULES: dict[str, tuple[Rule, ...]] = {"torch": torch.RULES, "deepspeed": deepspeed.RULES}


def why_illegal(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first reason for which `recipe` cannot solve `problem`, or None where it is legal."""
    return why_no_frame(recipe, problem) or why_illegal_in_frame(recipe, problem)


def why_no_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first of `FRAME_RULES` that refuses."""
    return _first(FRAME_RULES, recipe, problem)


def why_illegal_in_frame(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return the first of the other rules that refuses."""
    return _first(LATER_RULES, recipe, problem) or _first(ENGINE_RULES[recipe.engine], recipe, problem)


def _first(rules: tuple[Rule, ...], recipe: Recipe, problem: Problem) -> Reason | None:
    return next((reason for rule in rules for reason in rule(recipe, problem)), None)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A remark about a legal recipe that its reader should know."""

    code: str
    text: str


def _tensor_parallel_beyond_node(recipe: Recipe, problem: Problem) -> str | None:
    tp, per_node = recipe.tensor_parallel, problem.cluster.devices_per_node
    apart = recipe.rank_strides["tp"]
    if tp == 1 or tp * apart <= per_node:
        return None
    spread = f", its ranks {apart} apart," if apart > 1 else ""
    return f"tensor_parallel {tp}{spread} crosses nodes of {per_node} devices"


def _context_parallel_beyond_node(recipe: Recipe, problem: Problem) -> str | None:
    apart, cp, per_node = recipe.rank_strides["dp"], recipe.context_parallel, problem.cluster.devices_per_node
    if cp == 1 or apart * cp <= per_node:
        return None
    spread = f"tensor_parallel {apart} x " if apart == recipe.tensor_parallel else f"groups of {apart} ranks x "
    return f"{spread}context_parallel {cp} crosses nodes of {per_node} devices"


def _replicated_kv_heads(recipe: Recipe, problem: Problem) -> str | None:
    tp, kv_heads = recipe.tensor_parallel, problem.model.kv_heads
    return f"each of {kv_heads} kv heads is held by {tp // kv_heads} ranks" if tp > kv_heads else None


def _uneven_stages(recipe: Recipe, problem: Problem) -> str | None:
    layers, stages = problem.model.layers, recipe.stages
    if recipe.layers_per_stage or layers % stages == 0:
        return None
    return f"{layers} layers over {stages} stages: the first {layers % stages} hold one more"


def _idle_devices(recipe: Recipe, problem: Problem) -> str | None:
    idle = problem.cluster.devices - recipe.devices
    return f"{idle} of {problem.cluster.devices} devices stay idle" if idle > 0 else None


_MARKS: dict[str, Callable[[Recipe, Problem], str | None]] = {
    "tp-beyond-node": _tensor_parallel_beyond_node,
    "cp-beyond-node": _context_parallel_beyond_node,
    "kv-replicated": _replicated_kv_heads,
    "uneven-stages": _uneven_stages,
    "idle-devices": _idle_devices,
}


def marks(recipe: Recipe, problem: Problem) -> Iterator[Mark]:
    """Return what a reader should know about a legal recipe: unusual, allowed, and often slow."""
    for code, remark in _MARKS.items():
        text = remark(recipe, problem)
        if text is not None:
            yield Mark(code=code, text=text)
