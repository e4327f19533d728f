"""The interface of strategies, which choose the next recipe, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.predictions import Outlook as Outlook  # noqa: PLC0414 - part of this interface
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

OBJECTIVES = ("tokens", "memory", "nodes")
"""As in `frontrunner pareto --objectives`: the most tokens/s, the most headroom, the fewest nodes."""
TOKENS_ALONE = ("tokens",)
SEEK_MORE: Mapping[str, tuple[str, ...]] = {"guided": OBJECTIVES, "optuna-nsga2": ("tokens", "memory")}
"""The strategies that can search for several objectives, and for which."""


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


class Strategy(Protocol):
    """Chooses the next recipe. Used by one thread.

    A strategy proposes each legal recipe at most once and never one that it was told. It holds no durable
    state: after a restart a new one is made from the same survey and seed and told the stored outcomes in
    their order.

    A recipe that was measured again is told again: each further `Told` of it is one more outcome, to be averaged
    with the others or ignored. A failure after a measurement means that the recipe cannot be relied on.
    """

    def ask(self, count: int) -> list[Recipe]:
        """Return up to `count` legal recipes that were neither proposed nor told; empty when none is left."""

    def tell(self, told: Told) -> None:
        """Learn of an outcome. The recipe need not have been proposed by this strategy."""


@runtime_checkable
class Forecaster(Strategy, Protocol):
    """A strategy that predicts outcomes: it can learn from a warm start and estimate what is left to gain."""

    def remember(self, evidence: Sequence[Evidence]) -> None:
        """Learn of outcomes from before the campaign; called once, before anything is asked or told."""

    def outlook(self) -> Outlook | None:
        """Return the expected gain from further probes; None before the first measurement."""

    def worth_repeating(self) -> Recipe | None:
        """Return a measured recipe that is worth measuring again before a new one, or None.

        Called before each probe. The driver follows unless such a measurement is under way, the recipe has five, or the
        machine lost it each time it was tried.
        """


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a strategy expects of a recipe that was not measured at this scale.

    `tokens_per_s` is the median, `low` and `high` the ends of the 95 % interval of a measurement under the strategy's
    model; `chance` is the recipe's chance to run at all.
    """

    recipe: Recipe
    tokens_per_s: float
    low: float
    high: float
    chance: float


@runtime_checkable
class Predictor(Forecaster, Protocol):
    """A forecaster that predicts single recipes."""

    def forecasts(self, count: int) -> list[Forecast]:
        """Predict the `count` recipes of the highest expected tokens/s; none before the first outcome."""


StrategyFactory = Callable[..., Strategy]
"""Makes a strategy from the surveyed space and a seed; `objectives` are given to those of `SEEK_MORE` alone."""

STRATEGIES: dict[str, str] = {
    "guided": "frontrunner.search.guided.strategy:guided",
    "exhaustive": "frontrunner.search.strategies.exhaustive_random:exhaustive",
    "random": "frontrunner.search.strategies.exhaustive_random:shuffled",
    "optuna-tpe": "frontrunner.search.strategies.optuna:tpe",
    "optuna-gp": "frontrunner.search.strategies.optuna:gp",
    "optuna-nsga2": "frontrunner.search.strategies.optuna:nsga2",
    "deephyper": "frontrunner.search.strategies.deephyper:cbo",
}
"""Strategy factories by name, as import paths: a library is imported only where it is used."""


def make_strategy(name: str, survey: Survey, seed: int, objectives: tuple[str, ...] = TOKENS_ALONE) -> Strategy:
    """Make a strategy over the surveyed space; raises `InvalidInput` for an unknown name or unsupported objectives."""
    if name not in STRATEGIES:
        raise bad_value("search.strategy", name, "a known strategy", hint=did_you_mean(name, STRATEGIES))
    check_objectives(objectives, name)
    module, factory = STRATEGIES[name].split(":")
    make: StrategyFactory = getattr(import_module(module), factory)
    return make(survey, seed) if objectives == TOKENS_ALONE else make(survey, seed, objectives=objectives)


def check_objectives(objectives: Sequence[str], strategy: str) -> None:
    """Raise `InvalidInput` unless these are tokens, alone or with others, each once, that the strategy seeks."""
    given, expected = list(objectives), '"tokens", alone or with "memory" and "nodes", each once'
    for name in objectives:
        if name not in OBJECTIVES:
            raise bad_value("search.objectives", given, expected, hint=did_you_mean(name, OBJECTIVES))
    if "tokens" not in objectives or len(set(objectives)) < len(objectives):
        raise bad_value("search.objectives", given, expected, hint='the default is ["tokens"]')
    sought = SEEK_MORE.get(strategy, TOKENS_ALONE)
    if not set(objectives) <= set(sought):
        able = " or ".join(name for name, words in SEEK_MORE.items() if set(objectives) <= set(words))
        raise bad_value(
            "search.objectives",
            given,
            f"what search.strategy = {strategy!r} searches for: {' and '.join(sought)}".replace("'", '"'),
            hint=f"search.strategy = {able} searches for these",
        )
