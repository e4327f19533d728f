"""Which recipes are legal for a problem, and why the others are not.

A search checks every point of a space, so a refusal is a value. Rules are in the order in which a person would check
them; the first that refuses gives the reason. Those of one engine were found by running every combination against one
process on torch 2.13 and DeepSpeed 0.19.8; `tests/system/test_numerics*.py` run the legal ones. Reasons that begin
with "wrong" name combinations that run at full speed with other weights than one process would have.
"""

from __future__ import annotations

from frontrunner.spaces.legality import deepspeed, torch
from frontrunner.spaces.legality.common import FRAME_RULES, LATER_RULES, Mark, Reason, Rule, marks
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
