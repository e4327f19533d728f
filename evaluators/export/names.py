"""The tools that recipes travel to, by name, and the questions that each of them answers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from frontrunner.evaluators.export.export import Export
from frontrunner.evaluators.export.given import Given
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe

FORMATS: dict[str, str] = {
    "megatron-lm": "frontrunner.evaluators.export.megatron_lm",
    "megatron-deepspeed": "frontrunner.evaluators.export.megatron_deepspeed",
    "deepspeed": "frontrunner.evaluators.export.deepspeed",
    "nemo": "frontrunner.evaluators.export.nemo",
    "torchtitan": "frontrunner.evaluators.export.torchtitan",
    "nanotron": "frontrunner.evaluators.export.nanotron",
    "accelerate": "frontrunner.evaluators.export.accelerate",
}
"""The module of each tool; modules follow `Format`."""


class Format(Protocol):
    """What a tool's module holds, as functions."""

    def why_not(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Why the tool cannot be told this recipe, or None where it can."""

    def export(self, problem: Problem, recipe: Recipe) -> Export:
        """The recipe in the tool's words; asked for recipes that `why_not` lets pass."""

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """The same as one text for a file, the header's lines in its comments."""

    def read(self, problem: Problem, given: Given) -> Recipe:
        """The recipe that a configuration of the tool stands for; raises `InvalidInput`."""


def format_of(name: str) -> Format:
    """The named tool's module; raises `InvalidInput` for an unknown name."""
    if name not in FORMATS:
        raise bad_value("format", name, "a known tool", hint=did_you_mean(name, FORMATS))
    return cast("Format", import_module(FORMATS[name]))


def why_not(name: str, problem: Problem, recipe: Recipe) -> Reason | None:
    """Why the named tool cannot be told this recipe, or None where it can."""
    return format_of(name).why_not(problem, recipe)


def export(name: str, problem: Problem, recipe: Recipe) -> Export:
    """The recipe in the named tool's words; raises `InvalidInput` with the reason where it has none for it."""
    _refuse(name, problem, recipe)
    return format_of(name).export(problem, recipe)


def arguments(name: str, problem: Problem, recipe: Recipe) -> tuple[str, ...]:
    """What follows the training script's name on the tool's command line; raises as `export` does."""
    return export(name, problem, recipe).arguments


def render(name: str, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """One file that the tool accepts as it is; raises as `export` does."""
    _refuse(name, problem, recipe)
    return format_of(name).render(problem, recipe, header)


def read(name: str, problem: Problem, given: Given) -> Recipe:
    """The recipe that a configuration stands for; raises `InvalidInput` for what is no recipe of ours."""
    return format_of(name).read(problem, given)


def _refuse(name: str, problem: Problem, recipe: Recipe) -> None:
    reason = why_not(name, problem, recipe)
    if reason is not None:
        raise InvalidInput(
            f"{name} cannot be told this recipe: {reason}",
            hint="export another recipe, or with --to recipe a file that loses nothing",
        )
