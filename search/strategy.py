"""The interface of strategies, which choose the next recipe, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from frontrunner.results.outcome import Outcome
from frontrunner.results.records import Outlook as Outlook  # noqa: PLC0414 - part of this interface
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.pareto import OBJECTIVES, RATES
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey
from frontrunner.spaces.variants import AROUND

if TYPE_CHECKING:
    from frontrunner.results.predictions import Expected

TOKENS_ALONE = ("tokens",)
SEEK_MORE: Mapping[str, tuple[str, ...]] = {
    "guided": OBJECTIVES,
    "optuna-nsga2": ("tokens", "memory"),
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """One finished trial as a strategy learns of it; `tokens_per_s` is the rate that the campaign
    seeks.
    """

    recipe: Recipe
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """An outcome that was known before the campaign began; `origin` is words, as `campaign laptop`
    or `sweep.csv`.
    """

    problem: Problem
    recipe: Recipe
    outcome: Outcome
    origin: str


class Strategy(Protocol):
    """Chooses the next recipe. Used by one thread.

    A strategy proposes each legal recipe at most once and never one that it was told. It holds no
    durable state: after a restart a new one is told the stored outcomes in order. A recipe that was
    measured again is told again; a failure after a measurement means that it cannot be relied on.
    """

    def ask(self, count: int) -> list[Recipe]:
        """Return up to `count` legal recipes that were neither proposed nor told; empty when none
        is left.
        """

    def tell(self, told: Told) -> None:
        """Learn of an outcome. The recipe need not have been proposed by this strategy."""


@runtime_checkable
class Forecaster(Strategy, Protocol):
    """A strategy that predicts outcomes: it can learn from a warm start and estimate what is left
    to gain.
    """

    def remember(self, evidence: Sequence[Evidence]) -> None:
        """Learn of outcomes from before the campaign; called once, before anything is asked or
        told.
        """

    def outlook(self) -> Outlook | None:
        """Return the expected gain from further probes; None before the first measurement."""

    def worth_repeating(self) -> Recipe | None:
        """Return a measured recipe that is worth measuring again before a new one, or None."""

    def expected(self, recipe: Recipe) -> Expected | None:
        """Return what it expected of a recipe when it proposed it; None for one that it did not
        propose.
        """


LOOK_AT_ALL = ("guided", "exhaustive", *AROUND)
"""The strategies that `search.prune_infeasible` leaves alone: one learns what fits, the others
promise every recipe.
"""

STRATEGIES: dict[str, str] = {
    "guided": "frontrunner.search.guided.strategy:Guided",
    "exhaustive": "frontrunner.search.strategies.candidates:exhaustive",
    "random": "frontrunner.search.strategies.candidates:shuffled",
    "sweep": "frontrunner.search.strategies.candidates:exhaustive",
    "scale": "frontrunner.search.strategies.candidates:exhaustive",
    "optuna-tpe": "frontrunner.search.strategies.optuna:tpe",
    "optuna-gp": "frontrunner.search.strategies.optuna:gp",
    "optuna-nsga2": "frontrunner.search.strategies.optuna:nsga2",
    "deephyper": "frontrunner.search.strategies.deephyper:DeepHyperStrategy",
}

SHORT_NAMES = {"tpe": "optuna-tpe", "gp": "optuna-gp", "nsga2": "optuna-nsga2"}
"""Names by which strategies of libraries are also known."""


def make_strategy(
    name: str,
    survey: Survey,
    seed: int,
    objectives: tuple[str, ...] = TOKENS_ALONE,
    settings: object = None,
) -> Strategy:
    """Make a strategy over the surveyed space; raises `InvalidInput` for an unknown name or
    unsupported objectives.

    `settings` are the strategy's own, None for its defaults or where it has none.
    """
    if name not in STRATEGIES:
        raise bad_value(
            "search.strategy", name, "a known strategy", hint=did_you_mean(name, STRATEGIES)
        )
    check_objectives(objectives, name)
    module, factory = STRATEGIES[name].split(":")
    make: Callable[..., Strategy] = getattr(import_module(module), factory)
    # A rate of its own is in the outcomes that strategies are told; those that seek more have to
    # know it as well.
    plain = objectives == TOKENS_ALONE or (objectives[0] in RATES[1:] and name not in SEEK_MORE)
    more: dict[str, object] = {} if plain else {"objectives": objectives}
    return make(survey, seed, **more if settings is None else more | {"settings": settings})


def check_objectives(objectives: Sequence[str], strategy: str) -> None:
    """Raise `InvalidInput` unless these are a rate alone, or tokens with others, each once, that
    the strategy seeks.
    """
    key, given = "search.objectives", list(objectives)
    if len(objectives) == 1 and objectives[0] in RATES:
        return
    unknown = next((name for name in objectives if name not in OBJECTIVES), None)
    if unknown or "tokens" not in objectives or len(set(objectives)) < len(objectives):
        hint = (
            did_you_mean(unknown, (*OBJECTIVES, *RATES[1:]))
            if unknown
            else 'the default is ["tokens"]'
        )
        expected = (
            f'"tokens", alone or with "memory" and "nodes", each once, or {" or ".join(RATES[1:])}'
            " alone"
        )
        raise bad_value(key, given, expected, hint=hint)
    sought = SEEK_MORE.get(strategy, TOKENS_ALONE)
    if not set(objectives) <= set(sought):
        able = " or ".join(
            name for name, words in SEEK_MORE.items() if set(objectives) <= set(words)
        )
        expected = f'what search.strategy = "{strategy}" searches for: {" and ".join(sought)}'
        raise bad_value(key, given, expected, hint=f"search.strategy = {able} searches for these")
