"""The seam between the driver and whatever decides which recipe to try next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey


@dataclass(frozen=True, kw_only=True)
class Told:
    """One finished trial as a strategy learns of it."""

    recipe: Recipe
    outcome: Measurement | Failure


class Strategy(Protocol):
    """Decides which recipe to try next. Used by one thread.

    A strategy proposes each legal recipe at most once and never one that it was told of. It holds no durable
    state: after a restart a new one is made from the same survey and seed and told the stored trials in
    their order.
    """

    def ask(self, count: int) -> list[Recipe]:
        """Up to `count` legal recipes that were neither proposed nor told before; empty when none is left."""

    def tell(self, told: Told) -> None:
        """Learn of an outcome. The recipe need not have been proposed by this strategy."""

    def forget(self, recipe: Recipe) -> None:
        """Take back a proposal that was never measured, so that it may be proposed again."""


StrategyFactory = Callable[[Survey, int], Strategy]
"""Makes a strategy from the surveyed space and a seed."""

STRATEGIES: dict[str, str] = {
    "exhaustive": "frontrunner.search.listed:exhaustive",
    "random": "frontrunner.search.listed:shuffled",
    "optuna-tpe": "frontrunner.search.optuna_strategy:tpe",
    "optuna-gp": "frontrunner.search.optuna_strategy:gp",
    "optuna-nsga2": "frontrunner.search.optuna_strategy:nsga2",
    "deephyper": "frontrunner.search.deephyper_strategy:cbo",
}
"""Strategy factories by name, as import paths: a library is imported only where it is used."""


def make_strategy(name: str, survey: Survey, seed: int) -> Strategy:
    """The named strategy over the surveyed space; raises `InvalidInput` for an unknown name."""
    if name not in STRATEGIES:
        raise bad_value("search.strategy", name, "a known strategy", hint=did_you_mean(name, STRATEGIES))
    module, factory = STRATEGIES[name].split(":")
    make: StrategyFactory = getattr(import_module(module), factory)
    return make(survey, seed)
