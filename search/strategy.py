"""The seam between the driver and whatever decides which recipe to try next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.search.objectives import TOKENS_ALONE, check_objectives
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey


@dataclass(frozen=True, kw_only=True)
class Told:
    """One finished trial as a strategy learns of it."""

    recipe: Recipe
    outcome: Measurement | Failure


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """An outcome that was known before the campaign began, of its own problem or of a neighbour.

    `origin` says in words where it comes from, as `campaign laptop` or `sweep.csv`.
    """

    problem: Problem
    recipe: Recipe
    outcome: Measurement | Failure
    origin: str


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a strategy expects of going on, in shares of the best measured tokens/s.

    `expected_improvement` is the mean gain of the most promising next probe. `gap` is the estimated distance to the
    best recipe of the whole legal space, at least 0, and `gap_at_most` its 95th percentile: 1 for twice the tokens/s.

    Where `of_front`, several objectives are sought and the three are shares of what the measured front is worth: the
    best tokens/s within an allowance of memory and nodes, as a mean over all allowances.
    """

    expected_improvement: float
    gap: float
    gap_at_most: float
    of_front: bool = False

    @property
    def share_below(self) -> float:
        """`gap` as a share of the whole space's best, as a ranking's gap is one of its best: gap / (1 + gap)."""
        return 1 - 1 / (1 + self.gap)

    @property
    def share_below_at_most(self) -> float:
        """`gap_at_most` likewise."""
        return 1 - 1 / (1 + self.gap_at_most)


class Strategy(Protocol):
    """Decides which recipe to try next. Used by one thread.

    A strategy proposes each legal recipe at most once and never one that it was told of. It holds no durable
    state: after a restart a new one is made from the same survey and seed and told the stored outcomes in
    their order.

    A recipe that was measured again is told again: each further `Told` of a recipe is one more outcome of it, to be
    averaged with the others or ignored. A failure after a measurement says that the recipe cannot be relied on.
    """

    def ask(self, count: int) -> list[Recipe]:
        """Up to `count` legal recipes that were neither proposed nor told before; empty when none is left."""

    def tell(self, told: Told) -> None:
        """Learn of an outcome. The recipe need not have been proposed by this strategy."""

    def forget(self, recipe: Recipe) -> None:
        """Take back a proposal that was never measured, so that it may be proposed again."""


@runtime_checkable
class Forecaster(Strategy, Protocol):
    """A strategy that predicts outcomes, and so can use what was known before and say what is left to gain."""

    def remember(self, evidence: Sequence[Evidence]) -> None:
        """Learn of outcomes from before the campaign; called once, before anything is asked or told."""

    def outlook(self) -> Outlook | None:
        """What going on promises; None before the first measurement."""

    def worth_repeating(self) -> Recipe | None:
        """A measured recipe whose next measurement is worth more than a new recipe's first, or None.

        Asked before each probe. The driver follows unless such a measurement is under way, the recipe has five, or the
        machine lost it each time it was tried.
        """


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a strategy expects of a recipe that was not measured at this scale.

    tokens/s as a median, `low` and `high` the ends of the interval that holds a measurement with a chance of 95 %, as
    far as the strategy's model is right; `chance` is that of the recipe to run at all.
    """

    recipe: Recipe
    tokens_per_s: float
    low: float
    high: float
    chance: float


@runtime_checkable
class Predictor(Forecaster, Protocol):
    """A forecaster that says what it expects of recipes by name."""

    def forecasts(self, count: int) -> list[Forecast]:
        """Of the `count` recipes of the highest expected tokens/s; none before any outcome was remembered or told."""


StrategyFactory = Callable[..., Strategy]
"""Makes a strategy from the surveyed space and a seed; `objectives` are given to those of `SEEK_MORE` alone."""

STRATEGIES: dict[str, str] = {
    "guided": "frontrunner.search.guided.strategy:guided",
    "exhaustive": "frontrunner.search.listed:exhaustive",
    "random": "frontrunner.search.listed:shuffled",
    "optuna-tpe": "frontrunner.search.optuna_strategy:tpe",
    "optuna-gp": "frontrunner.search.optuna_strategy:gp",
    "optuna-nsga2": "frontrunner.search.optuna_strategy:nsga2",
    "deephyper": "frontrunner.search.deephyper_strategy:cbo",
}
"""Strategy factories by name, as import paths: a library is imported only where it is used."""


def make_strategy(name: str, survey: Survey, seed: int, objectives: tuple[str, ...] = TOKENS_ALONE) -> Strategy:
    """The named strategy over the surveyed space; raises `InvalidInput` for an unknown name.

    So it does for objectives that the strategy does not search for.
    """
    if name not in STRATEGIES:
        raise bad_value("search.strategy", name, "a known strategy", hint=did_you_mean(name, STRATEGIES))
    check_objectives(objectives, name)
    module, factory = STRATEGIES[name].split(":")
    make: StrategyFactory = getattr(import_module(module), factory)
    return make(survey, seed) if objectives == TOKENS_ALONE else make(survey, seed, objectives=objectives)
